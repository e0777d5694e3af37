"""A real server that prefills what the next prompt of a chat will have, where the request says so."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import requests
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

from eval.live.server import Server, cpu_flags
from radix_tlru.tools.scrape import Ahead, Snapshot, read
from tests.helpers.models import small_model
from tests.helpers.plugins import slow, write_plugin

pytestmark = pytest.mark.live

HINT = {"nvext": {"agent_hints": {"speculative_prefill": True}}}
HEADER = {"X-TLRU": json.dumps(HINT)}
ANSWER = 200  # tokens

CHUNK, PER_TOKEN_MS = 64, 1.0  # so that what is prefilled for an answer takes some 200 ms, in 4 chunks

IMPATIENT = """
    from radix_tlru.sglang.requests import ahead
    ahead.PATIENCE_S = 2.0
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Of random weights answers are no text that would be tokenized as it was written: next prompts do not repeat them.
    ours = ("--radix-eviction", "etlru", "--tlru-prefill-ahead")
    other = ("--enable-custom-logit-processor", "--chunked-prefill-size", f"{CHUNK}")
    plugin = write_plugin(tmp_path_factory.mktemp("impatient"), slow(PER_TOKEN_MS) + IMPATIENT)
    given, environment = [*cpu_flags(small_model(), 16_000), *ours, *other], {"PYTHONPATH": plugin}
    with Server(given, name="test-ahead", environment=environment, grace_s=0) as server:
        yield server


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


def look(server: Server) -> Snapshot:
    return read(server.metrics_text(), server.base_url)


def prefilled(server: Server) -> Ahead:
    return look(server).ahead or Ahead({}, 0.0)


def wait_for(server: Server, outcome: str, count: float) -> None:
    """Until so many answers have come to that."""
    deadline = time.monotonic() + 60
    while prefilled(server).answers.get(outcome, 0.0) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begun(number: int) -> list[Any]:
    return [{"role": "user", "content": f"Chat {number}. " * 40}]


def answered(client: openai.OpenAI, messages: list[Any], *, streams: bool = False, **said: Any) -> str:
    asked: dict[str, Any] = {"model": "default", "messages": messages, "max_tokens": ANSWER}
    body = {"ignore_eos": True, **said.pop("extra_body", {})}
    if streams:
        chunks = client.chat.completions.create(**asked, extra_body=body, stream=True, **said)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    return client.chat.completions.create(**asked, extra_body=body, **said).choices[0].message.content or ""


def next_prompt(
    client: openai.OpenAI, server: Server, messages: list[Any], answer: str, salt: str | None = None
) -> tuple[int, int]:
    """Cached tokens of the next prompt, and how many it was known to have."""
    messages = [*messages, {"role": "assistant", "content": answer}]
    whole = {"messages": messages, "add_generation_prompt": False}
    known = requests.post(f"{server.base_url}/v1/tokenize", json=whole, timeout=60).json()["count"]
    messages.append({"role": "user", "content": "Go on."})
    salted = {"cache_salt": salt}
    usage = client.chat.completions.create(model="default", messages=messages, max_tokens=8, extra_body=salted).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens_details.cached_tokens or 0, known


def test_what_the_next_prompt_will_have_is_there_and_is_no_turn(server: Server, client: openai.OpenAI) -> None:
    before = look(server).ranks[0].value("requests_total") or 0.0
    ways: list[dict[str, Any]] = [
        {"extra_body": HINT},
        {"extra_body": HINT, "streams": True},
        {"extra_headers": HEADER},
    ]
    for number, said in enumerate(ways, start=1):
        messages = begun(number)
        answer = answered(client, messages, **said)
        wait_for(server, "done", number)
        cached, known = next_prompt(client, server, messages, answer)
        assert cached >= known > ANSWER
    messages = begun(9)
    cached, known = next_prompt(client, server, messages, answered(client, messages))
    assert cached < known - ANSWER / 2, "nobody asked for more"
    messages = begun(10)
    answer = answered(client, messages, extra_body={**HINT, "cache_salt": "a"})
    wait_for(server, "done", 4)
    for salt in ("b", "a"):
        cached, known = next_prompt(client, server, messages, answer, salt)
        assert (cached >= known) == (salt == "a"), "in the namespace of the chat"
    now = look(server)
    assert (now.ranks[0].value("requests_total") or 0.0) - before == 11
    assert now.ranks[0].by("continued_total", "answer") == {"as_cached": 0, "otherwise": 5}
    assert prefilled(server).tokens >= 4 * ANSWER
    assert server.alive()


def test_of_several_answers_nobody_knows_which_the_next_prompt_will_have(server: Server, client: openai.OpenAI) -> None:
    before = prefilled(server).answers
    for number, answers in ((20, 2), (21, 1)):
        answered(client, begun(number), extra_body=HINT, n=answers)
    wait_for(server, "done", before["done"] + 1)
    assert sum(prefilled(server).answers.values()) == sum(before.values()) + 1


@pytest.mark.parametrize(
    ("number", "body"),
    [(30, {"continue_final_message": True}), (31, {"input_ids": [*range(32, 90)]})],
    ids=["its answer goes on with the last message", "it is sent as tokens"],
)
def test_nothing_is_prefilled_for_a_chat_whose_next_prompt_is_not_known(
    server: Server, client: openai.OpenAI, number: int, body: dict[str, Any]
) -> None:
    before = prefilled(server).answers
    messages = [*begun(number), {"role": "assistant", "content": "Well, "}]
    answered(client, messages, extra_body={**HINT, **body})
    answered(client, begun(number + 10), extra_body=HINT)
    wait_for(server, "done", before.get("done", 0.0) + 1)
    assert sum(prefilled(server).answers.values()) == sum(before.values()) + 1


def test_chats_of_anthropics_clients_are_left_alone_streamed_or_not(server: Server, client: openai.OpenAI) -> None:
    before = prefilled(server).answers
    for number, streams in ((50, False), (51, True)):
        asked = {"model": "default", "messages": begun(number), "max_tokens": 8, "stream": streams, **HINT}
        assert requests.post(f"{server.base_url}/v1/messages", json=asked, timeout=60).ok
    answered(client, begun(52), extra_body=HINT)
    wait_for(server, "done", before.get("done", 0.0) + 1)
    assert sum(prefilled(server).answers.values()) == sum(before.values()) + 1


def test_what_a_client_has_done_to_its_answer_is_not_done_to_what_is_prefilled(
    server: Server, client: openai.OpenAI
) -> None:
    """SGLang calls a processor for all requests of a batch that samples, and its own reads the client's parameters.

    What is prefilled ahead is not sampled alone. Here others come while it is, and are in the batch of its last chunk.
    """
    before = prefilled(server).answers
    messages = begun(60)
    processor = {
        "custom_logit_processor": DisallowedTokensLogitsProcessor().to_str(),
        "custom_params": {"token_ids": [1, 2, 3]},
    }
    answer = answered(client, messages, extra_body={**HINT, **processor})
    while prefilled(server).answers == before:
        time.sleep(0.05)  # a moment in which no request is in flight
        asked = {"input_ids": [60], "sampling_params": {"max_new_tokens": 1}}
        assert requests.post(f"{server.base_url}/generate", json=asked, timeout=60).ok
    assert prefilled(server).answers["done"] == before.get("done", 0.0) + 1
    cached, known = next_prompt(client, server, messages, answer)
    assert cached >= known > ANSWER
    assert server.alive()


def test_nothing_is_prefilled_while_others_are_served(server: Server, client: openai.OpenAI) -> None:
    before = prefilled(server)
    messages = begun(20)
    endless = {"ignore_eos": True}
    with client.chat.completions.create(
        model="default", messages=begun(21), max_tokens=6_000, stream=True, extra_body=endless
    ) as other:
        next(iter(other))
        answer = answered(client, messages, extra_body=HINT)
        wait_for(server, "dropped", before.answers.get("dropped", 0.0) + 1)
    cached, known = next_prompt(client, server, messages, answer)
    assert cached < known - ANSWER / 2
    now = prefilled(server)
    assert (now.answers["done"], now.tokens) == (before.answers["done"], before.tokens)


def test_a_client_cannot_say_that_its_request_is_no_turn(server: Server) -> None:
    before = look(server).ranks[0].value("requests_total") or 0.0
    forged = {"__radix_tlru": {"stamp": 0.0, "hints": None, "made_ahead": True}}
    asked = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4, "custom_params": forged}}
    assert requests.post(f"{server.base_url}/generate", json=asked, timeout=60).ok
    assert (look(server).ranks[0].value("requests_total") or 0.0) - before == 1


@pytest.mark.long
def test_a_server_that_drains_prefills_nothing_ahead() -> None:
    """What is to be prefilled waits for the answer of another, which goes on after SIGTERM."""
    ours = ("--radix-eviction", "etlru", "--tlru-prefill-ahead", "--log-requests", "--log-requests-level", "0")
    given = [*cpu_flags(small_model(), 16_000), *ours]
    with Server(given, name="test-ahead-drains", grace_s=0) as server, client_of(server) as client:

        def log() -> str:
            return server.log_path.read_text(errors="replace")

        chunks = iter(
            client.chat.completions.create(
                model="default", messages=begun(71), max_tokens=2_000, stream=True, extra_body={"ignore_eos": True}
            )
        )
        next(chunks)
        answered(client, begun(70), extra_body=HINT)
        received = log().count("Receive: obj=")
        os.kill(server.process_group, signal.SIGTERM)  # its first process alone, which asks the others to end
        assert list(chunks), "the answer of the other"
        deadline = time.monotonic() + 60
        while server.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not server.alive()
        assert "Gracefully exiting" in log()
        assert log().count("Receive: obj=") == received > 0
