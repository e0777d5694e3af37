"""What is compared: every trace at every capacity under every ξ, and the cells of the policies in each."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from eval.arguments import number, tokens
from eval.compare.traces import Survey
from eval.simulate.cells import Cell
from eval.simulate.grid import REFERENCES, grid
from eval.timing_arguments import threshold_of, timing_of

BASELINE, OPTIMUM = REFERENCES
"""What all are compared with, and what the gap is to. They run in every setting."""

SHARES, QUICK_SHARES = ("5%", "10%", "25%", "50%", "100%"), ("10%", "50%")
"""Capacities, unless others are given: shares of the working set."""

THRESHOLDS, QUICK_THRESHOLDS = (4_096, 8_192, 16_384), (8_192,)
"""ξ in tokens, unless others are given."""


class Size(NamedTuple):
    """A capacity as it is asked for."""

    text: str  # as it is shown: 25 %, 2,000,000
    tokens: int = 0  # with no share
    share: float | None = None  # of the working set

    def of(self, working_set: int, page_size: int) -> int:
        """Tokens of it; at least one page."""
        return self.tokens if self.share is None else max(round(working_set * self.share), page_size)


def size(text: str) -> Size:
    """A capacity in tokens (500k, 2M), or as a share of a trace's working set (25%)."""
    if not text.endswith("%"):
        try:
            return Size(f"{tokens(text):,}", tokens(text))
        except argparse.ArgumentTypeError:
            allowed = "must be a number of tokens, such as 500k, or a share of the working set, such as 25%"
            raise argparse.ArgumentTypeError(f"{text}: {allowed}") from None
    try:
        percent = number(above=0, most=10_000)(text[:-1])
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text}: must be more than 0% and at most 10000%") from None
    return Size(f"{percent:g} %", share=percent / 100)


@dataclass(frozen=True, slots=True)
class Setting:
    """One trace, one capacity, one ξ. Lengths in tokens."""

    trace: Survey
    size: Size
    threshold: int
    page_size: int

    @property
    def capacity(self) -> int:
        """Tokens of cache."""
        return self.size.of(self.trace.working_set, self.page_size)


def thresholds(args: argparse.Namespace) -> list[int]:
    """ξ as ``--threshold`` gives it, or as the objectives of ``--ttft-slo`` mean it on a line of TTFT.

    Raises:
        ValueError: both are given, or an objective leaves no token to prefill.
    """
    timed = [name for name in ("alpha", "beta", "timing") if getattr(args, name) is not None]
    if not args.ttft_slo:
        if timed:
            raise ValueError(f"--{timed[0]} {getattr(args, timed[0])}: needs --ttft-slo, the objective in ms")
        return list(args.threshold or (QUICK_THRESHOLDS if args.quick else THRESHOLDS))
    if args.threshold:
        raise ValueError(f"--ttft-slo {args.ttft_slo[0]:g}: not together with --threshold; give one of them")
    timing = timing_of(args)
    return [threshold_of("--ttft-slo", slo, timing) for slo in args.ttft_slo]


def settings_of(surveys: Sequence[Survey], args: argparse.Namespace) -> list[Setting]:
    """Every combination; those of one trace follow each other.

    Raises:
        ValueError: as of :func:`thresholds`.
    """
    sizes = args.capacity or [size(text) for text in (QUICK_SHARES if args.quick else SHARES)]
    every = (Setting(*each, args.page_size) for each in itertools.product(surveys, sizes, thresholds(args)))
    # Two shares of a small trace may be one capacity.
    return list({(one.trace.name, one.capacity, one.threshold): one for one in every}.values())


def cells_of(setting: Setting, args: argparse.Namespace) -> list[Cell]:
    """The cells of a setting: lru, the policies that are asked for, tail-belady.

    Raises:
        ValueError: a policy cannot be run so.
    """
    policies = dict.fromkeys([BASELINE, *args.policy, OPTIMUM])
    asked = argparse.Namespace(
        policy=list(policies),
        capacity=[setting.capacity],
        threshold=[setting.threshold],
        next_prompt_estimate=[None],
        median_weight=args.median_weight,
        page_size=[setting.page_size],
        optional_caching=False,
        replicas=[1],
        routing=[None],
    )
    return grid(setting.trace.name, asked)
