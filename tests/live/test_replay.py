"""`python -m eval replay` against real servers: side by side, cut off, killed, and gone on with."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval.__main__ import main
from eval.live.replay.load import load_from
from eval.live.replay.play import NOT_SENT, play
from eval.live.replay.predict import fitted_line, measured_points, predict
from eval.live.replay.probe import warm_up
from eval.live.replay.prompts import Api
from eval.live.replay.rows import Folder
from eval.live.replay.schedule import Pace
from eval.live.replay.turns import Conversation, Load, Segment, Turn
from eval.live.server import Server, live_members
from eval.traces import open_trace
from eval.traces.facts import facts as trace_facts
from tests.helpers.servers import NEXT_PROMPT, POOL, THRESHOLD

pytestmark = pytest.mark.live

# In prompts that are prefilled in one piece; the whole mix is twice the pool.
FEW = "chat-mix:conversations=3,arrival_span_s=2,first_prompt_range=100/1500,wait_median_s=0.3,answer_range=2/8"
MIX = FEW.replace("=3", "=16", 1)
OBJECTIVE = ("--threshold", str(THRESHOLD), "--next-prompt-estimate", str(NEXT_PROMPT))


def arguments(*arms: str, out: Path, trace: str = FEW) -> list[str]:
    return ["--trace", trace, "--loop", "ordered", "--users", "1", *OBJECTIVE, *arms, "--out", str(out)]


@pytest.mark.long
@pytest.mark.parametrize(("repeats", "how"), [(1, ["--in-turn"]), (2, [])])
def test_two_servers_side_by_side_and_the_simulator_agrees(
    stock_server: Server,
    our_server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    repeats: int,
    how: list[str],
) -> None:
    arms = ("--url", f"stock lru={stock_server.base_url}", "--url", f"ours={our_server.base_url}", *how)
    assert main(["replay", *arguments(*arms, out=tmp_path, trace=MIX), "--repeats", str(repeats)]) == 0
    printed = capsys.readouterr().out
    assert "The tail of ours against stock lru: TTFT p95" in printed
    assert "The median" in printed

    folder = Folder(tmp_path)
    requests = open_trace(MIX).requests
    load = load_from(requests)
    assert trace_facts(requests).distinct_tokens > 2 * POOL
    assert [(part.repeat, part.arm) for part in folder.parts] == list(folder.order())
    for arm, policy in (("stock lru", "lru"), ("ours", "radix_tlru")):
        facts = folder.facts(arm)
        assert facts is not None
        assert (facts.policy, facts.pool, facts.page_size) == (policy, POOL, 1)
        for repeat in range(repeats):
            rows = folder.rows(arm, repeat)
            assert len(rows) == len(requests)
            assert all(row.error is None and row.ttft_ms for row in rows)
    assert all(len(part.prefill_alone_ms) == 2 and min(part.prefill_alone_ms) > 0 for part in folder.parts)
    assert "A prompt of 1,024 tokens alone" in printed
    assert folder.facts("ours").threshold == THRESHOLD  # type: ignore[union-attr]
    assert all(part.metrics["sglang:num_requests_total"] >= len(requests) for part in folder.parts)
    assert any(
        part.metrics.get("sglang:tlru_evicted_tokens_total", 0) > 0 for part in folder.parts if part.arm == "ours"
    )

    timing = fitted_line(measured_points(folder))
    assert timing is not None
    predictions, not_made = predict(folder, load, timing)
    assert not not_made
    for one in predictions:
        # One at a time, so that nothing is locked but what is served: token for token what the simulator says.
        assert one.same_tokens == 1.0, one
        assert one.uncached == one.predicted_uncached
    page = (tmp_path / "replay.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3
    assert all(
        (tmp_path / "figures" / f"{name}.png").stat().st_size > 10_000 for name in ("ttft", "line", "percentiles")
    )
    assert "(R² " in page


def test_a_block_trace_hits_where_its_blocks_are_equal(our_server: Server, tmp_path: Path) -> None:
    lines = [
        {"timestamp": 0, "input_length": 70, "output_length": 4, "hash_ids": [1, 2, 3, 4, 5]},
        {"timestamp": 300, "input_length": 90, "output_length": 4, "hash_ids": [1, 2, 3, 4, 6, 7]},
        {"timestamp": 600, "input_length": 40, "output_length": 4, "hash_ids": [1, 2, 8]},
    ]
    trace = tmp_path / "blocks.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "run"
    words = ["--trace", str(trace), "--block-size", "16", "--url", f"ours={our_server.base_url}", "--out", str(out)]
    assert main(["replay", *words]) == 0
    before = (out / "parts.jsonl").read_bytes()
    assert main(["replay", *words]) == 0
    assert (out / "parts.jsonl").read_bytes() == before, "what is there is not played again"
    rows = Folder(out).rows("ours", 0)
    # At page size 1 a block of its own may begin with the same token, by one chance in 256.
    assert [row.prompt_tokens for row in rows] == [70, 90, 40]
    assert [row.cached_tokens // 16 for row in rows] == [0, 4, 2]


def agent_call(
    at_ms: int, session: int, agent: int, blocks: Sequence[int], tokens: int, answer: int, stop: str = "tool_use"
) -> dict[str, object]:
    """A line of the flat format of agent sessions, in blocks of 16 tokens."""
    told = {"session": session, "agent": agent, "stop": stop, "input_types": ["text"]}
    return {"timestamp": at_ms, "input_length": tokens, "output_length": answer, "hash_ids": [*blocks], **told}


def test_agent_sessions_are_played_as_they_were(our_server: Server, tmp_path: Path) -> None:
    """The trace tells no ends of answers: they take 20 ms a token."""
    lines = [
        agent_call(0, 0, 0, range(13), 200, 10),  # the main agent; ends at 0.2 s
        agent_call(100, 1, 0, range(50, 56), 90, 5),  # another session; ends at 0.2 s
        agent_call(500, 0, 1, range(100, 120), 320, 40),  # a subagent; ends at 1.3 s
        agent_call(500, 0, 2, range(200, 217), 260, 30),  # beside another one; ends at 1.1 s
        agent_call(1000, 1, 0, range(50, 60), 150, 4, "end_turn"),
        agent_call(1400, 0, 1, range(100, 125), 400, 6, "end_turn"),  # ends at 1.52 s
        agent_call(2000, 0, 0, [*range(12), *range(20, 28)], 310, 8, "end_turn"),
    ]
    trace = tmp_path / "agents.jsonl"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "run"
    words = ["--trace", str(trace), "--block-size", "16", "--url", f"ours={our_server.base_url}", "--out", str(out)]
    assert main(["replay", *words]) == 0

    folder = Folder(out)
    rows = {(row.conversation, row.turn): row for row in folder.rows("ours", 0)}
    main_agent, other, first, second = range(4)
    order = [(0, 0), (1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (0, 1)]  # of the trace
    assert all(row.error is None for row in rows.values())
    assert [rows[one].output_tokens for one in order] == [line["output_length"] for line in lines]
    assert [rows[one].prompt_tokens for one in order] == [line["input_length"] for line in lines]
    assert {row.session for row in rows.values() if row.conversation != other} == {main_agent}

    waits_s = {
        ((main_agent, 0), (first, 0)): 0.3,
        ((main_agent, 0), (second, 0)): 0.3,
        ((other, 0), (other, 1)): 0.8,
        ((first, 0), (first, 1)): 0.1,
        ((first, 1), (main_agent, 1)): 0.48,
        ((second, 0), (main_agent, 1)): 0.48,
    }
    ends_s = {one: row.sent_s + row.e2e_ms / 1000 for one, row in rows.items()}
    for (before, after), wait_s in waits_s.items():
        assert rows[after].sent_s >= ends_s[before] + wait_s - 2e-4, "rows are rounded to 0.1 ms"
    assert rows[other, 0].sent_s >= 0.1
    assert max(rows[one, 0].sent_s for one in (first, second)) < min(ends_s[one, 0] for one in (first, second))

    for row in rows.values():
        assert row.ttft_ms is not None
        assert 0 < row.ttft_ms <= row.e2e_ms
        assert len(row.itl_ms) < row.output_tokens, "tokens of the first event have no time of their own"
        assert min(row.itl_ms, default=1.0) > 0
        assert row.tokens_per_s == pytest.approx(row.output_tokens / row.e2e_ms * 1000, abs=0.01)
    # A busy server may send an answer's first tokens in one event, but not most of all answers.
    dated, tokens = sum(len(row.itl_ms) for row in rows.values()), sum(row.output_tokens - 1 for row in rows.values())
    assert tokens / 2 < dated <= tokens
    # Of 12 blocks of the first prompt all are in the last one.
    assert rows[main_agent, 1].cached_tokens // 16 == 12

    table = (out / "table.md").read_text()
    shown = [f"{name} p{p} (ms)" for name in ("TTFT", "ITL") for p in (50, 95, 99)]
    for title in (*shown, "output tokens / s", "hit ratio"):
        assert f"| {title} | " in table
        assert title in (out / "replay.html").read_text()
    (arm,) = [json.loads(line) for line in (out / "arms.jsonl").read_text().splitlines()]
    assert {"itl_p50", "itl_p95", "itl_p99", "ttft_p50", "ttft_p95", "ttft_p99", "hit_ratio"} <= set(arm["figures"])
    assert arm["tokens_per_s"] == pytest.approx(
        sum(row.output_tokens for row in rows.values()) / folder.parts[0].seconds
    )


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    """As from a terminal: what a shell runs in the background ignores an interrupt, and all that it starts does."""
    return subprocess.Popen(
        [sys.executable, "-m", "eval", "replay", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for_rows(
    path: Path, rows: int, process: subprocess.Popen[str] | None = None, patience_s: float = 240.0
) -> None:
    deadline = time.monotonic() + patience_s
    while not path.is_file() or path.read_bytes().count(b"\n") < rows:
        assert process is None or process.poll() is None, process.communicate()[1][-2000:]
        assert time.monotonic() < deadline, "no rows came"
        time.sleep(0.02)


TRIES = 10
"""A machine that stalls may play a whole run between two looks at its rows, before it is cut off: then once more."""


def test_a_client_that_is_cut_off_says_what_is_missing_and_goes_on(our_server: Server, tmp_path: Path) -> None:
    for number in range(TRIES):
        out = tmp_path / f"{number}"
        words = arguments("--url", f"ours={our_server.base_url}", out=out)
        process = start(words)
        rows = out / "rows" / "0-ours.jsonl"
        wait_for_rows(rows, 3, process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        if Folder(out).missing:
            break
    assert process.returncode == 130
    assert "missing: ours #1" in errors
    assert "the same command plays what is missing" in errors
    assert "Traceback" not in errors
    kept = rows.read_bytes()
    assert kept.count(b"\n") >= 3
    assert main(["replay", *words]) == 0
    assert (out / "rows" / "0-ours.cut-off-1.jsonl").read_bytes() == kept
    assert Folder(out).missing == []


@pytest.mark.long
def test_a_server_that_is_killed_is_named_and_the_next_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched: list[Server] = []
    launch = Server.launch
    monkeypatch.setattr(Server, "launch", lambda server: (launched.append(server), launch(server)))

    def kill(rows: Path) -> int:
        wait_for_rows(rows, 3)
        with contextlib.suppress(ProcessLookupError):  # it has ended, as all was played
            os.killpg(launched[-1].process_group, signal.SIGKILL)
        return launched[-1].process_group

    for number in range(TRIES):
        out = tmp_path / f"{number}"
        words = [*arguments("--arm", "ours=--radix-eviction tlru", out=out), "--pool", str(POOL), "--retries", "0"]
        with ThreadPoolExecutor(1) as killer:
            killed = killer.submit(kill, out / "rows" / "0-ours.jsonl")
            status = main(["replay", *words])
        assert live_members(killed.result()) == []
        errors = capsys.readouterr().err
        if Folder(out).missing:
            break
    assert status == 1
    assert "ours, repeat 1: the server ended while it served" in errors
    assert "missing: ours #1" in errors
    assert "Traceback" not in errors
    assert main(["replay", *words]) == 0
    assert Folder(out).missing == []
    facts = Folder(out).facts("ours")
    assert facts is not None
    assert (facts.eviction, facts.median_weight, facts.learns, facts.moves) == ("tlru", 0.0, True, True)


LONG_ANSWER = 100
"""Tokens. A busy server may send as many at once as it steps while it waits for the processor, but not so many."""


@pytest.mark.parametrize("api", ["generate", "chat"])
def test_a_real_server_plays_two_turns_and_reuses_the_first(stock_server: Server, api: Api) -> None:
    turns = tuple(Turn((Segment(n, new),), False, LONG_ANSWER, 0.1) for n, new in ((1, 200), (2, 50)))
    warm_up(stock_server.base_url)
    stock_server.flush_cache()
    sent = play(stock_server.base_url, Load((Conversation(0, 0.0, turns),), seed=5), Pace(), api=api)
    first, second = (one.result for one in sent)
    assert (first.error, second.error) == (None, None)
    assert first.cached_tokens == 0, "the cache was not flushed after the warm-up"
    assert (first.output_tokens, second.output_tokens) == (LONG_ANSWER, LONG_ANSWER)
    if api == "generate":
        assert (first.prompt_tokens, second.prompt_tokens) == (200, 200 + LONG_ANSWER + 50)
        assert second.cached_tokens == 200 + LONG_ANSWER - 1  # the last answer token was never an input
    else:
        assert second.cached_tokens >= 200, "the first question is in the second prompt"
    assert all(0 < (result.ttft_ms or 0) <= result.e2e_ms for result in (first, second))
    assert all(result.itl_ms and min(result.itl_ms) > 0 for result in (first, second))

    too_long = (Turn((Segment(3, 5000),), False, 8, 0.0), turns[1])
    failed, not_sent = play(stock_server.base_url, Load((Conversation(1, 0.0, too_long),)), Pace(), api=api)
    assert "50" in (failed.result.error or "")
    assert not_sent.result.error == NOT_SENT
