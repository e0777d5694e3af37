"""A dictionary in shards holds what a dictionary does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.policy.sharded_dict import SHARDS, ShardedDict

keys = st.integers(-3, 3 * SHARDS) | st.integers(0, 1 << 100)


@given(st.lists(st.tuples(keys, st.none() | st.integers())))
def test_it_holds_what_a_dictionary_does(steps: list[tuple[int, int | None]]) -> None:
    plain, sharded = dict[int, int](), ShardedDict[int]()
    for key, value in steps:
        if value is None:
            assert sharded.pop(key, None) == plain.pop(key, None)
        else:
            sharded[key] = plain[key] = value
        assert (len(sharded), bool(sharded)) == (len(plain), bool(plain))
        assert (key in sharded, sharded.get(key)) == (key in plain, plain.get(key))
    assert sharded == plain
    assert sorted(sharded) == sorted(plain)
    assert sorted(sharded.items()) == sorted(plain.items())
    for key in list(plain):
        assert sharded[key] == plain[key]
        del sharded[key]
        with pytest.raises(KeyError):
            sharded.pop(key)
    assert not sharded


@given(st.lists(keys, max_size=300), st.integers(1, 3))
def test_the_longest_unused_of_a_shard_makes_room(used: list[int], each: int) -> None:
    most, sharded = each * SHARDS, ShardedDict[int]()
    last_used: dict[int, list[int]] = {}  # by shard, the longest unused first
    for number, key in enumerate(used):
        shard = last_used.setdefault(key % SHARDS, [])
        if key in shard:
            shard.remove(key)
        shard.append(key)
        expected = used[:number][::-1].index(shard[0]) if len(shard) > each else None
        made_room = sharded.put_last(key, number, most)
        assert made_room == (None if expected is None else number - 1 - expected)
        del shard[:-each]
        assert all([*kept] == last_used.get(number, []) for number, kept in enumerate(sharded.shards))


def test_ids_and_hashes_with_a_depth_are_spread_over_the_shards() -> None:
    for of_all in (range(10_000), (number * 0x9E3779B97F4A7C15 % (1 << 64) << 32 | 512 for number in range(10_000))):
        sharded = ShardedDict[None]()
        for key in of_all:
            sharded[key] = None
        assert max(map(len, sharded.shards)) < 1.5 * 10_000 / SHARDS
