"""Prefixes of contexts by number, and a subscriber of a cache's events, which knows blocks only by their hashes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from sglang.srt.mem_cache.radix_cache import RadixKey

LETTERS = range(3)  # few, so that contexts share prefixes of any length
REMEMBERED = 16  # contexts that a new one may continue

NAMESPACES: tuple[tuple[str | None, str | None], ...] = (
    (None, None),
    ("adapter", None),
    (None, "tenant"),
    ("adapter", "tenant"),
)
"""(extra_key, cache_salt). Equal tokens in two namespaces share nothing."""


class Context(NamedTuple):
    """Tokens in a namespace."""

    tokens: tuple[int, ...]
    namespace: tuple[str | None, str | None]


class RandomContexts:
    """Random contexts that continue one another. ``capacity``: tokens of the pool that they are for."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._said: list[Context] = [Context((), namespace) for namespace in NAMESPACES]

    def next(self, number: int, tokens: int) -> Context:
        """A context that continues an earlier one, from its end or from within, by at most ``tokens`` tokens."""
        rng = Random(number)
        before = rng.choice(self._said[-REMEMBERED:])
        said = before.tokens[: rng.choice([len(before.tokens), rng.randrange(len(before.tokens) + 1)])]
        said += tuple(rng.choices(LETTERS, k=rng.randrange(1, tokens + 1)))
        context = Context(said[: 2 * self._capacity], before.namespace)
        # A context of half the pool is not continued, or all later ones would continue it.
        follows = context if len(said) < self._capacity // 2 else Context((), rng.choice(NAMESPACES))
        self._said = [*self._said[-REMEMBERED:], follows]
        return context


class Prefixes:
    """Numbers of prefixes: two pages end the same prefix if all tokens up to their ends are equal.

    Args:
        is_eagle: keys are pairs of tokens.
    """

    def __init__(self, page_size: int, is_eagle: bool) -> None:
        self._page_size, self._is_eagle = page_size, is_eagle
        self._numbers: dict[tuple[int, object], int] = {}
        self.parents = list(range(len(NAMESPACES)))  # an empty prefix is its own parent
        self.pages = [0] * len(NAMESPACES)  # that a prefix has
        # Events have only the salt of a namespace: by prefix, the one that a subscriber takes it for.
        self.told = [NAMESPACES.index((None, cache_salt)) for _, cache_salt in NAMESPACES]

    def of(self, context: Context) -> list[int]:
        """The prefixes that the whole pages of a context end, from the first page on."""
        said: Sequence[object] = context.tokens
        if self._is_eagle:
            said = list(pairwise(context.tokens))
        prefixes, prefix, page = [], NAMESPACES.index(context.namespace), self._page_size
        for start in range(0, len(said) - page + 1, page):
            prefix = self.next(prefix, tuple(said[start : start + page]))
            prefixes.append(prefix)
        return prefixes

    def next(self, prefix: int, said: object) -> int:
        """The prefix that is a prefix and one more page."""
        number = self._numbers.setdefault((prefix, said), len(self.parents))
        if number == len(self.parents):
            self.parents.append(prefix)
            self.pages.append(self.pages[prefix] + 1)
            told = self.told[prefix]
            self.told.append(number)
            if told != prefix:
                self.told[number] = self.next(told, said)
        return number

    def key(self, context: Context, tokens: int) -> RadixKey:
        """SGLang's key of the first tokens of a context, in whole pages."""
        extra_key, cache_salt = context.namespace
        said = array("q", context.tokens[:tokens])
        key = RadixKey(said, extra_key, is_bigram=self._is_eagle, cache_salt=cache_salt)
        return key.page_aligned(self._page_size)


class Subscriber:
    """What a reader of a cache's events knows; it does not see splits."""

    def __init__(self, prefixes: Prefixes) -> None:
        self._prefixes = prefixes
        self._ends: dict[int, int] = {}  # hash of a block → the prefix that it ends
        self.blocks: Counter[int] = Counter()  # prefixes that are resident as far as events tell

    def read(self, events: Iterable[KVCacheEvent]) -> None:
        """Read events.

        Raises:
            AssertionError: events contradict each other.
        """
        for event in events:
            match event:
                case BlockStored():
                    self._store(event)
                case BlockRemoved():
                    for block in event.block_hashes:
                        prefix = self._ends[block]
                        self.blocks[prefix] -= 1
                        assert self.blocks[prefix] >= 0, "a block is removed that was not there"
                case AllBlocksCleared():
                    self.blocks.clear()

    def _store(self, event: BlockStored) -> None:
        prefix = NAMESPACES.index((None, event.cache_salt))
        if event.parent_block_hash is not None:
            prefix = self._ends[event.parent_block_hash]
        size = event.block_size
        for number, block in enumerate(event.block_hashes):
            prefix = self._prefixes.next(prefix, tuple(event.token_ids[number * size : (number + 1) * size]))
            assert self._ends.setdefault(block, prefix) == prefix, "one hash for two blocks"
            self.blocks[prefix] += 1
