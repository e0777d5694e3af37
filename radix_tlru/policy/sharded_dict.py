"""A dictionary whose entries never all move at once.

Python moves all entries of a dictionary when its table is full, also of one in which as many go as come: milliseconds,
for 200,000. And to find the first entry it walks over all that were before it, and are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any, TypeVar

__all__ = ["SHARDS", "ShardedDict"]

SHARDS = 61
"""A prime: keys are ids, or hashes with a depth in their last bits."""

V = TypeVar("V")


class ShardedDict(MutableMapping[int, V]):
    """A dictionary by number, as so many dictionaries. Its order is that of the shards, in each that of insertion."""

    __slots__ = ("shards",)

    def __init__(self) -> None:
        self.shards: tuple[dict[int, V], ...] = tuple({} for _ in range(SHARDS))
        """The one of a key is at ``key % SHARDS``; who looks up often does so there."""

    def __getitem__(self, key: int) -> V:
        return self.shards[key % SHARDS][key]

    def __setitem__(self, key: int, value: V) -> None:
        self.shards[key % SHARDS][key] = value

    def __delitem__(self, key: int) -> None:
        del self.shards[key % SHARDS][key]

    def __contains__(self, key: Any) -> bool:
        return key in self.shards[key % SHARDS]

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.shards)

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def __bool__(self) -> bool:
        return any(self.shards)

    def get(self, key: int) -> V | None:  # type: ignore[override]
        """The value, if there is one."""
        return self.shards[key % SHARDS].get(key)

    def pop(self, key: int, *default: Any) -> V:
        """As of a dictionary."""
        value: V = self.shards[key % SHARDS].pop(key, *default)
        return value

    def put_last(self, key: int, value: V, most: int) -> V | None:
        """Make the entry the last of its shard. The first of that makes room, if there are more than ``most`` / 61.

        Returns:
            What made room.
        """
        shard = self.shards[key % SHARDS]
        shard.pop(key, None)
        shard[key] = value
        return shard.pop(next(iter(shard))) if len(shard) > most // SHARDS else None
