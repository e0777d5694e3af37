"""Blocks of a trace as units: an id stands for the whole prefix that its block ends.

Some traces hash the content of each block alone: then one id can follow different prefixes. The reader gives every pair
of prefix and block an id of its own. Traces that hash prefixes keep what they had, under new numbers.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from eval.traces.reading.records import Count, Record, Size, bad_field, decode
from eval.traces.request import Path, TraceError

_MOONCAKE = 512
_SIZES = tuple(1 << power for power in range(15))  # that are told from lengths
_START = -1  # stands for the empty prefix
_LOOKED_AT = 2_000  # rows from whose lengths the size of a block is told


class BlockNumbers:
    """Numbers of prefixes, from 0, and the prefix that each continues; shared by all chains of a trace."""

    def __init__(self) -> None:
        self.count = 0
        self._parents = np.empty(1024, np.int32)

    def new(self, parent: int) -> int:
        """The number of a prefix that was not seen before."""
        if self.count == len(self._parents):
            self._parents = np.concatenate([self._parents, np.empty_like(self._parents)])
        self._parents[self.count] = parent
        self.count += 1
        return self.count - 1

    def follows(self, number: int, parent: int) -> bool:
        """Whether a prefix is this parent and one block."""
        return bool(self._parents[number] == parent)

    def chained(self, numbers: array[int]) -> int:
        """How many of these, from the first, each continue the one before."""
        if not numbers:
            return 0
        found = np.frombuffer(numbers, np.int32)
        wrong = np.flatnonzero(self._parents[found[1:]] != found[:-1])
        return 0 if self._parents[found[0]] != _START else int(wrong[0]) + 1 if len(wrong) else len(found)


class Chain:
    """Ids of one scope, such as a file or a session, as numbers of prefixes.

    Attributes:
        repeated: ids that were seen behind a second prefix; more than 0: ids stand for content.
    """

    def __init__(self, numbers: BlockNumbers | None = None) -> None:
        self.repeated = 0
        self._numbers = numbers or BlockNumbers()
        self._first: dict[int | str, int] = {}  # by id, the number of the first prefix that it ended
        self._others: dict[tuple[int, int | str], int] = {}  # of ids that were seen behind another prefix

    def units(self, ids: Sequence[int | str]) -> array[int]:
        """The numbers of the prefixes that the blocks of a prompt end."""
        known: list[Any] = list(map(self._first.get, ids))
        until = known.index(None) if None in known else len(known)
        units = array("i", known[:until])
        right = self._numbers.chained(units)
        del units[right:]
        parent = units[-1] if units else _START
        for block in ids[right:]:
            parent = self._next(parent, block)
            units.append(parent)
        return units

    def said(self) -> str:
        """What is noted of ids that stand for the content of blocks; nothing where they stand for prefixes."""
        return said_of_content(self.repeated)

    def _next(self, parent: int, block: int | str) -> int:
        first = self._first.get(block)
        if first is None:
            number = self._first[block] = self._numbers.new(parent)
            return number
        if self._numbers.follows(first, parent):
            return first
        number = self._others.get((parent, block), _START)
        if number == _START:
            self.repeated += 1
            number = self._others[parent, block] = self._numbers.new(parent)
        return number


def said_of_content(repeated: int) -> str:
    """What is noted where so many ids were seen behind a second prefix, whichever the chain; nothing of none."""
    times = f"{repeated:,} stood behind a second prefix"
    return f"ids stand for the content of blocks ({times}): made ids of prefixes" if repeated else ""


def block_path(units: Sequence[int], block: int, ends: dict[int, range]) -> Path:
    """Full blocks of one size as a path; ``ends`` remembers the ranges, which many prompts share."""
    found = ends.get(len(units))
    if found is None:
        found = ends[len(units)] = range(block, block * len(units) + 1, block)
    return Path(units, found)


class _Lengths(msgspec.Struct):
    input_length: Count
    hash_ids: list[Any]


def block_lengths(records: Iterable[Record]) -> list[tuple[int, int]]:
    """Tokens of a prompt and its number of ids, for :func:`block_size`, of the first rows.

    Rows that cannot be read, or have no ids, tell nothing.
    """
    pairs = []
    for record in itertools.islice(records, _LOOKED_AT):
        try:
            row = decode(record, _Lengths)
        except TraceError:
            continue
        if row.hash_ids:
            pairs.append((row.input_length, len(row.hash_ids)))
    return pairs


class _Named(msgspec.Struct):
    block_size: Size | None = None


def named_size(records: Iterable[Record]) -> int | None:
    """Tokens of a block as the first row that can be read names it; None: it does not."""
    for record in itertools.islice(records, _LOOKED_AT):
        try:
            return decode(record, _Named).block_size
        except TraceError:
            continue
    return None


def check_size(record: Record, named: int | None, block: int) -> None:
    """Refuse a row whose blocks have another size.

    Raises:
        TraceError: it names that size.
    """
    if named not in (None, block):
        raise bad_field(record, "block_size", f"{named} tokens, must be that of the trace, {block} (--block-size)")


def block_size(prompts: Iterable[tuple[int, int]]) -> int | None:
    """Tokens of a block, from pairs of a prompt's tokens and its number of ids; the last block may be partly filled.

    The power of two that most of them fit, as single rows may be bad; of several, 512, as in Mooncake's traces, or else
    the largest. None: there is none that more than half of them fit.
    """
    told = [pair for pair in prompts if pair[0]]
    fitting = {size: sum(fits(*pair, size) for pair in told) for size in _SIZES}
    best = max(_SIZES, key=lambda size: (fitting[size], size == _MOONCAKE, size))
    return best if 2 * fitting[best] > len(told) else None


def fits(tokens: int, ids: int, size: int) -> bool:
    """Whether so many ids are those of all blocks, or of the full ones."""
    return tokens // size <= ids <= -(-tokens // size)


def full_blocks(
    record: Record, tokens: int, ids: list[int | str], block: int, field: str = "hash_ids"
) -> list[int | str]:
    """The ids of the full blocks of an input.

    Args:
        record, field: where they are, for errors.
        tokens: of the input.
        ids: of all blocks, the last one partly filled, or of the full ones.
        block: tokens of one.

    Raises:
        TraceError: there are more or fewer ids than blocks.
    """
    if not fits(tokens, len(ids), block):
        blocks = -(-tokens // block)
        raise bad_field(
            record, field, f"{len(ids)} ids, but {tokens} tokens are {blocks} blocks of {block} (--block-size)"
        )
    return ids[: tokens // block]
