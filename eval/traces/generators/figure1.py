"""The toy of the paper's Figure 1: two conversations of 100 blocks, and a next prompt of 100 blocks in each."""

from __future__ import annotations

from collections.abc import Iterator

from eval.traces.generators.workload import Workload
from eval.traces.request import Path, Request

BLOCKS = 100  # one block is one token


def generate(_: None = None) -> Iterator[Request]:
    """A and B are cached, then A asks, then B. The figure counts blocks alone, so there are no answers.

    Policies differ on the third request. In a cache of 100 blocks LRU has kept B alone, so A finds 200 blocks uncached.
    With ξ = 150 and Q̂ = 100 T-LRU keeps 100 + 100 − 150 = 50 blocks of each, so A finds 150 uncached.
    """
    turns = [("A", BLOCKS), ("B", BLOCKS), ("A", 2 * BLOCKS), ("B", 2 * BLOCKS)]
    for second, (conversation, blocks) in enumerate(turns):
        first = 0 if conversation == "A" else 2 * BLOCKS
        prompt = Path(range(first, first + blocks), range(1, blocks + 1))
        yield Request(float(second), conversation, prompt, prompt, blocks, 0)


FIGURE1 = Workload("figure1", "the toy of the paper's Figure 1", None, generate)
