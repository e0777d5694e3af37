"""The older generated workloads: the paper's model, the chat mix, agents, and Figure 1."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from eval.caches.simulator import SimulatedCache, simulate
from eval.traces import Arrivals, Path, Request, Synthetic, Trace, open_trace
from eval.traces.arrivals import Stamper
from eval.traces.facts import facts
from eval.traces.generators import synthetic
from radix_tlru import Config, policy_for
from tests.helpers.trace_files import refusal


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
    requests = list(synthetic.generate(model))
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
    rates = [
        request.return_rate or 0.0 for request in synthetic.generate(Synthetic(turn_rate_sigma=0.5, mean_life_s=1e-6))
    ]
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


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("figure1:seed=1", "figure1: 'seed=1': takes no parameters"),
        ("synthetic:birth_rate=-1", "birth_rate: -1.0, must be from 1e-09 to 1e+09"),
        ("agents:runs=5,rewritten_probability=1.5", "rewritten_probability: 1.5, must be from 0 to 1"),
        ("chat-mix:conversations=5,tool_probability=1", "tool_probability: 1.0, must be from 0 to 0.99"),
        ("chat-mix:conversations=5,thoughts_told=2", "thoughts_told: 2, must be from 0 to 1"),
        ("chat-mix:answer_range=9/3", "answer_range: 9/3, must be low/high from 1 to 1000000"),
        ("agents:runs=5,wait_median_s=0", "wait_median_s: 0.0, must be from 1e-06 to 1e+09"),
        ("chat-mix:conversations=5,wait_median_s=0", "wait_median_s: 0.0, must be from 1e-06 to 1e+09"),
        ("synthetic:prompt_lengths=5/0", "prompt_lengths: 0, must be from 1 to 1e+06"),
        ("synthetic:births=1", "synthetic: 'births=1' is not key=value with a key of birth_rate, "),
        ("synthetic:conversations=many", "synthetic: conversations=many: must be a whole number"),
        ("synthetic:conversations=2.5,seed=1", "synthetic: conversations=2.5: must be a whole number"),
        ("synthetic:conversations=0", "conversations: 0, must be from 1 to 1e+09"),
        ("synthetic:birth_rate=often", "synthetic: birth_rate=often: must be a number"),
        ("synthetic:prompt_lengths=5/x", "synthetic: prompt_lengths=5/x: must be whole numbers"),
        ("chat-mix:answer_range=1/2.5", "chat-mix: answer_range=1/2.5: must be whole numbers"),
    ],
)
def test_a_parameter_that_cannot_be_is_refused_with_what_can(source: str, message: str) -> None:
    assert message in refusal(source)
