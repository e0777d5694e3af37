"""Hypothesis looks for an order of a scheduler's steps that breaks an audited cache, and makes it short."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from eval.soak.hybrids import audited as audited_cache
from eval.soak.shape import Shape
from tests.helpers.examples import examples

NUMBERS = st.integers(0, 10**6)
EXAMPLES, STEPS = 14, 120  # of each shape: some 1,000 steps, 8,000 in all, and 8,000 likely ones below
FEWEST = 10  # of fewer none may evict: they differ by which modules are imported, whose constants Hypothesis draws


class Scheduler(RuleBasedStateMachine):
    """The steps of an `AuditedCache`, which audits itself."""

    def __init__(self, shape: Shape, seen: Counter[str]) -> None:
        super().__init__()
        self.audited, self.seen = audited_cache(shape), seen

    @rule(number=NUMBERS, pages=st.sampled_from([1, 4, 4, 8]))
    def start(self, number: int, pages: int) -> None:
        self.audited.start(number, pages)

    @rule(number=NUMBERS)
    def start_one_that_is_larger_than_the_pool(self, number: int) -> None:
        self.audited.start(number, 2 * self.audited.shape.pages)

    @rule(number=NUMBERS, pages=st.integers(1, 8))
    def match(self, number: int, pages: int) -> None:
        self.audited.look_up(number, pages)

    @rule(number=NUMBERS, pages=st.integers(1, 16))
    def prefill(self, number: int, pages: int) -> None:
        self.audited.prefill(number, pages)

    @rule(number=NUMBERS)
    def decode(self, number: int) -> None:
        self.audited.decode(number)

    @rule(number=NUMBERS)
    def finish(self, number: int) -> None:
        self.audited.finish(number)

    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        self.audited.close_one(number)

    @rule(number=NUMBERS)
    def abort(self, number: int) -> None:
        self.audited.abort(number)

    @rule(pages=st.integers(0, 60))
    def press(self, pages: int) -> None:
        self.audited.press(pages)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.audited.evict_some(data.draw(st.integers(0, 9 * self.audited.page_size)))

    @rule(pages=st.integers(0, 12))
    def move_threshold(self, pages: int) -> None:
        self.audited.move_threshold(pages)

    @rule(often=st.integers(0, 5))
    def flush(self, often: int) -> None:
        if often == 0:
            self.audited.flush()

    def teardown(self) -> None:
        self.seen += self.audited.steps + self.audited.cache.tail.counts


def in_any_order(shape: Shape) -> Counter[str]:
    """Have Hypothesis look for an order of steps that loses something; returns what was done on the way.

    The same orders in every run, as some make few evictions; `eval soak --seed N` takes others.
    """
    seen: Counter[str] = Counter()
    budget = settings(
        max_examples=max(examples(EXAMPLES), FEWEST),
        stateful_step_count=STEPS,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(lambda: Scheduler(shape, seen), settings=budget)
    return seen
