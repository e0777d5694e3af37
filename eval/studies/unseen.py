"""`python -m eval unseen`: an old name for `python -m eval compare` on eighteen kinds of generated traces.

Kept for one release. The kinds differ from those of `compare --suite`: each has its own cache, ξ and page.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from eval.arguments import Several, add_median_weights, add_policies, whole
from eval.compare.command import judge
from eval.compare.settings import Setting, size
from eval.compare.traces import survey_all
from eval.trace_arguments import TraceSource

WARNING = "eval unseen: the old name of `eval compare --suite`, with other traces; it goes with the next release"


class Kind(NamedTuple):
    """Traces that differ only in their seed, and the cache that serves them. Lengths in tokens."""

    trace: str  # a generator and its parameters, without the seed
    capacity: int
    threshold: int  # ξ
    page_size: int


KINDS = (
    Kind("synthetic:conversations=1000", 200_000, 2048, 16),
    Kind("synthetic:conversations=3000", 200_000, 1024, 16),
    Kind("synthetic:conversations=3000", 100_000, 512, 1),
    Kind("synthetic:conversations=3000", 400_000, 1024, 512),
    Kind("synthetic:conversations=3000", 400_000, 2048, 512),
    Kind("synthetic:conversations=6000,prompt_mean=500", 400_000, 2048, 64),
    Kind("synthetic:conversations=6000,prompt_mean=1000,turn_rate_sigma=1", 400_000, 4096, 16),
    Kind("synthetic:conversations=6000,turn_rate_sigma=1", 100_000, 1024, 16),
    Kind("synthetic:conversations=6000,turn_rate_sigma=1", 200_000, 1024, 256),
    Kind("synthetic:conversations=2000", 300_000, 1500, 32),
    Kind("synthetic:conversations=8000", 500_000, 2048, 16),
    Kind("synthetic:conversations=1500,prompt_mean=2000", 600_000, 8192, 64),
    Kind("synthetic:conversations=4000,prompt_mean=300", 200_000, 1024, 1),
    Kind("synthetic:conversations=5000,turn_rate_sigma=0.5", 150_000, 768, 16),
    Kind("synthetic:conversations=3000,turn_rate_sigma=2", 100_000, 2048, 128),
    Kind("agents:runs=3000,arrival_span_s=1200", 500_000, 2048, 64),
    Kind("agents:runs=3000,arrival_span_s=1200", 1_000_000, 4096, 16),
    Kind("agents:runs=3000,arrival_span_s=3600,templates=20", 500_000, 2048, 64),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that the command always had, and where results are kept."""
    add_policies(parser, ("tlru", "etlru"), ("tlru", "etlru"))
    add = parser.add_argument
    add_median_weights(parser, "w (as a server)")
    add("--seeds", action=Several, type=whole(0), default=[0, 1, 2], metavar="N", help="of each kind (default: 0 1 2)")
    add("--kinds", type=whole(1, len(KINDS)), default=len(KINDS), metavar="N", help="the first N (all %(default)s)")
    add("--jobs", type=whole(1), default=1, metavar="N", help="cells side by side (default: %(default)s)")
    add("--out", type=Path, metavar="DIR", help="as of compare (default: nothing is kept)")


def run(args: argparse.Namespace) -> int:
    """Say that the name is old, and compare."""
    print(WARNING, file=sys.stderr)
    wanted = list(itertools.product(KINDS[: args.kinds], args.seeds))
    sources = dict.fromkeys(TraceSource(_seeded(kind, seed)) for kind, seed in wanted)
    surveys = {survey.source.source: survey for survey in survey_all(list(sources), jobs=args.jobs)}
    settings = [
        Setting(surveys[_seeded(kind, seed)], size(str(kind.capacity)), kind.threshold, kind.page_size)
        for kind, seed in wanted
    ]
    if args.out is not None:
        judge(settings, args)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        args.out = Path(folder)
        judge(settings, args)
    return 0


def _seeded(kind: Kind, seed: int) -> str:
    return f"{kind.trace},seed={seed}"
