"""The rules of other engines, each beside a look at every block; and what can be said of them without one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import pytest

from eval.caches.baselines import BASELINES
from eval.caches.policies import simulated_cache
from eval.caches.real import RealCache
from eval.caches.simulator import simulate
from eval.caches.tensorrt import DEFAULT_PRIORITY, Retention, TensorRTCache
from eval.caches.vllm import VllmCache
from eval.traces.request import Request
from tests.helpers.random_traces import branching, random_tree, single_blocks

PAGE_SIZES = [1, 16, 64]


@pytest.mark.parametrize("page_size", [1, 16, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize("cache", [VllmCache, TensorRTCache])
def test_without_hints_the_rule_is_lru_by_the_page(cache: type[VllmCache | TensorRTCache], page_size: int) -> None:
    evicting = 0
    for seed in range(150):
        random = Random(seed)
        requests = random_tree(random, longest=40, page=page_size, whole_messages=True, answers="abx")
        capacity = random.randint(1, 40) * page_size
        theirs = cache(capacity, page_size)
        lru = simulated_cache("lru", capacity, threshold=0, next_prompt_estimate=0, page_size=page_size)
        for request in requests:
            assert theirs.request(request) == lru.request(request), f"{seed = }"
            assert theirs.resident == lru.resident, f"{seed = }"
        evicting += bool(lru.evicted)
    assert evicting > 100


@dataclass
class Block:
    parent: int | None
    priority: int = DEFAULT_PRIORITY
    expires_s: float = math.inf
    released: int = 0


class LookAtEveryBlock:
    """TensorRT-LLM's rule at blocks of one token."""

    def __init__(self, capacity: int, retention: Sequence[Retention]) -> None:
        self.capacity, self.retention = capacity, retention
        self.blocks: dict[int, Block] = {}
        self.releases = 0

    def request(self, request: Request) -> int:
        lapsed = [block for block in self.blocks.values() if block.expires_s <= request.arrival_s]
        for block in sorted(lapsed, key=lambda block: (block.expires_s, block.released)):
            block.priority, block.expires_s = DEFAULT_PRIORITY, math.inf
            block.released = self._release()
        path = request.context.ids[: self.capacity]
        found = list(takewhile(self.blocks.__contains__, path))
        while len(self.blocks) + len(path) - len(found) > self.capacity:
            parents = {block.parent for block in self.blocks.values()}
            leaves = [name for name in self.blocks if name not in parents and name not in found]
            del self.blocks[min(leaves, key=lambda name: (self.blocks[name].priority, self.blocks[name].released))]
        for name, parent in zip(path, (None, *path[:-1]), strict=True):
            self.blocks.setdefault(name, Block(parent))
        for depth, name in reversed(list(enumerate(path))):
            block = self.blocks[name]
            block.released, block.expires_s = self._release(), math.inf
            for hint in self.retention:
                if hint.start <= depth < (hint.end or math.inf) and depth < len(request.prompt):
                    block.priority = hint.priority
                    if hint.duration_s is not None and hint.priority != DEFAULT_PRIORITY:
                        block.expires_s = request.arrival_s + hint.duration_s
        return min(len(found), len(request.prompt))

    def _release(self) -> int:
        self.releases += 1
        return self.releases


def test_tensorrt_evicts_what_a_look_at_every_block_would() -> None:
    unlike_lru = 0
    for seed in range(300):
        random = Random(seed)
        requests, capacity = random_tree(random, longest=40, answers="abx"), random.randint(1, 40)
        first, second = sorted(random.sample(range(1, 12), 2))
        durations = [None, 0.5, 3.0, 10.0]
        hints = [
            Retention(random.randint(0, 1), first + 1, random.choice([0, 35, 60, 100]), random.choice(durations)),
            Retention(second, random.choice([None, second + 3]), random.choice([0, 80]), random.choice(durations)),
        ]
        if hints[0].end > second:  # type: ignore[operator]
            del hints[0]
        cache, model = TensorRTCache(capacity, retention=hints), LookAtEveryBlock(capacity, hints)
        lru = VllmCache(capacity)
        found = []
        for request in requests:
            found.append(cache.request(request))
            assert found[-1] == model.request(request), f"{seed = }"
            assert cache.resident == len(model.blocks), f"{seed = }"
        unlike_lru += found != simulate(lru, requests)
    assert unlike_lru > 50


def turns_of(said: Sequence[str]) -> list[Request]:
    """PrefixIndex a second apart, a letter a token, without answers."""
    return branching(said, [len(context) for context in said], whole_messages=False)


def test_a_hint_keeps_the_system_prompt_while_there_is_anything_else() -> None:
    # Of 12 tokens, "pqrst" takes 5: with LRU the oldest, c, b, a, S and Y; with the first 3 of every prompt at 100,
    # those at 35: c, b, a, w and v.
    said = ["SYSabc", "xyzuvw", "pqrst", "SYSlmn"]
    assert simulate(TensorRTCache(12), turns_of(said)) == [0, 0, 0, 1]
    assert simulate(TensorRTCache(12, retention=[Retention(0, 3, 100)]), turns_of(said)) == [0, 0, 0, 3]


@pytest.mark.parametrize(("duration_s", "found"), [(1.5, 1), (10.0, 3), (None, 3)])
def test_when_its_duration_has_passed_a_block_is_like_any_other(duration_s: float | None, found: int) -> None:
    # "SYS" came at 0 s. After 1.5 s it is at 35, and older than "uvw", which came at 2 s.
    said = ["SYSabc", "m", "xyzuvw", "pqrst", "SYSlmn"]
    cache = TensorRTCache(13, retention=[Retention(0, 3, 100, duration_s)])
    assert simulate(cache, turns_of(said))[-1] == found


def test_a_priority_below_the_default_goes_first() -> None:
    # Of 6 tokens "g" and "h" take 2: with LRU c and b; with every third token worth nothing c and f.
    said = ["abc", "def", "g", "h"]
    worthless = [Retention(2, 3, 0)]
    assert simulate(TensorRTCache(6), turns_of([*said, "abc"]))[-1] == 1
    assert simulate(TensorRTCache(6, retention=worthless), turns_of([*said, "abc"]))[-1] == 2
    assert simulate(TensorRTCache(6, retention=worthless), turns_of([*said, "def"]))[-1] == 2


def test_a_hint_is_for_the_blocks_whose_first_token_it_names() -> None:
    # Blocks of 4, three fit. Tokens 2 to 5 are the first of the second block alone: of "BBBB" at 100 and the newer
    # "CCCC" at 35 the latter goes.
    requests = turns_of(["AAAABBBB", "CCCC", "DDDD", "AAAABBBB"])
    assert simulate(TensorRTCache(12, 4), requests)[-1] == 4
    assert simulate(TensorRTCache(12, 4, [Retention(2, 6, 100)]), requests)[-1] == 8


def test_hints_are_for_prompts_not_for_answers() -> None:
    # Capacity 4. "cd" was an answer: for "ef" it goes first though the hint is for the first 4 tokens.
    requests = branching(["abcd", "ef", "abcd"], [2, 2, 4], whole_messages=False)
    assert simulate(TensorRTCache(4, retention=[Retention(0, 4, 100)]), requests) == [0, 0, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, 5, 50), "retention of tokens 5 to 5: must be a range of at least one token"),
        ((0, 5, 101), "retention priority 101: must be 0 to 100"),
        ((0, 5, 50, 0.0), "retention duration 0.0 s: must be more than 0, or None"),
    ],
)
def test_a_hint_that_cannot_be_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Retention(*arguments)


def test_hints_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="retention of tokens 0 to 10: overlaps the one from 9"):
        TensorRTCache(100, retention=[Retention(0, 10, 50), Retention(9, 20, 60)])


def test_vllm_takes_the_tail_of_what_was_used_least_recently() -> None:
    # Capacity 6: "g" takes c, "h" takes b; "ab" is then half there, and takes f.
    requests = turns_of(["abc", "def", "g", "h", "ab", "def"])
    assert simulate(VllmCache(6), requests) == [0, 0, 0, 0, 1, 2]


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_serves_a_trace(name: str) -> None:
    for seed in range(3):
        requests = random_tree(Random(seed), longest=40, page=16, whole_messages=True)
        cache = BASELINES[name](20 * 16, 5 * 16, 16, 16)
        seen: set[int] = set()
        for request in requests:
            known = sum(1 for unit in request.prompt.ids if unit in seen)
            most = request.prompt.ends[known - 1] if known else 0
            found = cache.request(request)
            assert found % 16 == 0
            assert 0 <= found <= most
            seen.update(request.context.ids)
        assert cache.request(requests[-1]) == min(len(requests[-1].prompt), 20 * 16) // 16 * 16


def test_without_priorities_sglangs_priority_is_its_lru() -> None:
    requests = random_tree(Random(0), longest=60)
    lru, priority, slru = (BASELINES[f"sglang-{name}"](30, 5, 1, 1) for name in ("lru", "priority", "slru"))
    found = simulate(lru, requests)
    assert simulate(priority, requests) == found
    assert simulate(slru, requests) != found


def test_sglangs_lfu_keeps_what_is_asked_for_often() -> None:
    # Capacity 3, single blocks. 1 has been asked for three times when 4 comes: LRU takes 1, LFU takes 2.
    requests = single_blocks([1, 1, 1, 2, 3, 4, 1])
    assert simulate(BASELINES["sglang-lru"](3, 0, 0, 1), requests)[-1] == 0
    assert simulate(BASELINES["sglang-lfu"](3, 0, 0, 1), requests)[-1] == 1


@pytest.mark.parametrize("policy", ["lru", "slru", "lfu"])
def test_a_request_uses_a_node_once_however_many_chunks_it_is_prefilled_in(policy: str) -> None:
    # Capacity 6, a node for each token. One request has used each, so the oldest goes first: "g" takes c, "h" b.
    cache = RealCache(policy, 6, stock=True, chunk=1)
    assert simulate(cache, turns_of(["abc", "def", "g", "h", "abc"])) == [0, 0, 0, 0, 1]
