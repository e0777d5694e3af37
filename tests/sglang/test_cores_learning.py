"""Under policies that learn, both of SGLang's tree cores name the same victims and keep as much of each.

Hypothesis leads two caches, one on each core, through the same requests, and through whatever else moves an order:
locks, chunks, aborts, look-ups, idle moments, other thresholds, hints, sessions, prompts that are prefilled ahead.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey

from radix_tlru import Config
from radix_tlru.hints.schema import Hints
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.order import Victim
from radix_tlru.sglang import build_cache
from radix_tlru.sglang.offline import Core, Lock, OfflineCache, cache_params
from radix_tlru.sglang.releases import rust_core_refusal
from radix_tlru.sglang.requests.turns import fingerprint_of
from tests.helpers.examples import examples
from tests.helpers.rules import InTurn

if refusal := rust_core_refusal():
    pytest.skip(refusal, allow_module_level=True)

POOL, LONGEST, THRESHOLD, NEXT_PROMPT = 640, 480, 240, 24  # tokens
RUNNING = 3  # requests at a time
WARM_UP = 60  # turns: nothing is compared before 50
EXAMPLES, STEPS = 30, 80
HINTS = (
    *[None] * 4,
    Hints(conversation_ends=True),
    Hints(next_prompt_tokens=80),
    Hints(returns_in_s=20.0),
)
SEEDS = st.integers(0, 10**6)

Named = tuple[object, ...]


@dataclass
class Request:
    """A request that runs, and holds a lock on what of it is in the tree."""

    key: RadixKey
    found: int  # tokens that were cached when it came
    done: int  # tokens that are in the tree
    node: Any
    lock: Lock


def summary(conversation: Conversation | None) -> Named:
    if conversation is None:
        return ()
    turn = conversation.number, conversation.turn, conversation.context_len, conversation.reusable_len
    return (*turn, conversation.stamp, conversation.turn_index, conversation.queued_until, conversation.features)


class Victims:
    """In place of a journal: what was named, but for the ids of nodes, which are the cores' own."""

    def __init__(self) -> None:
        self.named: list[Named] = []

    def record(self, victim: Victim) -> None:
        leaf = victim.leaf
        whose = summary(leaf.conversation)
        self.named.append((leaf.start, leaf.end, leaf.history, leaf.last_access, whose, victim.keep, victim.phase))


class Served(OfflineCache):
    """A cache on one core, and its running requests. Each step returns what the cache said."""

    def __init__(self, core: Core, policy: str, page_size: int) -> None:
        given = {"next_prompt_estimate": NEXT_PROMPT} if policy == "etlru" else {}
        config = Config(policy, threshold=THRESHOLD, trim_chunk=1, **given)  # type: ignore[arg-type]
        super().__init__(build_cache(cache_params(POOL, page_size, core), config))
        self.tail, self.victims, self.running = self.cache.tail, Victims(), list[Request]()
        self.tail.journal = self.victims
        learner = self.tail.learner
        learner.rule = InTurn(list(learner.candidates), turns=2)

    def start(self, key: RadixKey) -> int:
        match = self.match(key.token_ids)
        node, found = match.last_device_node, match.device_prefix_len
        self.running.append(Request(key, found, found, node, self.lock(node)))
        return found

    def look_up(self, key: RadixKey) -> int:
        return int(self.match(key.token_ids).device_prefix_len)

    def prefill(self, number: int, share: float) -> bool:
        """Prefill some of what a request lacks."""
        request = self.running[number % len(self.running)]
        lacking = len(request.key) - request.done
        end = request.done + int(lacking * share) // self.page_size * self.page_size
        if end == request.done or not self._insert(request, end):
            return False
        self.tail._write_first_use(request.node)  # as the cache does of a request that is not finished
        return True

    def _insert(self, request: Request, end: int) -> bool:
        try:
            own = self.allocate(end - request.done)
        except MemoryError:
            return False
        slots = torch.cat([self.slots(request.node), own])
        params = InsertParams(key=request.key[:end], value=slots, prev_prefix_len=request.done)
        request.node = self.insert(params).last_device_node
        self.unlock(request.lock)
        request.done, request.lock = end, self.lock(request.node)
        return True

    def finish(self, number: int, turn: Callable[[Request], Turn], *, ahead: bool) -> bool:
        """Cache a request whole and tell of its turn; it is aborted if there is no room."""
        request = self.running.pop(number % len(self.running))
        with self.tail.step():
            fits = request.done == len(request.key) or self._insert(request, len(request.key))
            if fits:
                served = turn(request)
                prompt = request.key[: served.prompt_len].page_aligned(self.page_size)
                if 0 < len(prompt) < len(request.key):  # SGLang cached it before the answer, as a node of its own
                    slots = self.slots(request.node)[: len(prompt)]
                    self.insert(InsertParams(key=prompt, value=slots, prev_prefix_len=len(prompt)))
                if ahead:
                    self.tail.record_prefill(request.node, served)
                else:
                    self.tail.record_turn(request.node, served)
            self.unlock(request.lock)
        return fits

    def abort(self, number: int) -> None:
        self.unlock(self.running.pop(number % len(self.running)).lock)

    def press(self, tokens: int) -> bool:
        try:
            self.allocator.free(self.allocate(tokens))
        except MemoryError:
            return False
        return True

    def state(self) -> Named:
        """What must be alike, whatever the ids of the nodes."""
        leaves = [(*leaf[:4], summary(leaf.conversation)) for leaf in self.tail.leaves()]
        order, learner = self.tail.order, self.tail.learner
        free = self.allocator.available_size()
        return sorted(leaves), free, len(order), order.over_budget, order.policy.threshold, learner.in_force


class BothCores(RuleBasedStateMachine):
    """The same steps on both."""

    def __init__(self, policy: str, page_size: int, seen: Counter[str]) -> None:
        super().__init__()
        self.page_size, self.seen = page_size, seen
        cores: tuple[Core, Core] = ("rust", "python")
        self.caches = [Served(core, policy, page_size) for core in cores]
        self.contexts: list[list[int]] = [[]]
        self.stamp = 0.0

    @initialize(seed=SEEDS)
    def warm_up(self, seed: int) -> None:
        """Each two turns bring another of three candidates into force."""
        for number in range(WARM_UP + Random(seed).randrange(6)):
            self.start(number)
            self.finish(number)
            self.idle(12)

    def both(self, step: Callable[[Served], object]) -> None:
        said = [step(cache) for cache in self.caches]
        assert said[0] == said[1]
        rust, python = (cache.victims.named for cache in self.caches)
        assert rust == python
        for _, _, _, _, whose, _, phase in rust:
            self.seen[str(phase)] += 1
            self.seen["known"] += bool(whose)
        self.seen[f"by {self.caches[0].tail.learner.in_force}"] += 1
        rust.clear()
        python.clear()
        assert self.caches[0].state() == self.caches[1].state()

    @property
    def runs(self) -> int:
        return len(self.caches[0].running)

    def key(self, draw: Random) -> RadixKey:
        """It goes on with some of an earlier context, in few letters, so that nodes are split."""
        before = draw.choice(self.contexts[-12:])
        kept = draw.choice([len(before), len(before), draw.randrange(len(before) + 1)])
        more = draw.choices(range(3), k=draw.randrange(1, 120))
        self.contexts.append((before[:kept] + more)[:LONGEST])
        return RadixKey(array("q", self.contexts[-1])).page_aligned(self.page_size)

    @rule(seed=SEEDS)
    def start(self, seed: int) -> None:
        key = self.key(Random(seed))
        if len(key) and self.runs < RUNNING:
            self.both(lambda cache: cache.start(key))

    @rule(seed=SEEDS)
    def look_up(self, seed: int) -> None:
        key = self.key(Random(seed))
        if len(key):
            self.both(lambda cache: cache.look_up(key))

    @rule(seed=SEEDS)
    def prefill(self, seed: int) -> None:
        if self.runs:
            share = Random(seed).random()
            self.both(lambda cache: cache.prefill(seed, share))

    @rule(seed=SEEDS)
    def finish(self, seed: int) -> None:
        if not self.runs:
            return
        draw = Random(seed)
        self.stamp += draw.expovariate(0.3)
        said = {"hints": draw.choice(HINTS), "session": draw.choice([None, None, "one", "other"])}
        share, ahead, thought = draw.random(), draw.random() < 0.1, draw.random() < 0.3

        def turn(request: Request) -> Turn:
            length = len(request.key)
            prompt = length if ahead else max(1, math.ceil(share * length))
            answer = tuple(request.key.token_ids[prompt:])
            served = Turn(self.stamp, prompt, len(answer), length, 0, fingerprint_of(request.key), answer_ids=answer)
            return served._replace(
                cached_len=min(request.found, prompt), thought_len=len(answer) // 2 if thought else 0, **said
            )

        self.both(lambda cache: cache.finish(seed, turn, ahead=ahead))

    @rule(seed=SEEDS)
    def abort(self, seed: int) -> None:
        if self.runs:
            self.both(lambda cache: cache.abort(seed))

    @rule(tokens=st.integers(1, POOL))
    def evict(self, tokens: int) -> None:
        self.both(lambda cache: cache.evict(tokens))

    @rule(tokens=st.integers(1, POOL // 2))
    def press(self, tokens: int) -> None:
        pages = -(-tokens // self.page_size) * self.page_size
        self.both(lambda cache: cache.press(pages))

    @rule(steps=st.integers(1, 12))
    def idle(self, steps: int) -> None:
        self.both(lambda cache: [cache.cache.use_idle_time() for _ in range(steps)])

    @rule(threshold=st.integers(NEXT_PROMPT + 1, 2 * THRESHOLD))
    def move_threshold(self, threshold: int) -> None:
        self.both(lambda cache: cache.tail.use_threshold(threshold))

    def teardown(self) -> None:
        for cache in self.caches:
            while cache.running:
                cache.abort(0)
            cache.cache.sanity_check()
        self.both(lambda cache: cache.evict(POOL))
        assert self.caches[0].allocator.available_size() == POOL


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("policy", ["tlru", "etlru"])
def test_both_cores_name_the_same_victims_and_keep_the_same_of_them(policy: str, page_size: int) -> None:
    seen: Counter[str] = Counter()
    budget = settings(
        max_examples=max(examples(EXAMPLES), 5),
        stateful_step_count=STEPS,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: BothCores(policy, page_size, seen), settings=budget)
    assert min(seen[each] for each in ("tel_safe", "lru", "known", "by lru", f"by {policy}")) > 0, seen
