"""`etlru` in the real cache decides what it decides in the simulator, and is told the same of every request."""

from __future__ import annotations

from array import array

import pytest
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.session.session_controller import Session

from eval.caches.policies import simulated_cache
from eval.caches.real import RealCache
from eval.caches.simulator import simulate
from eval.traces import open_trace
from radix_tlru.sglang.offline import Core
from radix_tlru.sglang.releases import rust_core_refusal
from radix_tlru.sglang.requests.turns import fingerprint_of, turn_of
from tests.helpers.rules import InTurn
from tests.helpers.served import served

PAGE, NEXT_PROMPT = 16, 200

CONVERSATIONS = ("synthetic:conversations=300", 60_000, 1_024)
AGENTS = (
    "agents:runs=400,arrival_span_s=600,templates=6,template_median=400,first_prompt_median=300,next_prompt_median=150,"
    "answer_median=40",
    20_000,
    512,
)


@pytest.mark.parametrize(
    ("next_prompt", "trace", "capacity", "threshold"),
    [
        pytest.param(NEXT_PROMPT, *CONVERSATIONS, id="pinned-conversations", marks=pytest.mark.long),
        pytest.param(None, *AGENTS, id="learned-agents"),
        pytest.param(NEXT_PROMPT, *AGENTS, id="pinned-agents", marks=pytest.mark.long),
        pytest.param(None, *CONVERSATIONS, id="learned-conversations", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize(
    "core", ["python", pytest.param("rust", marks=pytest.mark.skipif(bool(rust_core_refusal()), reason="no Rust core"))]
)
def test_the_real_cache_finds_what_the_simulated_one_finds_request_by_request(
    core: Core, next_prompt: int | None, trace: str, capacity: int, threshold: int
) -> None:
    requests = open_trace(trace).requests
    sizes = {"threshold": threshold, "next_prompt_estimate": next_prompt, "page_size": PAGE}
    simulated = simulated_cache("etlru", capacity, **sizes)
    real = RealCache("etlru", capacity, core=core, **sizes)
    learner = real.cache.tail.learner
    for each in (learner, simulated.learner):
        each.rule = InTurn(list(each.candidates), 40)
    in_force = set()
    for number, (request, expected) in enumerate(zip(requests, simulate(simulated, requests), strict=True)):
        assert real.request(request) == expected, number
        in_force.add(learner.in_force)
    assert in_force == set(learner.candidates)
    assert {phase: real.cache.tail.counts[phase] for phase in simulated.evicted} == dict(simulated.evicted)


def test_a_fingerprint_is_of_the_first_tokens_in_a_namespace() -> None:
    one, other = (fingerprint_of(RadixKey(array("q", [*range(64), last]))) for last in (64, 65))
    salted = fingerprint_of(RadixKey(array("q", range(65)), cache_salt="tenant"))
    first = one(0, 64, 0)
    assert first == other(0, 64, 0) != salted(0, 64, 0)
    assert len({first, *(each(64, 65, first) for each in (one, other)), salted(64, 65, salted(0, 64, 0))}) == 4
    assert one(64, 65, first) != one(64, 65, 1), "it stands for all tokens, not for the last ones"


UNLIKE = ((None, "one tenant's"), (None, "another's"), ("an adapter", None), ("an adapter", "one tenant's"))
"""What contexts are cached under: adapter and salt."""


def test_a_turn_says_what_a_reasoning_parser_counted() -> None:
    req = served(range(400), range(80), reasoning_tokens=30, session_id="of the chat")
    turn = turn_of(req, RadixKey(array("q", range(480))), 0.0)
    assert (turn.prompt_len, turn.answer_len, turn.thought_len, turn.context_len) == (400, 80, 30, 480)
    assert tuple(turn.answer_ids[-2:]) == (78, 79), "how it ends"
    assert (turn.session, turn.finish) == ("of the chat", "length")
    streamed = served(range(400), range(80), session=Session(1_000, "that is streamed"))
    assert turn_of(streamed, RadixKey(array("q", range(480))), 0.0).session == "that is streamed"
    salted = [turn_of(req, RadixKey(array("q", range(480)), adapter, cache_salt=salt), 0.0) for adapter, salt in UNLIKE]
    assert turn.namespace == 0
    assert len({0, *(each.namespace for each in salted)}) == 1 + len(UNLIKE), "each is a namespace of its own"


def test_tokens_of_speculative_decoding_after_the_stop_are_no_part_of_the_answer() -> None:
    """The client has 11, 12 and 2, which ends the answer; SGLang caches 20 tokens of prompt and these three."""
    req = served(range(20), [11, 12, 2, 77, 78], stop=2, reasoning_tokens=5)
    turn = turn_of(req, RadixKey(array("q", range(23))), 0.0, call_tokens=[77])
    assert (turn.answer_len, turn.thought_len, turn.context_len) == (3, 3, 23)
    assert tuple(turn.answer_ids) == (11, 12, 2)
    assert turn.finish == "stop", "no call of a tool was sent"


def test_a_request_that_began_anew_found_no_more_than_its_prompt() -> None:
    """SGLang retracts one when the pool is full, and looks it up later with what it has answered so far."""
    req = served(range(20), [11, 12], cached_tokens=21)
    assert turn_of(req, RadixKey(array("q", range(22))), 0.0).cached_len == 20
