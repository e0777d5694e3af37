"""`radix-tlru explain` asks a real server why a request had to prefill what it did."""

from __future__ import annotations

import pytest
import requests

from eval.live.server import Server
from radix_tlru.cli import main
from radix_tlru.tools.explanation import ROUTE
from radix_tlru.tools.http import OF_ROUTER
from tests.helpers.servers import NEXT_PROMPT, POOL, THRESHOLD, assert_unharmed
from tests.helpers.talk import ANSWER, A, B, C, Conversation, body, cached

pytestmark = pytest.mark.live


def ask(server: Server, conversation: Conversation, tokens: int, rid: str, answer: int = ANSWER) -> None:
    """The next turn, under that id."""
    asked = body(conversation.ask(tokens), answer, rid=rid)
    reply = requests.post(f"{server.base_url}/generate", json=asked, timeout=60).json()
    assert reply["meta_info"]["id"] == rid
    conversation.history += tuple(reply["output_ids"])


def test_a_request_of_a_running_server_is_explained(our_server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """As SGLang has one token too few for A, B and C, A is cut to its budget, and its next turn is told by whom."""
    our_server.flush_cache()
    conversations = [Conversation(seed) for seed in (71, 72, 73)]
    for conversation, tokens in zip(conversations, (A, B, C), strict=True):
        ask(our_server, conversation, tokens, f"explain {conversation.seed} first")
    ask(our_server, conversations[0], 50, "explain 71 again")
    assert main(["explain", our_server.base_url, "explain 71 again"]) == 0
    request, lacked, evicted, price, lru = capsys.readouterr().out.splitlines()
    cached = A + ANSWER - 1  # the last token of an answer is never computed upon
    taken = int(lacked.split()[1].replace(",", ""))
    assert 0 < taken <= THRESHOLD - NEXT_PROMPT
    assert request.startswith(f"request: explain 71 again prefilled {taken + 51:,} of {cached + 51:,} prompt tokens, ")
    assert f"ξ = {THRESHOLD}; done at " in request
    assert lacked.endswith(" s before; 51 were new")
    assert evicted.startswith(f"evicted: {taken} tokens, ")
    assert evicted.endswith(" of them for the prefill of 900 tokens of request explain 73 first")
    assert price.startswith("price:   0 a token of them, the lowest of all then: λ ")
    assert "tokens of it cached" in lru
    assert_unharmed(our_server, POOL)


def test_room_that_a_long_answer_needs_is_told_as_that_of_running_requests(
    our_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """After A and B, of 3,514 tokens with their answers, the prompt of 400 fits, and not its answer of 200."""
    our_server.flush_cache()
    conversations = [Conversation(seed) for seed in (74, 75, 76)]
    for conversation, tokens, answer in zip(conversations, (A, B, 400), (ANSWER, ANSWER, 200), strict=True):
        ask(our_server, conversation, tokens, f"explain {conversation.seed} first", answer)
    ask(our_server, conversations[0], 50, "explain 74 again")
    assert main(["explain", our_server.base_url, "explain 74 again"]) == 0
    _, lacked, evicted, _, _ = capsys.readouterr().out.splitlines()
    taken = int(lacked.split()[1])
    assert taken >= A + ANSWER - 1 + B + ANSWER - 1 + 400 + 200 - 1 - POOL
    assert evicted.startswith(f"evicted: {taken} tokens, ")
    assert evicted.endswith(" of them for the next token of 1 running request")
    assert_unharmed(our_server, POOL)


def test_a_prompt_that_is_prefilled_for_several_answers_is_told_of_the_first_that_is_done(our_server: Server) -> None:
    before = our_server.get_metrics()
    asked = body(Conversation(177).ask(1_000))
    asked["sampling_params"]["n"] = 3
    replies = requests.post(f"{our_server.base_url}/generate", json=asked, timeout=60).json()
    assert [cached(reply) for reply in replies] == [999] * 3
    ids = [reply["meta_info"]["id"] for reply in replies]
    told = [requests.get(f"{our_server.base_url}{ROUTE}", params={"rid": rid}, timeout=60).json() for rid in ids]
    assert sorted((one["cached"], one["new"]) for one in told) == [(0, 1_000), (999, 1), (999, 1)]
    now = our_server.get_metrics()
    names = [f"sglang:tlru_{name}_total" for name in ("requests", "violations", "excess_tokens")]
    assert [now[name] - before.get(name, 0.0) for name in names] == [3, 1, 1_000 - THRESHOLD]


def test_of_a_prompt_whose_log_probabilities_are_wanted_nothing_need_have_been_evicted(
    our_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    prompt = Conversation(78).ask(400)
    for rid, more in (("plain", {}), ("logprobs", {"return_logprob": True, "logprob_start_len": 0})):
        asked = body(prompt, rid=rid, **more)
        assert cached(requests.post(f"{our_server.base_url}/generate", json=asked, timeout=60).json()) == 0
    assert main(["explain", our_server.base_url, "logprobs"]) == 0
    request, _, evicted, _, _ = capsys.readouterr().out.splitlines()
    assert request.startswith("request: logprobs prefilled 400 of 400 prompt tokens, ")
    assert evicted.endswith("; or nothing, if it wanted logprobs of its prompt")


def test_what_cannot_be_explained_is_one_line_and_status_2(
    our_server: Server, stock_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    for url, said in (
        (our_server.base_url, "request nobody: is not among the last 4,096 that were answered and cached"),
        (
            stock_server.base_url,
            f"{stock_server.base_url}/tlru/explain: HTTP 404; start the server with --tlru-explain{OF_ROUTER}",
        ),
        ("127.0.0.1:9", "no server answers at http://127.0.0.1:9"),
    ):
        assert main(["explain", url, "nobody"]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == ("", f"radix-tlru: error: {said}\n")
    assert our_server.server_info()["internal_states"][0]["page_size"] == 1, "others are answered as before"
