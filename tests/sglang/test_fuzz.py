"""Any order of any steps of a scheduler: after each of them the cache is audited, and nothing is lost.

Hypothesis looks for the sequence that breaks it, and makes it short; `make soak` takes a million steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from eval.__main__ import main
from eval.soak import steps
from eval.soak.audit import AuditedCache
from eval.soak.shape import Shape
from eval.soak.steps import SHAPES, steps_of
from radix_tlru.sglang.cache import python_core, python_nodes
from radix_tlru.sglang.cache.node_table import NodeTable
from radix_tlru.sglang.cache.python_core import PythonTailComponent
from radix_tlru.sglang.cache.sessions import SessionOrder
from radix_tlru.sglang.offline import Core
from tests.helpers.any_order import in_any_order

QUICK = (0, 3, 4, 7, 8, 10)  # each kind on one of the cores, as both have the same order; make test-all has the others
EACH = pytest.mark.parametrize(
    "shape",
    [shape if number in QUICK else pytest.param(shape, marks=pytest.mark.long) for number, shape in enumerate(SHAPES)],
    ids=str,
)


@EACH
def test_no_order_of_steps_loses_anything(shape: Shape) -> None:
    seen = in_any_order(shape)
    assert min(seen["tel_safe"], seen["lru"], seen["splits"]) > 0


@EACH
def test_a_thousand_likely_steps_lose_nothing(shape: Shape) -> None:
    audited = AuditedCache(shape)
    for step in steps_of(audited, seed=1, count=1_000):
        step()
    kinds = ("start", "match", "prefill", "decode", "finish", "abort", "press", "evict", "flush", "threshold")
    assert [kind for kind in kinds if not audited.steps[kind]] == []
    assert bool(audited.steps["close"]) == bool(shape.sessions)
    assert min(audited.cache.tail.counts[count] for count in ("tel_safe", "lru", "splits")) > 30


def leak(audited: AuditedCache) -> None:
    audited.allocator.alloc(audited.page_size)


def free_twice(audited: AuditedCache) -> None:
    audited.allocator.free_page_ids(audited.allocator.free_pages[:1])


def free_what_is_cached(audited: AuditedCache) -> None:
    audited.allocator.free(audited.cache.tree_core.all_values_flatten()[: audited.page_size])


def unlock_early(audited: AuditedCache) -> None:
    audited.cache.unlock(audited.running[0].lock)


def lock_for_good(audited: AuditedCache) -> None:
    audited.cache.lock(audited.running[0].node)
    audited.abort(0)


def evict_untold(audited: AuditedCache) -> None:
    audited.cache.evict(EvictParams(num_tokens=audited.page_size))
    audited.cache.take_events()


def swap_two_pages(audited: AuditedCache) -> None:
    locked = audited.holds[audited.running[0].prefixes[0]]
    first, second = locked, next(page for page in audited.holds.values() if page != locked)
    filled = audited._filled
    filled[first], filled[second] = filled[second], filled[first]


def forget_a_leaf(audited: AuditedCache) -> None:
    order = audited.cache.tail.order
    victim = order.choose_victim(1)
    assert victim is not None
    order.remove_leaf(victim.leaf_id)


def break_and_audit(audited: AuditedCache, wrong: Callable[[AuditedCache], None]) -> None:
    wrong(audited)
    audited.audit()


@pytest.mark.parametrize("core", ["rust", "python"])
@pytest.mark.parametrize(
    "wrong",
    [leak, free_twice, free_what_is_cached, unlock_early, lock_for_good, evict_untold, swap_two_pages, forget_a_leaf],
    ids=lambda wrong: wrong.__name__,
)
def test_the_audit_notices(wrong: Callable[[AuditedCache], None], core: Core) -> None:
    audited = AuditedCache(Shape(core, 16))
    for number in range(8):
        audited.start(number, 8)
        audited.finish(0)
    audited.start(9, 8)
    audited.prefill(127, 8)
    assert audited.running[0].done
    assert audited.cache.full_evictable_size()
    audited.audit()
    with pytest.raises(AssertionError):
        break_and_audit(audited, wrong)


def untold(self: PythonTailComponent, *ends: Any) -> Any:
    """Nobody tells the orders that references were counted anew."""
    return nullcontext()


def the_other_way_round(self: SessionOrder, tokens: int) -> Any:
    return self._held.choose_victim(tokens) or self._free.choose_victim(tokens)


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [(PythonTailComponent, "_out_of_the_orders", untold), (SessionOrder, "choose_victim", the_other_way_round)],
)
def test_the_audit_notices_a_leaf_on_the_wrong_side(
    where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    audited = AuditedCache(Shape("python", 16, sessions=6))
    steps = steps_of(audited, seed=1, count=2_000)
    with pytest.raises(AssertionError):
        take_all(steps)


def not_handed_up(self: NodeTable, node_id: int, parent_id: int) -> int | None:
    """The history of a leaf that is evicted is lost."""
    self.history[self.rows[node_id]] = 0
    return EVICT_LEAF(self, node_id, parent_id)


def deeper(self: NodeTable, node_id: int, front_id: int, end: int) -> int:
    """What stays of a leaf ends where the leaf did."""
    return SPLIT_NODE(self, node_id, front_id, self.end[self.rows[node_id]])


EVICT_LEAF, SPLIT_NODE = NodeTable.evict_leaf, NodeTable.split_node


@pytest.mark.parametrize(
    ("core", "where", "name", "wrong"),
    [
        ("rust", NodeTable, "evict_leaf", not_handed_up),
        ("rust", NodeTable, "split_node", deeper),
        ("python", python_core, "history_of", python_core.end_of),
        ("python", python_core, "end_of", lambda node: python_nodes.end_of(node) + 1),
    ],
)
def test_the_audit_notices_a_leaf_of_another_depth_or_history(
    core: Core, where: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, wrong)
    steps = steps_of(AuditedCache(Shape(core, 16)), seed=1, count=500)
    with pytest.raises(AssertionError, match="leaves end, and their paths have ended, at"):
        take_all(steps)


def take_all(steps: Iterable[Callable[[], None]]) -> None:
    for step in steps:
        step()


def test_a_soak_prints_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--steps", "1k", "--requests", "500"]) == 0
    lines = capsys.readouterr().out.splitlines()
    done = [line.split()[0] for line in lines]
    assert done == ["audited", *(f"{tenth}00" for tenth in range(1, 10)), "1,000", "requests"] + [
        f"{50 * tenth}" for tenth in range(1, 11)
    ]


def test_a_soak_takes_as_many_steps_as_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    seeds: list[int] = []

    def counted(audited: AuditedCache, seed: int, count: int) -> Iterator[Callable[[], None]]:
        taken.append(count)
        seeds.append(seed)
        return iter(())

    monkeypatch.setattr(steps, "steps_of", counted)
    assert main(["soak", "--steps", "155", "--requests", "15"]) == 0
    lines = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert (sum(taken), lines[10], lines[-1]) == (155, "155", "15")
    assert main(["soak", "--steps", "155", "--seed", "1"]) == 0
    assert len(set(seeds)) == 200, "another seed takes other steps"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "5"], "--steps 5: must be 10 or more, or 0 for none"),
        (["--steps", "0", "--requests", "5"], "--requests 5: must be 10 or more, or 0 for none"),
        (["--steps", "0"], "--steps 0: leaves nothing to do without --requests"),
        (["--steps", "-1"], "--steps -1: must be 0 or more"),
    ],
)
def test_of_too_few_steps_there_are_no_tenths(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", *flags]) == 2
    assert capsys.readouterr().err == f"eval soak: {said}\n"
