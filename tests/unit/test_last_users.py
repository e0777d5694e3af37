"""Who used a path last, at the depths that are looked at."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given

from radix_tlru.learning import last_users
from radix_tlru.learning.last_users import LastUsers, keys_of
from radix_tlru.learning.prefix_index import STEPS
from radix_tlru.policy.sharded_dict import SHARDS
from tests.helpers.turns import branches, conversation, grown, hashed

DEPTHS = [  # 256, 282, 309, 335, 362, 399, …
    step + (following - step) * part // 4 for step, following in pairwise(STEPS) if step >= 256 for part in range(4)
]


def used_by(tokens: list[int]) -> list[int]:
    return keys_of(hashed(tokens))


@given(branches)
def test_a_fork_is_from_the_last_user_of_the_longest_beginning_that_was_used(steps: list[tuple[int, int, int]]) -> None:
    users = LastUsers()
    used: list[tuple[list[int], int]] = []  # contexts and numbers, the last user last
    for number, tokens in enumerate(grown(steps), start=1):
        expected = None
        for depth in DEPTHS:
            if depth <= len(tokens):
                of_depth = [user for other, user in used if other[:depth] == tokens[:depth] and len(other) >= depth]
                expected = (of_depth[-1], depth) if of_depth else expected
        fork = users.fork_of(used_by(tokens))
        assert (None if fork is None else (fork[0].number, fork[1])) == expected
        users.count_use(used_by(tokens), conversation(number=number))
        used.append((tokens, number))


def test_less_than_256_tokens_in_common_are_none() -> None:
    users = LastUsers()
    users.count_use(used_by(list(range(1_000))), conversation())
    assert users.fork_of(used_by([*range(255), *range(5_000, 6_000)])) is None
    fork = users.fork_of(used_by([*range(256), *range(5_000, 6_000)]))
    assert fork is not None
    assert fork[1] == 256


def test_the_longest_unused_depths_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 8 * SHARDS
    monkeypatch.setattr(last_users, "_MOST_REMEMBERED", most)
    users, first = LastUsers(), list(range(1_024))  # which has 17 depths
    for name in range(300):
        users.count_use(used_by(first), conversation(number=1))
        users.count_use(used_by([10_000 * (name + 1) + token for token in range(362)]), conversation(number=2 + name))
        assert len(users._last) <= most
    assert users.fork_of(used_by(first)) is not None, "it was used again and again"
    assert users.fork_of(used_by([10_000 + token for token in range(362)])) is None
