"""The generated workloads: each has what it is named for, and the same seed gives the same trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.traces import GENERATORS, Request, TraceError, open_trace
from eval.traces.facts import facts
from tests.helpers.examples import examples
from tests.helpers.trace_files import refusal

SMALL = {
    "compaction": "sessions=12",
    "rewind": "sessions=120",
    "changing-system": "sessions=12",
    "parallel-tools": "sessions=12",
    "subagents": "sessions=25",
    "thinking": "sessions=150",
    "batch": "sessions=100,jobs_count=3,documents_count=40",
    "day": "sessions=300",
    "shift": "chat_sessions=200,agent_sessions=10",
}


def made(name: str, more: str = "") -> list[Request]:
    return open_trace(f"{name}:{SMALL[name]}{more}").requests


def by_conversation(requests: list[Request]) -> list[list[Request]]:
    found: dict[str | None, list[Request]] = defaultdict(list)
    for request in requests:
        found[request.conversation].append(request)
    return list(found.values())


# ---- what holds for all of them ----


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_gives_the_same_trace_in_order(name: str) -> None:
    requests = made(name)
    assert requests == made(name)
    assert requests != made(name, ",seed=1")
    assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(requests))


@pytest.mark.parametrize("name", SMALL)
def test_requests_say_whose_they_are_how_they_end_and_how_long_they_waited(name: str) -> None:
    for turns in by_conversation(made(name)):
        for request in turns:
            assert request.prompt_tokens == len(request.prompt) > 0
            assert len(request.context) == len(request.prompt) + request.output_tokens
            assert request.context.common(request.prompt) == len(request.prompt)
            assert request.stop in ("stop", "tool_calls")
            assert request.session is not None
            assert list(request.context.ends) == sorted(set(request.context.ends))
        assert turns[0].wait_s is None
        for before, after in pairwise(turns):
            assert before.answer_s is not None
            assert after.wait_s == pytest.approx(after.arrival_s - before.arrival_s - before.answer_s, abs=1e-6)
            if name != "compaction":  # where the agent asks for the summary in between
                assert after.input == ("tool" if before.stop == "tool_calls" else "user")


@pytest.mark.parametrize("name", SMALL)
def test_equal_units_end_at_equal_places(name: str) -> None:
    ends: dict[int, int] = {}
    for request in made(name):
        for unit, end in zip(request.context.ids, request.context.ends, strict=True):
            assert ends.setdefault(unit, end) == end


@pytest.mark.parametrize("name", [name for name in GENERATORS if GENERATORS[name].parameters])
def test_every_parameter_has_a_default_and_a_range(name: str) -> None:
    parameters = GENERATORS[name].parameters
    assert parameters is not None
    for field in fields(parameters):
        assert GENERATORS[name].defaults()[field.name] is field.default
        text = refusal(f"{name}:{field.name}={'9/1' if field.name.endswith('_range') else -1}")
        assert field.name in text
        assert "must be" in text


# So that any of the others may be drawn, and the trace stays small.
FEW = {"sessions": "3", "chat_sessions": "3", "agent_sessions": "1", "documents_count": "3", "calls_median": "3"}
VALUES = st.sampled_from(["0", "1", "0.5", "7", "1e9", "nan", "", "x"])


@given(name=st.sampled_from(sorted(SMALL)), values=st.dictionaries(st.integers(0, 30), VALUES, max_size=3))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_parameters_make_a_trace_or_are_refused_in_one_line(name: str, values: dict[int, str]) -> None:
    names = list(GENERATORS[name].defaults())
    few = {key: value for key, value in FEW.items() if key in names}
    chosen = {names[n % len(names)]: value for n, value in values.items()}
    text = ",".join(f"{key}={value}" for key, value in (chosen | few).items())
    refused = ""
    try:
        assert open_trace(f"{name}:{text}").requests
    except TraceError as error:
        refused = str(error)
    assert "\n" not in refused


# ---- what each is named for ----


def test_more_parameters_than_a_file_name_has_letters_are_no_file() -> None:
    given = GENERATORS["subagents"].defaults() | {"sessions": 2}
    source = "subagents:" + ",".join(f"{name}={value}" for name, value in given.items())
    assert len(source) > 255
    assert open_trace(source).requests == open_trace("subagents:sessions=2").requests


def test_a_compacted_prompt_is_short_and_shares_only_the_system_prompt() -> None:
    requests = made("compaction", ",limit_tokens=60000,kept_tokens=5000")
    fallen = [
        (before, after)
        for turns in by_conversation(requests)
        for before, after in pairwise(turns)
        if after.prompt_tokens < before.prompt_tokens
    ]
    assert len(fallen) > 5
    for before, after in fallen:
        assert before.prompt_tokens > 60_000
        assert after.prompt.common(before.context) == 15_000
        # The summary that the call before wrote, and what is kept.
        assert after.prompt_tokens == 15_000 + before.output_tokens + 5_000
    # The last prompt that fits, an answer, a result of a tool, and the instruction.
    assert max(request.prompt_tokens for request in requests) < 60_000 + 10_000 + 25_000 + 600


def test_a_rewound_prompt_goes_on_from_an_earlier_turn() -> None:
    forward = back = returned = 0
    for turns in by_conversation(made("rewind")):
        for number in range(1, len(turns)):
            earlier = [each for each in turns[:number] if turns[number].continues(each)]
            assert earlier
            if earlier[-1] is turns[number - 1]:
                forward += 1
            else:
                back += 1
                # An end of another branch that somebody has left before.
                returned += not any(after.continues(earlier[-1]) for after in turns[:number])
    assert back > 20
    assert forward > 2 * back
    assert returned > 0
    assert all(
        after.continues(before)
        for t in by_conversation(made("rewind", ",back_probability=0"))
        for before, after in pairwise(t)
    )


def test_a_changed_tail_leaves_the_head_alone_of_some_clients() -> None:
    shares = []
    for more in ("", ",clients_share=0"):
        shared = Counter(
            "head" if after.prompt.common(before.context) == 15_000 else "all"
            for turns in by_conversation(made("changing-system", more))
            for before, after in pairwise(turns)
            if after.continues(before) or after.prompt.common(before.context) == 15_000
        )
        shares.append(shared["head"] / shared.total())
    assert shares[0] == pytest.approx(0.66, abs=0.1)
    assert shares[1] == 0.0


def test_a_call_after_parallel_tools_has_the_results_of_all() -> None:
    added = Counter(
        len(after.prompt.ids) - len(before.context.ids)
        for turns in by_conversation(made("parallel-tools"))
        for before, after in pairwise(turns)
        if before.stop == "tool_calls"
    )
    assert added[1] / added.total() == pytest.approx(0.7, abs=0.06)
    assert max(added) > 3


def test_subagents_begin_with_their_parents_prefix_and_run_beside_each_other() -> None:
    requests = made("subagents")
    known = facts(requests)
    assert known.subagents > 20
    conversations = {turns[0].conversation: turns for turns in by_conversation(requests)}
    forks = beside = 0
    for turns in conversations.values():
        parent = conversations.get(turns[0].parent)
        if parent is None:
            continue
        before = [each for each in parent if each.arrival_s < turns[0].arrival_s][-1]
        after = next((each for each in parent if each.arrival_s > turns[0].arrival_s), None)
        shared = turns[0].prompt.common(before.context)
        assert shared in (15_000, len(before.context))
        forks += shared > 15_000
        if after is not None:
            last = turns[-1]
            assert after.arrival_s >= last.arrival_s + (last.answer_s or 0.0) - 1e-6
        beside += any(
            other[0].parent == turns[0].parent and other is not turns and other[0].arrival_s == turns[0].arrival_s
            for other in conversations.values()
        )
    assert forks > 0
    assert beside > 0


def test_answers_that_always_call_a_tool_end_all_the_same() -> None:
    calls = [each.stop for each in open_trace("thinking:sessions=1,tool_probability=1,follow_probability=0").requests]
    assert calls == ["tool_calls"] * 60 + ["stop"]


def test_thoughts_stay_in_a_chain_of_calls_and_leave_the_next_turn() -> None:
    chain = turn = 0
    for turns in by_conversation(made("thinking")):
        for before, after in pairwise(turns):
            assert before.thought_tokens > 0
            if before.stop == "tool_calls":
                assert after.continues(before)
                chain += 1
            else:
                assert after.prompt.common(before.context) < len(before.context) - before.thought_tokens
                turn += 1
    assert min(chain, turn) > 30


def test_batch_documents_share_instructions_and_come_once() -> None:
    requests = made("batch")
    batch = [request for request in requests if request.category == "batch"]
    assert (len(batch), len({request.conversation for request in batch})) == (120, 120)
    assert len({request.prompt.ids[0] for request in batch}) == 3
    assert len({request.prompt.ids[1] for request in batch}) == 120
    in_flight = [
        sum(other.arrival_s <= one.arrival_s < other.arrival_s + (other.answer_s or 0.0) for other in batch)
        for one in batch
    ]
    assert max(in_flight) <= 3 * 16
    assert sum(request.category == "chat" for request in requests) > 100


def test_a_day_is_busy_in_the_afternoon_and_quiet_at_night() -> None:
    requests = open_trace("day:sessions=4000").requests
    firsts = [turns[0] for turns in by_conversation(requests)]
    hours = np.histogram([request.arrival_s / 3600 for request in firsts], bins=24, range=(0, 24))[0]
    afternoon, night = hours[13:17].mean(), hours[1:5].mean()
    assert night / afternoon == pytest.approx(0.2, abs=0.06)
    assert {request.category for request in firsts} == {"agent", "chat"}


@pytest.mark.parametrize(("first", "kinds"), [(0, ("chat", "agent")), (1, ("agent", "chat"))])
def test_the_workload_changes_in_the_middle(first: int, kinds: tuple[str, str]) -> None:
    firsts = [turns[0] for turns in by_conversation(made("shift", f",agents_first={first}"))]
    before = {request.category for request in firsts if request.arrival_s < 7_200}
    after = {request.category for request in firsts if request.arrival_s >= 7_200}
    assert (before, after) == ({kinds[0]}, {kinds[1]})
