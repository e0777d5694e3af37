"""The part of a folder that the figures show: one group of comparable cells, and the chosen one among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from eval.caches.policies import ORACLES
from eval.render.report.rows import ReportError, Requests, Row, Variant, read_requests
from eval.simulate.cells import Cell
from eval.simulate.grid import REFERENCES
from eval.simulate.timing import Timing
from radix_tlru import Config

BASELINE, OPTIMUM = REFERENCES


class Missing(Exception):  # noqa: N818 - not an error: the page says why a figure is not there
    """A figure cannot be drawn of these cells; the message says why, and what to run."""


class Group(NamedTuple):
    """Cells that can be compared with each other."""

    trace: str
    page_size: int
    forced: bool
    replicas: int
    routing: str | None

    @property
    def optional_caching(self) -> bool:
        """Whether a context may be trimmed as soon as it is served."""
        return not self.forced

    @classmethod
    def of(cls, cell: Cell) -> Group:
        """The group that a cell is in."""
        return cls(cell.trace, cell.page_size, cell.forced, cell.replicas, cell.routing)

    def __str__(self) -> str:
        words = [self.trace, f"page size {self.page_size:,}"]
        if not self.forced:
            words.append("optional caching")
        if self.routing:
            words.append(f"{self.replicas} replicas of the capacity, {self.routing}")
        return ", ".join(words)


class Arm(NamedTuple):
    """One of the policies that every report compares."""

    title: str
    policies: tuple[str, ...]  # the first that is there is shown
    run: str  # the flags to run where none is there


CHOICES = ("trace", "page_size", "replicas", "routing", "optional_caching")
"""What a group is chosen by, each with a flag of its name."""

CANDIDATES = ("tlru", "real-tlru", "etlru", "real-etlru")
"""Policies of radix-tlru, simulated and through the real cache."""

ARMS = (
    Arm("stock lru", ("sglang-lru", "sglang-lru-python"), "--policy sglang-lru"),
    Arm("stock tlru", ("sglang-tlru", "sglang-tlru-python"), "--policy sglang-tlru"),
    Arm("tlru", ("tlru", "real-tlru"), "--policy tlru"),
    Arm("etlru", ("etlru", "real-etlru"), "--policy etlru"),
    Arm("oracle", (OPTIMUM,), f"--policy {OPTIMUM}"),
)

_ALWAYS = tuple(arm.policies[0] for arm in ARMS)
_FIGURES = ("hit_ratio", "mean", "p50", "p90", "p95", "p99", "tel", "violations")
_RANK = (BASELINE, *(policy for arm in ARMS[:-1] for policy in arm.policies), "etlru-given")


def is_online(variant: Variant) -> bool:
    """Whether a server can run it: it does not look into the future."""
    return variant.policy not in ORACLES


def is_candidate(variant: Variant) -> bool:
    """Whether it is a policy of radix-tlru, simulated or real."""
    return variant.policy in CANDIDATES


def groups(rows: Sequence[Row]) -> list[Group]:
    """The groups of the cells that were asked for, the one with most cells first."""
    found = [Group.of(row.cell) for row in rows if row.asked_for]
    return sorted(dict.fromkeys(found), key=found.count, reverse=True)


@dataclass
class Scene:
    """The cells of one group, by variant, capacity and ξ.

    Args:
        capacity, threshold: of the cell that single-cell figures show. Negative: the middle of those that there are.

    Raises:
        ReportError: there is no such cell.
    """

    folder: Path
    group: Group
    rows: Sequence[Row]
    capacity: int = -1
    threshold: int = -1
    latency: Timing | None = None
    capacities: list[int] = field(init=False)
    thresholds: list[int] = field(init=False)
    variants: list[Variant] = field(init=False)  # in the order of every list, baselines first
    twins: dict[Variant, Variant] = field(init=False)  # variants with the figures of another in every cell, and that

    def __post_init__(self) -> None:
        mine = [row for row in self.rows if Group.of(row.cell) == self.group]
        self._at: dict[tuple[Variant, int, int], Row] = {}
        for row in mine:  # lru under two values of w is the same cell twice
            self._at.setdefault((row.variant, row.cell.capacity, row.cell.threshold), row)
        self._requests: dict[str, Requests | None] = {}
        self.capacities = sorted({row.cell.capacity for row in mine})
        self.thresholds = sorted({row.cell.threshold for row in mine})
        self.variants = sorted(dict.fromkeys(row.variant for row in mine), key=_rank)
        self.twins = self._twins()
        self.capacity, self.threshold = self._place({(row.cell.capacity, row.cell.threshold) for row in mine})

    def _place(self, there: Set[tuple[int, int]]) -> tuple[int, int]:
        """The chosen capacity and ξ. Not every capacity has cells with every ξ."""
        capacity, threshold = self.capacity, self.threshold
        for flag, value, values in (
            ("--capacity", capacity, self.capacities),
            ("--threshold", threshold, self.thresholds),
        ):
            if value >= 0 and value not in values:
                raise ReportError(f"{flag} {value}: no such cells; there are {', '.join(map(str, values))}")
        if capacity < 0:
            capacity = _middle([size for size in self.capacities if threshold < 0 or (size, threshold) in there])
        thresholds = [xi for xi in self.thresholds if (capacity, xi) in there]
        if threshold < 0:
            threshold = _middle(thresholds)
        if threshold not in thresholds:
            beside = f"with that capacity there are {', '.join(map(str, thresholds))}"
            raise ReportError(f"--capacity {capacity} --threshold {threshold}: no such cells; {beside}")
        return capacity, threshold

    @property
    def objective(self) -> float:
        """The objective of the chosen cell: TTFT in ms where figures are TTFT, else ξ in tokens."""
        return self.threshold if self.latency is None else self.latency.ms(self.threshold)

    @property
    def drawn(self) -> list[Variant]:
        """The variants that figures show: without twins, whose lines would lie on top of others."""
        return [variant for variant in self.variants if variant not in self.twins]

    def at(self, variant: Variant, capacity: int, threshold: int) -> Row | None:
        """A cell, if it is there."""
        return self._at.get((variant, capacity, threshold))

    def chosen(self, variant: Variant) -> Row | None:
        """A variant in the chosen cell."""
        return self.at(variant, self.capacity, self.threshold)

    def place(self, capacity: int, threshold: int) -> list[Row]:
        """The cells of all variants at one capacity and ξ."""
        return [row for variant in self.variants if (row := self.at(variant, capacity, threshold)) is not None]

    @property
    def mains(self) -> list[Variant]:
        """One variant of each policy, for figures with a line a policy: the least w, the Q̂ nearest to the default."""
        return list(_usual(self.drawn).values())

    @property
    def main_rows(self) -> list[Row]:
        """Those of them that there are in the chosen cell."""
        return [row for variant in self.mains if (row := self.chosen(variant)) is not None]

    def arm(self, arm: Arm) -> Variant | None:
        """The variant that is shown for an arm; None: there is none."""
        usual = _usual(self.variants)
        return next((usual[policy] for policy in arm.policies if policy in usual), None)

    def _twins(self) -> dict[Variant, Variant]:
        first: dict[object, Variant] = {}
        twins = {}
        for variant in self.variants:
            rows = [self.at(variant, size, xi) for size in self.capacities for xi in self.thresholds]
            figures = tuple(row and tuple(getattr(row.outcome, name) for name in _FIGURES) for row in rows)
            other = first.setdefault(figures, variant)
            if other.policy != variant.policy and variant.policy not in _ALWAYS:
                twins[variant] = other
        return twins

    def baseline(self, row: Row) -> Row | None:
        """The page-granular lru at the capacity and ξ of a cell."""
        return self.at(Variant(BASELINE, None, None), row.cell.capacity, row.cell.threshold)

    def change(self, row: Row, figure: str, of: Callable[[float], float] = float) -> float | None:
        """The relative change of ``of`` a figure against lru: −0.1 is a tenth less.

        None if there is no lru, or it has 0.
        """
        base = self.baseline(row)
        if base is None or not (before := of(getattr(base.outcome, figure))):
            return None
        return of(getattr(row.outcome, figure)) / before - 1

    def tel_saved(self, row: Row) -> float | None:
        """Share of lru's TEL that is saved."""
        change = self.change(row, "tel")
        return None if change is None else -change

    def gap_closed(self, row: Row) -> float | None:
        """Share of the gap that a cell closes; 0 and 1 for the references."""
        if row.gap_closed is not None or row.asked_for:
            return row.gap_closed
        return {BASELINE: 0.0, OPTIMUM: 1.0}.get(row.cell.policy)

    def best_online(self, rows: Sequence[Row]) -> list[Row]:
        """Of these cells, those with the least TEL that a server can run."""
        online = [row for row in rows if is_online(row.variant)]
        least = min((row.outcome.tel for row in online), default=0)
        return [row for row in online if row.outcome.tel == least]

    def requests(self, row: Row) -> Requests | None:
        """The requests of a cell, read once; None where they were not kept."""
        if row.name not in self._requests:
            self._requests[row.name] = read_requests(self.folder, row)
        return self._requests[row.name]


def _usual(variants: Sequence[Variant]) -> dict[str, Variant]:
    """The variant that stands for each policy."""
    estimate = Config().next_prompt
    of_policy: dict[str, list[Variant]] = {}
    for variant in variants:
        of_policy.setdefault(variant.policy, []).append(variant)
    return {
        policy: min(same, key=lambda one: (one.rank, abs((one.estimate or estimate) - estimate)))
        for policy, same in of_policy.items()
    }


def _rank(variant: Variant) -> tuple[bool, int, str, float, int]:
    policy = variant.policy
    rank = _RANK.index(policy) if policy in _RANK else len(_RANK)
    return not is_online(variant), rank, policy, variant.rank, variant.estimate or 0


def _middle(values: Sequence[int]) -> int:
    return values[len(values) // 2]
