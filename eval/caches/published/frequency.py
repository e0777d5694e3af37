"""SGLang's ``lfu`` and ``slru``, page by page: a leaf gives up its tail, where SGLang evicts all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from eval.caches.blocks import Block, LeafQueue, TreeCache
from eval.traces.request import Request

PROTECTED_AT = 2
"""Requests that must have used a page before slru protects it: SGLang's default ``protected_threshold``."""


@dataclass(eq=False, slots=True)
class _Block(Block):
    uses: int = 1  # requests, the one that cached it included


class FrequencyCache(TreeCache[_Block]):
    """Pages in the order of a rank of their uses, then least recently used first.

    Source: SGLang 0.5.23, ``srt/mem_cache/evict_policy.py`` (``LFUStrategy``, ``SLRUStrategy``). Assumed: the count of
    a page is that of the node that it would be, if each page were a node. Uses are forgotten with the page.

    Args:
        rank: of so many uses; the least goes first.
    """

    def __init__(self, capacity: int, page_size: int, rank: Callable[[int], int]) -> None:
        super().__init__(capacity, page_size)
        self._rank = rank
        self._leaves = LeafQueue(self)
        self._releases = count(1)

    def _begin(self, request: Request, path: Sequence[_Block], names: Sequence[int]) -> None:
        for block in path:
            block.uses += 1

    def _new(self, name: int, parent: _Block | None, depth: int) -> _Block:
        return _Block(name, parent, depth)

    def _end(self, request: Request, path: Sequence[_Block], hits: int) -> None:
        for block in reversed(path):
            block.place = self._rank(block.uses), next(self._releases)

    def _offer(self, block: _Block) -> None:
        self._leaves.push(block)

    def _victim(self) -> _Block:
        block = self._leaves.first()
        assert block is not None, "a full cache has a leaf that is not in use"
        return block


def lfu_cache(capacity: int, page_size: int = 1) -> FrequencyCache:
    """Pages that the fewest requests have used go first."""
    return FrequencyCache(capacity, page_size, rank=lambda uses: uses)


def slru_cache(capacity: int, page_size: int = 1) -> FrequencyCache:
    """Pages that only one request has used go first."""
    return FrequencyCache(capacity, page_size, rank=lambda uses: int(uses >= PROTECTED_AT))
