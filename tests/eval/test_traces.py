"""Traces of blocks and generated ones: what is read, what is refused, and that nothing is lost on the way."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from eval.traces.synthetic import Arrivals, Stamper, Synthetic, generate
from hypothesis import given
from hypothesis import strategies as st

from eval.caches.simulator import SimulatedCache, simulate
from eval.traces import Trace, TraceError, open_trace
from eval.traces.command import facts
from eval.traces.request import Path, Request
from radix_tlru import Config, policy_for
from tests.helpers.paths import MOONCAKE

FIRST = {"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [7, 8, 9]}
SECOND = {"timestamp": 1500, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 10]}


def write(path: FilePath, *lines: Any) -> str:
    """Lines of JSON; text and bytes as they are."""
    raw = (
        line if isinstance(line, bytes) else line.encode() if isinstance(line, str) else json_line(line)
        for line in lines
    )
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return str(path)


def json_line(record: Any) -> bytes:
    return json.dumps(record).encode()


# ---- Mooncake ----


def test_full_blocks_of_the_input_are_cacheable_and_the_answer_is_not(tmp_path: FilePath) -> None:
    trace = open_trace(write(tmp_path / "blocks.jsonl", FIRST, SECOND))
    assert (trace.name, trace.format, trace.skipped) == ("blocks", "mooncake", 0)
    first, second = trace.requests
    # 1,200 tokens are two full blocks of 512 and 176 tokens of a third.
    assert (first.prompt.ids, list(first.prompt.ends)) == ((7, 8), [512, 1024])
    assert first.context is first.prompt
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens, first.conversation) == (0.0, 1200, 30, None)
    assert second.arrival_s == 1.5
    assert second.prompt.common(first.prompt) == 1024


def test_the_block_size_is_a_parameter(tmp_path: FilePath) -> None:
    line = {"timestamp": 0, "input_length": 50, "output_length": 1, "hash_ids": [1, 2, 3, 4]}
    (request,) = open_trace(write(tmp_path / "t.jsonl", line), block_size=16).requests
    assert list(request.prompt.ends) == [16, 32, 48]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 2000, "input_len', "t.jsonl:3: not JSON: Input data was truncated"),
        (SECOND | {"output_length": -1}, "t.jsonl:3: output_length: Expected `int` >= 0"),
        (SECOND | {"input_length": "12"}, "t.jsonl:3: input_length: Expected `int`, got `str`"),
        (SECOND | {"hash_ids": [7, None]}, "t.jsonl:3: hash_ids[1]: Expected `int`, got `null`"),
        (SECOND | {"timestamp": 1499}, "t.jsonl:3: timestamp: 1499 ms comes after 1500 ms"),
        (SECOND | {"hash_ids": [7]}, "t.jsonl:3: hash_ids: 1 ids, but 1100 tokens are 3 blocks of 512"),
        (SECOND | {"hash_ids": [7, 8, 10, 11]}, "t.jsonl:3: hash_ids: 4 ids, but 1100 tokens are 3 blocks of 512"),
        (SECOND | {"hash_ids": [8, 9, 10]}, "t.jsonl:3: hash_ids[0]: id 8 has two different prefixes"),
        (SECOND | {"hash_ids": [5, 5, 10]}, "t.jsonl:3: hash_ids[1]: id 5 has two different prefixes"),
        ({"timestamp": 2000}, "t.jsonl:3: Object missing required field `input_length`"),
        ([1, 2], "t.jsonl:3: Expected `object`, got `array`"),
    ],
)
def test_a_bad_line_is_named_with_its_field_or_counted(tmp_path: FilePath, line: Any, message: str) -> None:
    source = write(tmp_path / "t.jsonl", FIRST, SECOND, line, SECOND | {"timestamp": 1501})
    with pytest.raises(TraceError) as error:
        open_trace(source)
    assert str(error.value) == message
    trace = open_trace(source, skip_bad=True)
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.5, 1.501]
    assert (trace.skipped, trace.skip_reasons) == (1, (message,))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(line=st.binary() | st.fixed_dictionaries(dict.fromkeys(FIRST, JSON)).map(json_line))
def test_any_line_is_read_or_refused_in_one_line(line: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = write(tmp_path_factory.getbasetemp() / "any.jsonl", FIRST, line)
    lines = sum(bool(each.strip()) for each in (line + b"\n").split(b"\n"))
    trace = open_trace(source, skip_bad=True)
    assert trace.requests[0] == open_trace(source, limit=1).requests[0]
    assert len(trace.requests) + trace.skipped == 1 + lines
    if trace.skipped:
        with pytest.raises(TraceError) as error:
            open_trace(source)
        assert "\n" not in str(error.value)


def test_a_limit_stops_before_what_comes_later_is_looked_at(tmp_path: FilePath) -> None:
    trace = open_trace(write(tmp_path / "t.jsonl", FIRST, SECOND, "nonsense"), limit=2)
    assert (len(trace.requests), trace.skipped) == (2, 0)


@pytest.mark.skipif(not MOONCAKE.exists(), reason=f"{MOONCAKE} is not there")
def test_the_real_trace() -> None:
    trace = open_trace(str(MOONCAKE))
    known = facts(trace.requests)
    assert (trace.format, trace.skipped, known.requests) == ("mooncake", 0, 12_031)
    assert round(statistics.mean(known.prompt_tokens)) == 12_035
    assert round(statistics.mean(known.output_tokens)) == 343
    assert known.duration_s == pytest.approx(59 * 60, abs=30)
    assert known.hit_ratio == pytest.approx(0.37, abs=0.005)  # 36.6 % of the blocks, of which the last are not full
    assert statistics.median(known.waits_s) == pytest.approx(123, abs=5)


# ---- what is asked for ----


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("none.jsonl", {}, "trace none.jsonl: no such file"),
        ("synthetic", {"limit": 0}, "limit: 0 requests, must be 1 or more"),
        ("synthetic", {"block_size": 0}, "block_size: 0 tokens, must be 1 or more"),
        ("synthetic", {"characters_per_token": 0.0}, "characters_per_token: 0.0, must be a number above 0"),
        ("synthetic", {"format": "csv"}, "format csv: not one of mooncake, wildchat, sharegpt, synthetic, chat-mix, "),
        ("x.jsonl", {"format": "figure1"}, "trace x.jsonl: is not made by figure1, whose source is 'figure1'"),
        ("figure1:seed=1", {}, "figure1: 'seed=1': takes no parameters"),
        ("synthetic:birth_rate=-1", {}, "birth_rate: -1.0, must be from 1e-09 to 1e+09"),
        ("agents:runs=5,rewritten_probability=1.5", {}, "rewritten_probability: 1.5, must be from 0 to 1"),
        ("chat-mix:conversations=5,tool_probability=1", {}, "tool_probability: 1.0, must be from 0 to 0.99"),
        ("chat-mix:conversations=5,thoughts_told=2", {}, "thoughts_told: 2, must be from 0 to 1"),
        ("agents:runs=5,wait_median_s=0", {}, "wait_median_s: 0.0, must be from 1e-06 to 1e+09"),
        ("chat-mix:conversations=5,wait_median_s=0", {}, "wait_median_s: 0.0, must be from 1e-06 to 1e+09"),
        ("synthetic:prompt_lengths=5/0", {}, "prompt_lengths: 0, must be from 1 to 1e+06"),
        ("synthetic:births=1", {}, "synthetic: 'births=1' is not key=value with a key of birth_rate, "),
        ("synthetic:conversations=many", {}, "synthetic: conversations=many: Expected `int`, got `str`"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(source: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as error:
        open_trace(source, **arguments)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "trace t.jsonl: empty"),
        ('{"a": 1, "b": 2}\n', "t.jsonl:1: of no known format (mooncake, wildchat, sharegpt): a, b"),
        ("[]", "trace t.jsonl: empty"),
        ("[{}", "t.jsonl: not JSON: Expecting ',' delimiter: line 1 column 4 (char 3)"),
    ],
)
def test_a_file_of_no_known_format(
    tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(TraceError) as error:
        open_trace("t.jsonl")
    assert str(error.value) == message


def test_a_format_is_told_by_the_first_record_that_can_be_read(tmp_path: FilePath) -> None:
    source = write(tmp_path / "t.jsonl", "broken", FIRST)
    assert open_trace(source, skip_bad=True).skipped == 1
    with pytest.raises(TraceError, match=r"^t\.jsonl:1: not JSON"):
        open_trace(source)


# ---- generated ----


def test_the_same_seed_gives_the_same_trace() -> None:
    trace = open_trace("synthetic:conversations=50,seed=3")
    assert trace == open_trace("synthetic:conversations=50,seed=3")
    assert trace.requests != open_trace("synthetic:conversations=50,seed=4").requests
    assert open_trace("synthetic:conversations=50,seed=3", limit=20).requests == trace.requests[:20]


def test_more_conversations_leave_the_first_ones_as_they_were() -> None:
    few = open_trace("synthetic:conversations=50,seed=3").requests
    more = open_trace("synthetic:conversations=5000,seed=3").requests
    names = {request.conversation for request in few}
    assert few == [request for request in more if request.conversation in names]


def test_a_synthetic_trace_is_the_model() -> None:
    # Births every 2 s; a life of 300 s with a turn each 100 s: 1 + 3 turns.
    model = Synthetic(birth_rate=0.5, turn_rate=0.01, mean_life_s=300.0, conversations=10_000, seed=1)
    requests = list(generate(model))
    assert len(requests) / 10_000 == pytest.approx(4.0, rel=0.05)
    births = first_arrivals(requests)
    assert len(births) == 10_000
    assert births[-1] / 10_000 == pytest.approx(2.0, rel=0.05)
    known = facts(requests)
    assert known.conversations == 10_000
    assert statistics.mean(known.new_tokens) == pytest.approx(200, rel=0.1)
    assert statistics.mean(known.output_tokens) == pytest.approx(350, rel=0.05)
    assert {request.return_rate for request in requests} == {0.01}


def first_arrivals(requests: list[Request]) -> list[float]:
    births: dict[str | None, float] = {}
    for request in requests:
        births.setdefault(request.conversation, request.arrival_s)
    return list(births.values())


def test_each_turn_of_a_synthetic_conversation_extends_the_one_before() -> None:
    requests = open_trace("synthetic:conversations=6000,prompt_lengths=10,answer_lengths=20/40").requests
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(requests))
    contexts: dict[str | None, Path] = {}
    for request in requests:
        before = contexts.get(request.conversation, Path((), ()))
        assert request.prompt.common(before) == len(before)
        assert request.prompt_tokens == len(request.prompt) == len(before) + 10
        assert len(request.context) == len(request.prompt) + request.output_tokens
        assert request.output_tokens in (20, 40)
        contexts[request.conversation] = request.context
    units = [unit for context in contexts.values() for unit in context.ids]
    assert len(units) == len(set(units)), "conversations share a unit"


def test_rates_may_differ_between_conversations() -> None:
    rates = [request.return_rate or 0.0 for request in generate(Synthetic(turn_rate_sigma=0.5, mean_life_s=1e-6))]
    assert len(set(rates)) == 1_000  # so short a life has one turn
    assert statistics.mean(rates) == pytest.approx(1 / 120, rel=0.1)


def test_stamps_are_births_and_waits() -> None:
    stamper = Stamper(Arrivals(birth_rate=0.1, turn_rate=0.05, seed=2))
    stamped = [stamper.stamp(turns=3) for _ in range(2_000)]
    assert stamped[-1].times_s[0] / 2_000 == pytest.approx(10.0, rel=0.1)
    waits = np.diff([each.times_s for each in stamped], axis=1)
    assert waits.mean() == pytest.approx(20.0, rel=0.1)
    assert {each.return_rate for each in stamped} == {0.05}


def test_figure_1_is_what_the_paper_draws() -> None:
    trace = open_trace("figure1")
    assert [(request.conversation, request.prompt_tokens) for request in trace.requests] == [
        *(("A", 100), ("B", 100), ("A", 200), ("B", 200))
    ]
    lru, tlru = Config(policy="lru"), Config(threshold=150, next_prompt_estimate=100)
    assert cached(trace, lru)[2] == 0  # B alone is left
    assert cached(trace, tlru)[2] == 50  # 100 + 100 - 150 of each


def cached(trace: Trace, config: Config) -> list[int]:
    return simulate(SimulatedCache(policy_for(config), capacity=100, forced=False), trace.requests)


# ---- the command ----


def test_the_command_prints_a_table_and_what_was_skipped(tmp_path: FilePath) -> None:
    source = write(tmp_path / "t.jsonl", FIRST, SECOND, "broken")
    refused = command(source)
    assert (refused.returncode, refused.stderr) == (
        2,
        "eval trace: t.jsonl:3: not JSON: JSON is malformed: invalid character (byte 0)\n",
    )
    shown = command(source, "--skip-bad")
    assert shown.returncode == 0
    # The second prompt begins with both full blocks of the first: 1,024 of 1,200 + 1,100 tokens, 44.5 %.
    assert "2 requests in 1 conversations" in shown.stdout
    assert "44.5%" in shown.stdout
    assert "1 records skipped" in shown.stdout


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "eval", "trace", *arguments], capture_output=True, text=True)


def test_answers_that_are_rewritten_are_cached_otherwise_than_they_are_asked_again() -> None:
    said, rewritten = (open_trace(f"agents:runs=50,rewritten_probability={share}").requests for share in (0, 1))
    for one, other in zip(said, rewritten, strict=True):
        assert replace(one, context=other.context) == other
        assert one.context.ids[:-1] == other.context.ids[:-1]
        assert one.context.ends == other.context.ends
    asked = {unit for request in rewritten for unit in request.prompt.ids}
    assert len(rewritten) > 50
    assert not asked & {request.context.ids[-1] for request in rewritten}


def test_thoughts_are_in_the_prompts_of_a_chain_of_calls_and_in_no_other() -> None:
    chains = open_trace("chat-mix:conversations=60,thought_range=100/200,tool_probability=0.5").requests
    asked: dict[str, list[Request]] = {}
    for request in chains:
        asked.setdefault(str(request.conversation), []).append(request)
    called = said = 0
    for turns in asked.values():
        for before, after in pairwise(turns):
            shared = before.context.common(after.prompt)
            if shared == len(before.context):
                called += 1
            else:
                said += 1
                assert shared < len(before.context) - before.thought_tokens
    assert called > 30
    assert said > 30
