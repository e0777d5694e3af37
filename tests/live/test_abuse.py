"""What broken, impatient and hostile clients do to a server: it answers each as stock does, and loses nothing.

Every abuse is done to ours and to stock, which differ in the eviction alone, and its findings are compared.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import pytest
import requests

from eval.live.server import Server
from tests.helpers.models import write_weighted_model
from tests.helpers.servers import POOL, assert_all_is_given_back, complaints
from tests.helpers.talk import ANSWER, Conversation, Fields, answer_to, ask_all, have_begun

pytestmark = pytest.mark.live

Found = TypeVar("Found")
Abuse = Callable[[Server], Found]
Call = tuple[str, Fields]  # the path and what is posted there

LONG = POOL // 2
"""Tokens of an answer that is not to end by itself: it takes as many steps, and an abuse is over in a fraction."""

AT_WORK = 300
"""Tokens of each of four answers that all fit, and run at once for a while."""

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weighted_model(tmp_path_factory.mktemp("models") / "other", seed=1)


@pytest.fixture
def to_both(our_server: Server, stock_server: Server) -> Iterator[Callable[[Abuse[Any]], list[Any]]]:
    """Does it to ours and to stock at once; returns what was found at each. Afterwards both must be unharmed."""
    servers = (our_server, stock_server)
    logged = [server.log_path.stat().st_size for server in servers]

    def do(abuse: Abuse[Any]) -> list[Any]:
        with ThreadPoolExecutor(len(servers)) as pool:
            return list(pool.map(abuse, servers))

    do(Server.flush_cache)
    yield do
    do(assert_unharmed)
    for server, before in zip(servers, logged, strict=True):
        assert complaints(server, before) == []


def assert_unharmed(server: Server) -> None:
    """Every token is given back, and it serves from its cache."""
    assert server.alive()
    assert_all_is_given_back(server, POOL)
    server.flush_cache()
    conversation = Conversation(77)
    conversation.turn(server, 500)
    assert conversation.turn(server, 10) == 500 + ANSWER - 1
    server.flush_cache()


def post(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """Status and text of an answer, without what differs from one to the next: ids and times."""
    reply = requests.post(f"{server.base_url}{path}", json=body, timeout=120)
    return reply.status_code, re.sub(r'"(id|e2e_latency|[a-z_]*_time|[a-z_]*_ts)":[^,}]+', "", reply.text)


def metric(server: Server, name: str) -> int:
    """A counter of SGLang's, which is absent before the first."""
    return int(server.get_metrics().get(f"sglang:{name}_total", 0))


def bodies(count: int, prompt: int, answer: int) -> list[dict[str, Any]]:
    """So many different requests; lengths in tokens.

    No two have one id: two seconds after SGLang has streamed an answer, it aborts whoever has its id then.
    """
    sampling = {"temperature": 0.0, "max_new_tokens": answer, "ignore_eos": True}
    return [
        {"input_ids": Conversation(1_000 + n).ask(prompt), "sampling_params": sampling, "rid": f"abuse-{next(NUMBERS)}"}
        for n in range(count)
    ]


# ---- wrong requests ----

# Not among them: ids that fit into 64 bits and are outside the vocabulary. On a CPU they end a server, stock and ours
# alike, with an IndexError of the embedding.
WRONG: dict[str, dict[str, Any]] = {
    "a token of 64 bits": {"input_ids": [1, 2**63]},
    "no tokens": {"input_ids": []},
    "a megabyte of tokens": {"input_ids": [200] * 2**18},
    "a megabyte of text": {"text": "a" * 2**20},
    "a prompt larger than the pool": {"input_ids": [7] * (POOL + 1)},
    "an answer larger than the pool": {"input_ids": [7] * (POOL - 50), "sampling_params": {"max_new_tokens": 10**6}},
    "words for tokens": {"input_ids": ["one", "two"]},
    "neither text nor tokens": {},
    "both text and tokens": {"text": "a", "input_ids": [1]},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_wrong_request_is_answered_as_stock_answers_it(body: dict[str, Any], to_both: Any) -> None:
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    ours, stock = to_both(lambda server: post(server, "/generate", **{"sampling_params": sampling, **body}))
    assert ours[0] == stock[0]
    assert ours == stock or ours[0] == 200, "what is answered says how long it took"


# ---- clients that go away ----

# Says how many tokens it has, each time that some come.
CLIENT = """
import json, requests, sys
url, tokens = sys.argv[1:]
sampling = {"temperature": 0.0, "max_new_tokens": int(tokens), "ignore_eos": True}
body = {"input_ids": [*range(100, 400)], "sampling_params": sampling, "stream": True}
for line in requests.post(url, json=body, stream=True).iter_lines(chunk_size=None):
    if line.startswith(b"data: {"):
        print(len(json.loads(line.removeprefix(b"data: "))["output_ids"]), flush=True)
"""


def test_clients_killed_in_the_middle_of_an_answer_leave_nothing_behind(to_both: Any) -> None:
    clients, tokens = 3, POOL // 4
    assert clients * (300 + tokens) < POOL, "none waits for another"

    def kill_one(command: Sequence[str]) -> None:
        client = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert client.stdout is not None
        assert int(client.stdout.readline()) < tokens
        client.kill()
        said, _ = client.communicate()
        assert client.returncode == -signal.SIGKILL
        assert all(int(line) < tokens for line in said.splitlines()), "killed before the last token came"

    def kill_all(server: Server) -> int:
        before = metric(server, "num_aborted_requests")
        command = [sys.executable, "-c", CLIENT, f"{server.base_url}/generate", str(tokens)]
        with ThreadPoolExecutor(clients) as pool:  # none waits until another has begun to be answered
            list(pool.map(kill_one, [command] * clients))
        assert_all_is_given_back(server, POOL)
        return metric(server, "num_aborted_requests") - before

    assert to_both(kill_all) == [clients, clients]


def test_two_hundred_aborts_leave_nothing_behind(to_both: Any) -> None:
    """Of requests that wait, that are being prefilled, and that are being answered."""

    async def abort_all(server: Server) -> Counter[Any]:
        asked = bodies(200, 30, LONG)
        answers = asyncio.ensure_future(ask_all(server, asked))
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            left = [body["rid"] for body in asked]
            while not answers.done():
                for rid in left:
                    async with session.post(f"{server.base_url}/abort_request", json={"rid": rid}) as reply:
                        assert reply.status == 200
        return Counter(answer["meta_info"]["finish_reason"]["type"] for answer in await answers)

    found = to_both(lambda server: asyncio.run(abort_all(server)))
    assert found == [{"abort": 200}] * 2


# ---- operators in a hurry ----


def lengths(answers: Sequence[Any]) -> list[int]:
    return [len(answer["output_ids"]) for answer in answers]


async def at_work(server: Server, calls: Sequence[Call], *afterwards: Call) -> list[tuple[int, str]]:
    """What a server replies to these calls, one after another, while four answers are at work; then to the others.

    A busy machine may be through with the answers before it comes to the calls: then all of it once more.
    """

    async def call(path: str, **fields: Any) -> tuple[int, str]:
        return await asyncio.to_thread(post, server, path, **fields)

    for _ in range(10):
        begun: list[Any] = []
        answers = asyncio.ensure_future(ask_all(server, bodies(4, 100, AT_WORK), begun))
        await have_begun(begun, 4, answers)
        replies = [await call(path, **fields) for path, fields in calls]
        caught = not answers.done()
        replies += [await call(path, **fields) for path, fields in afterwards]
        assert lengths(await answers) == [AT_WORK] * 4
        if caught:
            return replies
    raise AssertionError(f"{server.base_url}: four answers of {AT_WORK} tokens were always through before the calls")


def test_a_flush_under_load_is_refused_as_stock_refuses_it(to_both: Any) -> None:
    ours, stock = to_both(lambda server: asyncio.run(at_work(server, [("/flush_cache", {})] * 5)))
    assert ours == stock
    assert [status for status, _ in ours] == [400] * 5


@pytest.mark.parametrize(("mode", "flushed"), [pytest.param("in_place", 400, marks=pytest.mark.long), ("retract", 200)])
def test_paused_answers_go_on_where_they_were(mode: str, flushed: int, to_both: Any) -> None:
    """A pause that retracts gives back all that the answers held, so that the cache can be flushed in it."""
    paused: list[Call] = [("/pause_generation", {"mode": mode}), ("/flush_cache", {})]
    ours, stock = to_both(lambda server: asyncio.run(at_work(server, paused, ("/continue_generation", {}))))
    assert ours == stock
    assert [status for status, _ in ours] == [200, flushed, 200]


def test_other_weights_forget_what_the_old_ones_computed(
    to_both: Any, weighted_model: Path, other_weights: Path
) -> None:
    """The cache is flushed with the update. One that is told to stay is found again, though it is of other weights."""
    prompt = Conversation(5).ask(300)

    def update(server: Server) -> list[Any]:
        first = answer_to(server, prompt)
        replies = [post(server, "/update_weights_from_disk", model_path=str(other_weights))]
        second = answer_to(server, prompt)
        replies.append(post(server, "/update_weights_from_disk", model_path=str(weighted_model), flush_cache=False))
        third = answer_to(server, prompt)
        return [replies, first, second, third]

    ours, stock = to_both(update)
    assert ours[0] == stock[0]
    assert [status for status, _ in ours[0]] == [200, 200]
    for mine, theirs in zip(ours[1:], stock[1:], strict=True):
        assert mine.cached_tokens == theirs.cached_tokens
        assert mine.log_probabilities == pytest.approx(theirs.log_probabilities, abs=1e-4)
    _, first, second, third = ours
    assert [answer.cached_tokens for answer in (first, second, third)] == [0, 0, len(prompt) - 1]
    assert second.log_probabilities != pytest.approx(first.log_probabilities, abs=1e-3)


def test_weights_that_are_not_there_are_refused_as_stock_refuses_them(to_both: Any, tmp_path: Path) -> None:
    ours, stock = to_both(lambda server: post(server, "/update_weights_from_disk", model_path=str(tmp_path)))
    assert ours == stock
    assert ours[0] == 400


# ---- more than fits ----


@pytest.mark.parametrize(("count", "answer"), [(48, 150), pytest.param(12, 700, marks=pytest.mark.long)])
def test_answers_that_do_not_fit_together_are_retracted_and_end_well(count: int, answer: int, to_both: Any) -> None:
    """SGLang expects of answers that they end early, and lets in more than fits; these all go on to their limit."""
    prompt = 20
    assert count * (prompt + answer) > 2 * POOL
    # One call with all prompts, so that they come together however busy the machine is: those that come while others
    # decode are let in by what is then in use. Without `ignore_eos`, which would make SGLang expect the limit: our
    # model has no token that ends an answer.
    prompts = [body["input_ids"] for body in bodies(count, prompt, answer)]
    asked = {"input_ids": prompts, "sampling_params": {"temperature": 0.0, "max_new_tokens": answer}}

    def press(server: Server) -> list[list[int]]:
        before, logged = metric(server, "num_retracted_requests"), server.log_path.stat().st_size
        answers = requests.post(f"{server.base_url}/generate", json=asked, timeout=300).json()
        assert metric(server, "num_retracted_requests") > before
        assert b"KV cache pool is full. Retract requests." in server.log_path.read_bytes()[logged:]
        return [answered["output_ids"] for answered in answers]

    ours, stock = to_both(press)
    assert ours == stock
    assert {len(answered) for answered in ours} == {answer}
