"""Who is put in force has won something, and is worse than lru in nothing: beyond chance at first, as seen after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radix_tlru.learning.guard import Guard
from tests.helpers.examples import examples

THRESHOLD, PROMPT = 1_000, 4_000  # tokens

Turns = Iterator[Sequence[int]]  # uncached tokens of each, under each candidate; the last is lru


def shown(guard: Guard, turns: Turns, count: int) -> str:
    for uncached in islice(turns, count):
        guard.count_turn(PROMPT, uncached, THRESHOLD)
    return guard.preferred


def turns_of(*changes: Callable[[int, int], int], seed: int = 0) -> Turns:
    """Under lru any number of tokens up to 4,000; under each candidate that, changed, given the number of the turn."""
    random = Random(seed)
    for number in count():
        lru = random.randrange(PROMPT)
        yield [*(change(lru, number) for change in changes), lru]


def better(lru: int, number: int) -> int:
    return lru * 9 // 10


def same(lru: int, number: int) -> int:
    return lru


def worse(lru: int, number: int) -> int:
    return lru * 11 // 10


def test_lru_is_in_force_until_200_turns_were_seen() -> None:
    guard, turns = Guard(["etlru", "lru"]), turns_of(better)
    assert shown(guard, turns, 199) == "lru"
    assert shown(guard, turns, 1) == "etlru"


def test_it_looks_again_every_50_turns() -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(same), 200) == "lru"
    assert shown(guard, iter([[0, PROMPT]] * 49), 49) == "lru"
    assert shown(guard, iter([[0, PROMPT]]), 1) == "etlru"


def test_of_two_that_are_as_good_the_first_is_preferred() -> None:
    assert shown(Guard(["a", "b", "lru"]), iter([[0, 0, PROMPT]] * 200), 200) == "a"


def test_lru_stays_in_force_while_nothing_is_won() -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(same), 1_000) == "lru"
    assert guard.refused == {}, "it is not worse either"


@pytest.mark.parametrize("uncached", [0, PROMPT])
def test_lru_stays_in_force_where_all_find_everything_or_nothing(uncached: int) -> None:
    guard = Guard(["etlru", "lru"])
    for _ in range(200):
        guard.count_turn(PROMPT, [uncached, uncached], PROMPT)
    assert (guard.preferred, guard.refused) == ("lru", {})


def test_where_nothing_is_over_the_threshold_it_is_enough_to_prefill_less() -> None:
    for less, preferred in ((0.005, "lru"), (0.02, "etlru")):
        short = ([round(lru * (1 - less)), lru] for lru in (number % THRESHOLD for number in range(2_000)))
        assert shown(Guard(["etlru", "lru"]), short, 2_000) == preferred


def test_where_little_is_found_cached_it_is_enough_to_find_more() -> None:
    for more, preferred in ((1, "lru"), (3, "etlru")):  # tokens in two turns, beside 200 that lru finds
        found = ([PROMPT - 100 - more * (number % 2), PROMPT - 100] for number in range(2_000))
        guard = Guard(["etlru", "lru"])
        for uncached in found:
            guard.count_turn(PROMPT, uncached, PROMPT)
        assert guard.preferred == preferred


def test_the_admitted_candidate_with_the_least_tel_is_preferred() -> None:
    assert shown(Guard(["a", "b", "lru"]), turns_of(same, better), 2_000) == "b"
    assert shown(Guard(["a", "b", "lru"]), turns_of(better, better), 300) == "a"


def test_another_takes_its_place_if_it_has_less_tel_by_1_percent_of_lrus() -> None:
    # TEL of lru is about 1,125 tokens a turn, so that 9 less are too few and 40 less are enough.
    for less, preferred in ((9, "a"), (40, "b")):
        guard = Guard(["a", "b", "lru"])
        assert shown(guard, turns_of(better, worse), 300) == "a"
        turns = turns_of(better, lambda lru, number, less=less: max(better(lru, number) - less, 0))
        assert shown(guard, turns, 2_000) == preferred


def test_who_is_worse_falls_back_to_lru_and_does_so_within_the_window() -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(better), 1_000) == "etlru"
    assert shown(guard, turns_of(worse, seed=1), 2_000) == "lru"
    assert shown(guard, turns_of(better, seed=2), 2_000) == "etlru"


def test_what_was_won_before_is_no_reason_to_lose_it_again() -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(lambda lru, number: lru // 2), 1_500) == "etlru"
    assert shown(guard, turns_of(lambda lru, number: lru * (11 if lru < 3_000 else 10) // 10), 250) == "lru"
    assert guard.refused == {"etlru": "of late"}
    assert shown(guard, turns_of(better, seed=2), 250) == "etlru"


def test_of_late_it_takes_more_losses_than_chance_makes() -> None:
    for losses, preferred in ((40, "etlru"), (50, "lru")):  # beside 25 gains: 2½ standard errors are 20 and 22
        guard = Guard(["etlru", "lru"])
        assert shown(guard, turns_of(better), 1_500) == "etlru"
        assert shown(guard, iter([[700, 800]] * 25 + [[880, 800]] * losses + [[0, 0]] * 185), 250) == preferred


@pytest.mark.parametrize(("more", "refused"), [(0.008, {}), (0.013, {"etlru": "mean"})])
def test_who_is_in_force_may_prefill_up_to_1_percent_more_than_lru(more: float, refused: dict[str, str]) -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(better), 1_000) == "etlru"
    for uncached in islice(turns_of(lambda lru, number: round(lru * (1 + more))), 2_000):
        guard.count_turn(PROMPT, uncached, 0)
    assert (guard.preferred, guard.refused) == ("lru" if refused else "etlru", refused)


@pytest.mark.parametrize("lru", [400, 3_600])
@pytest.mark.parametrize(("more", "refused"), [(3, {}), (5, {"etlru": "mean"})])
def test_it_may_prefill_more_by_1_percent_of_the_lesser_of_prefilled_and_found(
    lru: int, more: int, refused: dict[str, str]
) -> None:
    """Of prompts of 4,000 tokens lru prefills 400, or finds 400: 4 more are allowed."""
    guard = Guard(["etlru", "lru"])
    assert shown(guard, iter([[lru // 2, lru]] * 1_000), 1_000) == "etlru"
    assert shown(guard, iter([[lru + more, lru]] * 2_000), 2_000) == ("lru" if refused else "etlru")
    assert guard.refused == refused


@pytest.mark.parametrize(("more", "refused"), [(8, {}), (13, {"etlru": "over ξ"})])
def test_it_may_be_over_the_threshold_in_up_to_1_percent_more_turns(more: int, refused: dict[str, str]) -> None:
    """Under lru 1,000 of 2,000 turns are over ξ; under the candidate some more by a token, which no percentile sees."""
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(better), 1_000) == "etlru"
    lru = [2_000] * 1_000 + [THRESHOLD] * 1_000
    own = [2_000] * 1_000 + [THRESHOLD + 1] * more + [THRESHOLD] * (1_000 - more)
    assert shown(guard, iter(zip(own, lru, strict=True)), 2_000) == ("lru" if refused else "etlru")
    assert guard.refused == refused


WORSE_IN_ONE_THING: dict[str, Callable[[int, int], int]] = {
    # Each has far less TEL.
    "p50": lambda lru, number: 2_500 if 1_200 < lru < 2_500 else min(lru, 2_500),
    "p90": lambda lru, number: lru if lru > 3_600 else 3_700 if lru > 3_400 else lru // 2,
    "p95": lambda lru, number: lru if lru > 3_800 else 3_900 if lru > 3_700 else lru // 2,
    "p99": lambda lru, number: PROMPT if number % 40 == 0 else lru // 2,
    "turns over the threshold": lambda lru, number: 1_001 if lru > 700 else lru,
    "mean": lambda lru, number: lru if lru > 3_000 else min(lru + 250, 1_000) if lru < 1_000 else lru - 10,
}


@pytest.mark.parametrize("what", WORSE_IN_ONE_THING)
def test_who_is_worse_in_one_thing_is_not_admitted_whatever_its_tel(what: str) -> None:
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(WORSE_IN_ONE_THING[what]), 2_000) == "lru"
    lru, own = 0, 0
    for change, base in islice(turns_of(WORSE_IN_ONE_THING[what]), 2_000):
        lru, own = lru + max(base - THRESHOLD, 0), own + max(change - THRESHOLD, 0)
    assert own < lru


def test_who_makes_short_prefills_longer_is_not_admitted_where_most_are_long() -> None:
    """Two of five turns find all but 10 tokens: none of what p50 and the others look at. The others are shortened."""
    guard = Guard(["etlru", "lru"])
    assert shown(guard, ([300, 10] if number % 5 < 2 else [2_600, 3_000] for number in range(2_000)), 2_000) == "lru"
    assert guard.refused == {"etlru": "p25"}


def trade(gains: int, losses: int) -> Turns:
    """2,000 turns, of which ``gains`` are over ξ under lru alone and ``losses`` under the candidate alone.

    Of all others, and those that it gains, the candidate prefills less.
    """
    for number in range(2_000):
        gained, lost = number < gains, gains <= number < gains + losses
        yield [(1_001 if lost else 900), (1_001 if gained else 1_000)]


@pytest.mark.parametrize("before", [[], ["another"]])
@pytest.mark.parametrize(
    ("gains", "losses", "enters", "stays"),
    [
        # The count of turns over ξ has a standard error of √(gains + losses), and lru's 1 % more are allowed.
        (100, 90, True, True),  # 10 fewer: √190 / 2 = 6.9
        (100, 98, False, True),  # 2 fewer, and 1 allowed: √198 / 2 = 7.0
        (100, 100, False, True),  # as many
        (100, 103, False, False),  # 3 more, and 1 allowed
    ],
)
def test_it_takes_half_a_standard_error_to_enter_and_none_to_stay(
    before: list[str], gains: int, losses: int, enters: bool, stays: bool
) -> None:
    names = [*before, "etlru", "lru"]
    turns = [[*[1_500 for _ in before], *each] for each in trade(gains, losses)]
    assert shown(Guard(names), iter(turns), 2_000) == ("etlru" if enters else "lru")
    guard = Guard(names)
    assert shown(guard, turns_of(*[worse for _ in before], better), 2_000) == "etlru"
    assert shown(guard, iter(turns), 2_000) == ("etlru" if stays else "lru")


def trade_in_p99(gains: int, losses: int) -> Turns:
    """2,000 turns, 20 beyond p99 under lru; under the candidate ``gains`` of these are not, ``losses`` others are.

    None of this is about ξ, and the candidate prefills less on the whole.
    """
    lru = [3 * number // 2 for number in range(1_980)] + [PROMPT] * 20
    own = [tokens - 10 if 1_050 <= tokens < 1_950 else tokens for tokens in lru]
    own[1_980 : 1_980 + gains] = [2_960] * gains
    own[1_940 : 1_940 + losses] = [PROMPT] * losses
    turns = list(zip(own, lru, strict=True))
    Random(0).shuffle(turns)
    return iter(turns)


@pytest.mark.parametrize(
    ("gains", "losses", "stays"),
    [(8, 12, True), (4, 8, False)],  # 4 more of 20 turns beyond p99; √20 = 4.5, √12 = 3.5
)
def test_who_is_in_force_stays_unless_p99_is_worse_by_more_than_chance(gains: int, losses: int, stays: bool) -> None:
    newcomer = Guard(["etlru", "lru"])
    assert shown(newcomer, trade_in_p99(gains, losses), 2_000) == "lru"
    assert newcomer.refused == {"etlru": "p99"}
    guard = Guard(["etlru", "lru"])
    assert shown(guard, turns_of(better), 2_000) == "etlru"
    assert shown(guard, trade_in_p99(gains, losses), 2_000) == ("etlru" if stays else "lru")
    assert guard.refused == ({} if stays else {"etlru": "p99"})


@pytest.mark.parametrize(
    ("gains", "losses", "refused"),
    [(12, 8, {}), (10, 9, {"etlru": "p99"})],  # 4 fewer and 1 fewer; √20 / 2 = 2.2, √19 / 2 = 2.2
)
def test_it_takes_half_a_standard_error_in_p99_to_enter(gains: int, losses: int, refused: dict[str, str]) -> None:
    guard = Guard(["etlru", "lru"])
    for turns in (trade_in_p99(0, 0), trade_in_p99(gains, losses)):  # by neither it wins anything
        for uncached in turns:
            guard.count_turn(PROMPT, uncached, PROMPT)
    assert (guard.preferred, guard.refused) == ("lru", refused)


@pytest.mark.parametrize("turns", [0, 150, 400, 2_000, 5_350])
def test_a_guard_that_begins_where_another_ended_goes_on_as_that_one(turns: int) -> None:
    guard, again = Guard(["a", "b", "lru"]), Guard(["a", "b", "lru"])
    shown(guard, turns_of(same, better), turns)
    again.restore(guard.snapshot())
    assert again.preferred == guard.preferred == ("b" if turns >= 200 else "lru")
    for change in (worse, same, better):
        following = turns_of(better, change, seed=1), turns_of(better, change, seed=1)
        for _ in range(30):
            assert shown(guard, following[0], 50) == shown(again, following[1], 50)
            assert guard.refused == again.refused


def test_what_was_in_force_goes_as_soon_as_it_is_worse() -> None:
    guard, again = Guard(["etlru", "lru"]), Guard(["etlru", "lru"])
    shown(guard, turns_of(better), 2_000)
    again.restore(guard.snapshot())
    assert again.preferred == "etlru"
    assert shown(again, turns_of(worse), 2_000) == "lru"


def test_a_guard_of_other_candidates_begins_with_nothing() -> None:
    guard, other = Guard(["etlru", "lru"]), Guard(["etlru", "tail", "lru"])
    shown(guard, turns_of(better), 2_000)
    other.restore(guard.snapshot())
    assert other.preferred == "lru"
    assert shown(other, turns_of(better, better), 199) == "lru", "it has to see 200 turns"


def trade_in_mean(gains: int, losses: int) -> Turns:
    """2,000 turns; of 625 that lru prefills 1,000 tokens for ``gains`` are 800 less, and ``losses`` 800 more.

    lru's p25 and p50 are 100 tokens, and the others are 3,900.
    """
    own = [200] * gains + [1_800] * losses + [1_000] * (625 - gains - losses)
    turns = [*zip(own, [1_000] * 625, strict=True), *[(100, 100)] * 1_115, *[(3_900, 3_900)] * 260]
    Random(0).shuffle(turns)
    return iter(turns)


@pytest.mark.parametrize(
    ("losses", "enters", "stays"),
    [
        # With 300 gains. lru prefills 1,750,500 tokens, so that 17,505 more are allowed: 21.9 times 800.
        (305, True, True),  # 5 more: √605 / 2 = 12.3
        (312, False, True),  # 12 more: √612 / 2 = 12.4
        (325, False, False),  # 25 more
    ],
)
def test_it_takes_half_a_standard_error_of_the_mean_to_enter_and_none_to_stay(
    losses: int, enters: bool, stays: bool
) -> None:
    newcomer, guard = Guard(["etlru", "lru"]), Guard(["etlru", "lru"])
    for uncached in trade_in_mean(300, 0):
        guard.count_turn(PROMPT, uncached, PROMPT)
    assert guard.preferred == "etlru"
    for uncached in trade_in_mean(300, losses):
        for each in (newcomer, guard):
            each.count_turn(PROMPT, uncached, PROMPT)
    assert newcomer.refused == ({} if enters else {"etlru": "mean"})
    assert guard.refused == ({} if stays else {"etlru": "mean"})
    assert guard.preferred == ("etlru" if stays else "lru")


@pytest.mark.parametrize(
    ("gains", "losses", "preferred", "refused"), [(329, 271, "lru", {"etlru": "chance"}), (332, 268, "etlru", {})]
)
def test_to_take_the_place_of_lru_it_has_to_prefill_less_by_two_and_a_half_standard_errors(
    gains: int, losses: int, preferred: str, refused: dict[str, str]
) -> None:
    """In 58 turns, and in 64; √600 · 2½ = 61.2. The 1 % that is enough otherwise is 21.9 times the 800 tokens."""
    guard = Guard(["etlru", "lru"])
    for uncached in trade_in_mean(gains, losses):
        guard.count_turn(PROMPT, uncached, PROMPT)
    assert (guard.preferred, guard.refused) == (preferred, refused)


@pytest.mark.parametrize(
    ("lru", "own", "preferred", "refused"),
    [
        # Turns that differ. In sum 17,100 tokens less, of which a standard error is 7,459; 34,900, of 10,398; 34,000.
        ([1_000] * 236, [850] * 230 + [3_900] * 6, "etlru", {}),
        ([PROMPT] * 12 + [1_000] * 11, [1_000] * 12 + [1_100] * 11, "lru", {"etlru": "chance"}),
        ([PROMPT] * 12 + [1_000] * 20, [1_000] * 12 + [1_100] * 20, "lru", {"etlru": "chance"}),
    ],
)
def test_a_few_long_prompts_do_not_decide_whether_it_is_chance(
    lru: list[int], own: list[int], preferred: str, refused: dict[str, str]
) -> None:
    guard = Guard(["etlru", "lru"])
    alike = [PROMPT] * 240 + [1_000] * 300 + [100] * (1_460 - len(lru))
    turns = [*zip(own, lru, strict=True), *zip(alike, alike, strict=True)]
    Random(0).shuffle(turns)
    for uncached in turns:
        guard.count_turn(PROMPT, uncached, PROMPT)
    assert (guard.preferred, guard.refused) == (preferred, refused)


def test_another_than_lru_is_replaced_without_that() -> None:
    """By who has less TEL, though it prefills no more than 2 in 1,000 tokens less."""
    guard = Guard(["a", "b", "lru"])
    assert shown(guard, turns_of(better, worse), 1_000) == "a"
    turns = ([lru - 10, min(lru, 3_000), lru] for _, lru in turns_of(same))
    assert shown(guard, turns, 2_000) == "b"


def test_of_those_who_are_as_good_as_lru_some_one_in_twenty_takes_its_place_in_2000_turns() -> None:
    """Each prefills any number of tokens of a prompt: what the candidate wins or loses is chance."""
    taken = 0
    for seed in range(200):
        random, guard = Random(seed), Guard(["etlru", "lru"])
        chance = ([random.randrange(PROMPT), random.randrange(PROMPT)] for _ in range(2_000))
        taken += any(shown(guard, chance, 50) == "etlru" for _ in range(40))
    assert taken <= 14


uncached = st.lists(st.tuples(*[st.integers(0, PROMPT)] * 3), min_size=1, max_size=40)


@settings(max_examples=examples(50))
@given(uncached, st.integers(0, PROMPT))
def test_it_is_deterministic_and_never_prefers_who_prefills_more_or_is_late_more_often(
    some: list[tuple[int, int, int]], threshold: int
) -> None:
    guards = [Guard(["a", "b", "lru"]) for _ in range(2)]
    turns = [some[number % len(some)] for number in range(400)]
    for turn in turns:
        for guard in guards:
            guard.count_turn(PROMPT, turn, threshold)
    assert guards[0].preferred == guards[1].preferred
    own, lru = ([turn[place] for turn in turns] for place in (["a", "b", "lru"].index(guards[0].preferred), 2))
    assert sum(own) <= 1.01 * sum(lru)
    assert sum(tokens > threshold for tokens in own) <= 1.01 * sum(tokens > threshold for tokens in lru)


@pytest.mark.parametrize("what", WORSE_IN_ONE_THING)
def test_it_says_in_what_a_candidate_was_worse(what: str) -> None:
    guard = Guard(["etlru", "better", "lru"])
    shown(guard, turns_of(WORSE_IN_ONE_THING[what], better), 2_000)
    assert guard.refused == {"etlru": {"turns over the threshold": "over ξ"}.get(what, what)}
