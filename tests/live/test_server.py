"""A real server with our eviction: what the next turn finds, what the operator sees, and what a crowd does to it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from eval.live.replay.client import Request, RequestResult, send
from eval.live.server import Server, live_members
from radix_tlru.cli import main
from radix_tlru.tools.scrape import scrape
from tests.helpers.models import small_model
from tests.helpers.runs import Run
from tests.helpers.servers import (
    CHUNK,
    NEXT_PROMPT,
    PAGE_SIZE,
    PAGED_POOL,
    POOL,
    PRIORITY,
    THRESHOLD,
    assert_all_is_given_back,
    complaints,
)
from tests.helpers.talk import ANSWER, A, B, C, Conversation, answer_to

pytestmark = pytest.mark.live

CACHED_A, CACHED_B, CACHED_C = (tokens + ANSWER - 1 for tokens in (A, B, C))
TOO_MANY = CACHED_A + CACHED_B + CACHED_C - POOL


def talk(server: Server) -> tuple[Conversation, Conversation, Conversation]:
    """A, B and C on an empty cache."""
    server.flush_cache()
    a, b, c = map(Conversation, range(3))
    assert (a.turn(server, A), b.turn(server, B), c.turn(server, C)) == (0, 0, 0)
    return a, b, c


def test_a_trimmed_conversation_finds_what_was_not_taken(our_server: Server) -> None:
    # A keeps at least 2,007 + 100 - 600 = 1,507, so all that is too many can come off its tail: 2,007 - 421 = 1,586.
    assert CACHED_A - TOO_MANY == 1_586 >= CACHED_A + NEXT_PROMPT - THRESHOLD
    a, _, _ = talk(our_server)
    assert a.turn(our_server, 100) == CACHED_A - TOO_MANY


def test_stock_lru_finds_nothing(stock_server: Server) -> None:
    assert CHUNK >= A  # in chunks, each chunk is a node, and stock takes only as many of them as it needs
    a, _, c = talk(stock_server)
    assert (a.turn(stock_server, 100), c.turn(stock_server, 100)) == (0, CACHED_C)


def test_a_trim_is_whole_pages(paged_server: Server) -> None:
    a, b = CACHED_A // PAGE_SIZE, CACHED_B // PAGE_SIZE  # 125 and 94 pages
    c = -(-CACHED_C // PAGE_SIZE)  # 57 while it is answered, the last of them not full
    spare = 1  # that SGLang wants free before each step of an answer, in case it begins a new page
    kept = PAGED_POOL // PAGE_SIZE - b - c - spare
    assert kept == 104 < a
    conversation, _, _ = talk(paged_server)
    assert conversation.turn(paged_server, 100) == kept * PAGE_SIZE


def test_an_answer_on_a_trimmed_history_is_what_stock_answers(our_server: Server, stock_server: Server) -> None:
    prompt = Conversation(0).ask(A) + Conversation(4).ask(100)
    for server in (our_server, stock_server):
        talk(server)
    ours, stock = answer_to(our_server, prompt), answer_to(stock_server, prompt)
    assert (ours.cached_tokens, stock.cached_tokens) == (CACHED_A - TOO_MANY, 0)
    assert ours.log_probabilities == pytest.approx(stock.log_probabilities, abs=1e-4)
    # They would differ if what is cached were not what was said: the same, but for one token in the middle of it.
    prompt = (*prompt[: A // 2], prompt[A // 2] ^ 1, *prompt[A // 2 + 1 :])
    assert answer_to(our_server, prompt).log_probabilities != pytest.approx(stock.log_probabilities, abs=1e-3)


def evicted_in(server: Server, phase: str) -> int:
    """Tokens evicted in one phase since the server started."""
    families = text_string_to_metric_families(server.metrics_text())
    samples = {
        (sample.name, sample.labels.get("phase")): sample.value for family in families for sample in family.samples
    }
    return int(samples["sglang:tlru_evicted_tokens_total", phase])


@dataclass(frozen=True)
class Evicted:
    """Counters of evicted tokens, and of the splits made to evict."""

    tel_safe: int
    lru: int
    splits: int
    by_sglang: int  # SGLang's own count

    @classmethod
    def of(cls, server: Server) -> Evicted:
        metrics = server.get_metrics()
        return cls(
            evicted_in(server, "tel_safe"),
            evicted_in(server, "lru"),
            splits=int(metrics["sglang:tlru_splits_total"]),
            by_sglang=int(metrics.get("sglang:evicted_tokens_total", 0)),  # absent before the first
        )

    def __sub__(self, before: Evicted) -> Evicted:
        return Evicted(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))


def test_the_operator_sees_what_was_evicted_and_why(our_server: Server) -> None:
    assert our_server.get_metrics()["sglang:tlru_threshold_tokens"] == THRESHOLD
    before = Evicted.of(our_server)
    talk(our_server)
    trimmed = Evicted.of(our_server) - before
    assert (trimmed.tel_safe, trimmed.lru, trimmed.by_sglang) == (TOO_MANY, 0, TOO_MANY)
    assert trimmed.splits > 0

    # D needs 2,507 of a full pool. Safe are 79 of A (beyond 1,507), 500 of B and 500 of C; the rest is A's, the oldest.
    before, d = Evicted.of(our_server), 2_500
    safe = (CACHED_A - TOO_MANY) - (CACHED_A + NEXT_PROMPT - THRESHOLD) + 2 * (THRESHOLD - NEXT_PROMPT)
    assert safe == 1_079
    Conversation(3).turn(our_server, d)
    pressed = Evicted.of(our_server) - before
    assert (pressed.tel_safe, pressed.lru) == (safe, d + ANSWER - 1 - safe)
    assert pressed.by_sglang == pressed.tel_safe + pressed.lru


def test_a_flush_empties_it(our_server: Server) -> None:
    a, _, _ = talk(our_server)
    our_server.flush_cache()
    assert a.turn(our_server, 100) == 0
    assert_all_is_given_back(our_server, POOL)


def test_the_operator_sees_the_leaves_that_could_go(our_server: Server) -> None:
    talk(our_server)
    metrics = our_server.get_metrics()
    assert metrics["sglang:tlru_evictable_leaves"] == 3
    assert metrics["sglang:tlru_over_budget_tokens"] == 79 + 500 + 500  # of A, of B and of C


def test_the_operator_sees_no_leaves_after_a_flush(our_server: Server) -> None:
    talk(our_server)
    our_server.flush_cache()
    metrics = our_server.get_metrics()
    assert metrics["sglang:tlru_evictable_leaves"] == metrics["sglang:tlru_over_budget_tokens"] == 0


def test_the_operator_sees_what_requests_had_to_prefill_beyond_the_threshold(our_server: Server) -> None:
    def spent() -> list[float]:
        metrics = our_server.get_metrics()
        return [metrics[f"sglang:tlru_{name}_total"] for name in ("requests", "violations", "excess_tokens")]

    before = spent()
    a, _, _ = talk(our_server)
    found = a.turn(our_server, 1_000)
    more = [now - then for now, then in zip(spent(), before, strict=True)]
    prefilled = [A, B, C, CACHED_A + 1 + 1_000 - found]
    assert more == [4, 4, sum(tokens - THRESHOLD for tokens in prefilled)]


def test_top_shows_a_server_of_ours_and_says_what_a_stock_one_lacks(
    our_server: Server, stock_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation, deadline = Conversation(9), time.monotonic() + 60
    our_server.flush_cache()
    assert scrape(our_server.base_url).ranks[0].by("next_victim_cached_tokens", "position")["1"] == 0
    while time.monotonic() < deadline:  # the next victims are looked up no more often than is cheap
        conversation.turn(our_server, 10)
        (rank,) = scrape(our_server.base_url).ranks
        cached = rank.by("next_victim_cached_tokens", "position")["1"]
        if cached > 0:
            break
    assert 0 < cached <= len(conversation.history)
    assert rank.policy == "tlru"
    assert main(["top", our_server.base_url, "--once"]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # the last column has several lines
    assert f"{THRESHOLD} tokens" in shown
    assert "the longest unused" in shown or "TEL-safe: with what stays" in shown
    assert main(["top", stock_server.base_url, "--once"]) == 2
    assert capsys.readouterr().err.endswith("stock eviction; start one with --radix-eviction etlru --enable-metrics\n")


CLIENTS, TURNS = 64, 3


async def crowd(server: Server, clients: int) -> list[RequestResult | None]:
    """64 clients at once, 3 turns each; a None for each of the 64 streams that its client cut off mid-answer."""
    # A connection each: the server closes one that was idle for 5 s, maybe just as the client takes it up again.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300), connector=connector) as session:

        async def client(number: int) -> list[RequestResult | None]:
            conversation, results = Conversation(100 + number), []
            for turn in range(TURNS):
                prompt = conversation.ask(random.Random(number + turn).randrange(20, 400))
                if (number + turn) % TURNS == 0:
                    answer = await cut_off(session, server, prompt)
                    results.append(None)
                else:
                    result = await send(session, server.base_url, Request(number, turn, prompt, 2 * ANSWER))
                    answer = result.output_ids
                    results.append(result)
                conversation.history += answer
            return results

        return [result for results in await asyncio.gather(*map(client, range(clients))) for result in results]


async def cut_off(session: aiohttp.ClientSession, server: Server, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """Ask for an answer that would fill the pool and hang up after some of its tokens; returns those."""
    sampling = {"temperature": 0.0, "max_new_tokens": POOL // 2, "ignore_eos": True}
    body = {"input_ids": prompt, "stream": True, "sampling_params": sampling}
    async with session.post(f"{server.base_url}/generate", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                output: list[int] = json.loads(line.removeprefix(b"data: "))["output_ids"]
                if len(output) > 3:
                    return tuple(output)
    raise AssertionError("the stream ended before it was cut off")


@pytest.mark.parametrize(
    ("name", "pool", "page_size", "clients"),
    [
        ("paged_server", PAGED_POOL, 16, CLIENTS // 2),
        pytest.param("paged_server", PAGED_POOL, 16, CLIENTS, marks=pytest.mark.long),
        pytest.param("our_server", POOL, 1, CLIENTS, marks=pytest.mark.long),
    ],
)
def test_a_crowd_is_served_and_nothing_is_lost(
    name: str, pool: int, page_size: int, clients: int, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(name)
    server.flush_cache()
    before, aborted = Evicted.of(server), server.get_metrics().get("sglang:num_aborted_requests_total", 0)
    results = asyncio.run(crowd(server, clients))
    served = [result for result in results if result is not None]
    assert [result.error for result in served] == [None] * (clients * (TURNS - 1))
    assert results.count(None) == clients
    assert_all_is_given_back(server, pool)
    assert server.get_metrics()["sglang:num_aborted_requests_total"] == aborted + clients
    evicted = Evicted.of(server) - before
    assert min(evicted.tel_safe, evicted.lru, evicted.splits) > 0
    assert evicted.by_sglang == evicted.tel_safe + evicted.lru
    assert any(result.cached_tokens for result in served)
    assert {result.cached_tokens % page_size for result in served} == {0}

    # It is the same server still: it answers, from its cache, and never had anything to say against itself.
    conversation = Conversation(99)
    conversation.turn(server, 500)
    assert conversation.turn(server, 10) == (500 + ANSWER - 1) // page_size * page_size
    assert complaints(server) == []


CACHE_OF = "Tree cache initialized: source={} impl={} "


def test_the_log_says_which_cache_it_is(our_server: Server, paged_server: Server, stock_server: Server) -> None:
    ours, paged, stock = (s.log_path.read_text(errors="replace") for s in (our_server, paged_server, stock_server))
    prompts = f"next_prompt_estimate={NEXT_PROMPT} tokens, median_weight=0, trim_chunk=1 tokens"
    for log, page_size, more in ((ours, 1, f", priority={PRIORITY}"), (paged, PAGE_SIZE, "")):
        settings = f"(threshold={THRESHOLD} tokens, {prompts}{more})"
        assert CACHE_OF.format("registered('radix_tlru')", "TailRadixCache") in log
        assert f"radix_tlru: evicting by tlru {settings}, page size {page_size}" in log
    assert not our_server.server_info()["disable_overlap_schedule"]
    assert CACHE_OF.format("default", "UnifiedRadixCache") in stock
    assert "radix_tlru:" not in stock
    assert not [name for name in stock_server.get_metrics() if "tlru" in name]


ENGINE = """
import json, sys
import sglang

if __name__ == "__main__":
    arguments, prompts, sampling = json.loads(sys.argv[1])
    engine = sglang.Engine(**arguments)
    turns = [engine.generate(input_ids=prompt, sampling_params=sampling) for prompt in prompts]
    again = prompts[0] + turns[0]["output_ids"] + prompts[1][:100]
    turns.append(engine.generate(input_ids=again, sampling_params=sampling))
    engine.shutdown()
    print(json.dumps([turn["meta_info"]["cached_tokens"] for turn in turns]))
"""


def test_an_engine_in_python_evicts_alike_and_leaves_nothing_running(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    arguments = {
        "model_path": str(small_model()),
        "load_format": "dummy",
        "device": "cpu",
        "dtype": "float32",
        "max_total_tokens": POOL,
        "chunked_prefill_size": CHUNK,
        "radix_eviction": "tlru",
        "tlru_threshold": THRESHOLD,
        "tlru_next_prompt_estimate": NEXT_PROMPT,
        "log_level": "info",
    }
    prompts = [Conversation(seed).ask(tokens) for seed, tokens in enumerate((A, B, C))]
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    engine = Run(tmp_path, str(script), json.dumps([arguments, prompts, sampling]))
    try:
        status, printed = engine.wait()
        assert status == 0, printed
        assert live_members(engine.pid) == []
        assert str([0, 0, 0, CACHED_A - TOO_MANY]) in printed.splitlines()
        assert CACHE_OF.format("registered('radix_tlru')", "TailRadixCache") in printed
    finally:
        for left in live_members(engine.pid):
            os.kill(left, signal.SIGKILL)
