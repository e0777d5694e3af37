"""What contexts have in common: how it is found, how soon it is used again, and what a leaf of it is worth."""

from __future__ import annotations

import pytest
from radix_tlru.learning.hazards import Hazards

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import uncached_tokens
from eval.traces import open_trace
from radix_tlru.learning.age_bands import BANDS
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import Checkpoint, PrefixIndex
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.learning.shared_prefixes import SharedPrefixes
from radix_tlru.policy.models import FixedPrompt, Leaf, Recency
from radix_tlru.policy.policy import Policy
from tests.helpers.random_traces import tel

AGENTS = "agents:runs=1200,arrival_span_s=900,templates=12"


def run(stamp: float, name: int, *, cached: int, template: int = 1, own: int = 1_000) -> Turn:
    """The first turn of a run behind a template of 1,024 tokens."""
    context = 1_024 + own

    def fingerprint(start: int, end: int, above: int) -> int:
        return template if end <= 1_024 else name * 10_000 + end

    return Turn(stamp, context, 0, context, cached, fingerprint)


def test_a_prefix_is_judged_by_how_often_it_was_used_and_how_soon_again() -> None:
    hazards = Hazards()
    prefixes = SharedPrefixes(PrefixIndex(), hazards)
    prefix = prefixes.add_prefix(Checkpoint(None, 1_024, 7))
    classes = []
    for stamp in (0.0, 3.0, 13.0, 113.0, 1_000.0):
        prefixes.count_use(prefix, stamp)
        assert prefix.last is not None
        assert prefix.last.stamp == stamp
        classes.append(prefix.last.cls[1:])
    # Uses by doublings: 1, 2 to 3, 4 to 7; waits of under 4, 16, 64, 256 s, and longer.
    assert classes == [(1, 0), (2, 0), (2, 1), (3, 3), (3, 4)]
    assert hazards.returns == 4


def test_the_prefixes_that_were_used_of_late_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("radix_tlru.learning.shared_prefixes._MOST_REMEMBERED", 3)
    hazards, contexts = Hazards(), PrefixIndex()
    prefixes = SharedPrefixes(contexts, hazards)
    for stamp, name in enumerate((1, 2, 3, 1, 4, 5)):
        rung = contexts.last_checkpoint(lambda start, end, above, name=name: name, 100)
        assert rung is not None
        prefixes.count_use(rung.prefix or prefixes.add_prefix(rung), float(stamp))
    assert {rung.number for rung in contexts._checkpoints.values() if rung.prefix is not None} == {1, 4, 5}
    assert {rung.number for rung in contexts._checkpoints.values()} == {1, 4, 5}
    assert sum(one.band >= 0 for band in hazards._bands for one in band) == 3, "the others are watched no more"


def test_what_a_first_turn_finds_cached_others_began_with_too() -> None:
    conversations = Conversations(Hazards())
    alone = conversations.record_turn(run(0, name=1, cached=0), is_leaf=True)
    second = conversations.record_turn(run(1, name=2, cached=1_024), is_leaf=True)
    assert alone.prefix is None
    assert second.prefix is not None
    assert (second.prefix.checkpoint.depth, second.prefix.uses) == (1_024, 1)
    # Known from then on, whether it is cached or not, and used by every turn of whoever began with it.
    lost = conversations.record_turn(run(2, name=3, cached=0), is_leaf=True)
    assert (lost.prefix, lost.shared_len, second.prefix.uses) == (second.prefix, 0, 2)
    more = run(3, name=2, cached=2_024, own=1_200)
    assert conversations.record_turn(more, is_leaf=True).prefix is second.prefix
    assert second.prefix.uses == 3
    assert conversations.record_turn(run(4, name=4, cached=0, template=2), is_leaf=True).prefix is None


def test_the_longest_prefix_counts() -> None:
    conversations = Conversations(Hazards())
    short = conversations.record_turn(run(0, name=1, cached=512), is_leaf=True).prefix
    assert short is not None
    assert short.checkpoint.depth == 512
    longer = conversations.record_turn(run(1, name=2, cached=1_024), is_leaf=True).prefix
    assert longer is not None
    assert longer.checkpoint.depth == 1_024
    assert conversations.record_turn(run(2, name=3, cached=600), is_leaf=True).prefix is longer


def test_a_leaf_that_is_shared_is_worth_what_its_prefix_promises_if_that_is_more() -> None:
    returns = LearnedReturns()
    conversations = Conversations(returns.hazards, prefix_hazards=returns.prefix_hazards)
    latest: Conversation | None = None
    for number in range(400):  # a run every three seconds, and none comes back
        latest = conversations.record_turn(run(3.0 * number, name=number, cached=1_024 if number else 0), is_leaf=True)
    assert latest is not None
    returns.refit()
    now = latest.stamp + 2.5
    shared, own = (Leaf(0, end, 2_024, 1.0, latest) for end in (1_024, 2_024))

    def rate(leaf: Leaf) -> float:
        return returns.rate(returns.group(leaf, now).number, 1.0, now)

    assert rate(shared) > 0.2 > 0.01 > rate(own)
    assert returns.group(shared, now).expiry == returns.group(own, now).expiry == latest.stamp + 4.0
    # And it is worth what the conversation promises where that is more.
    returns._index[(0, 0)] = [9.0] * len(BANDS)
    returns._numbers.clear(), returns._classes.clear(), returns._rates.clear(), returns._runs.clear()
    for use in (latest, latest.prefix.last):  # type: ignore[union-attr]
        use.group_until = 0.0  # type: ignore[union-attr]
    assert rate(shared) == rate(own) == 9.0


def tlru(threshold: int = 2_048) -> Policy:
    return Policy(Recency(), FixedPrompt(200), threshold, median_weight=0.0)


def served(shadow: ShadowCache, conversations: Conversations, turns: list[Turn]) -> list[int]:
    return [shadow.serve(conversations.record_turn(turn, is_leaf=True), turn) for turn in turns]


@pytest.mark.parametrize("one_in", [1, 2])
def test_a_shadow_holds_once_what_lines_share(one_in: int) -> None:
    shadow = ShadowCache(tlru(), 100_000, 1, one_in)
    turns = [run(float(name), name, cached=1_024 if name else 0) for name in range(9)]
    found = served(shadow, Conversations(Hazards()), turns)
    # The first line is taken to be its own, the second brings what all others find.
    assert found == [0, 0, *[1_024] * 7]
    assert shadow._resident == one_in * 2_024 + 1_024 + one_in * 8 * 1_000


def test_a_shadow_evicts_what_lines_share_when_none_of_them_is_left_and_then_it_is_missed() -> None:
    shadow = ShadowCache(tlru(200), 6_000, 1)  # which lets nothing go before its turn
    conversations = Conversations(Hazards())
    first = [run(float(name), name, cached=1_024 if name else 0) for name in range(3)]
    others = [run(10.0 + name, 100 + name, cached=0, template=2 + name) for name in range(9)]
    served(shadow, conversations, first)
    assert len(shadow._fronts) == 1
    served(shadow, conversations, others)
    assert not shadow._fronts, "nine others of 2,024 tokens each leave nothing of it"
    assert not shadow._fronts_alone
    (found,) = served(shadow, conversations, [run(30.0, 200, cached=1_024)])
    assert found == 0
    assert shadow._resident <= shadow.capacity


@pytest.mark.parametrize("capacity", [100_000, 300_000])
def test_a_shadow_of_lru_pays_what_lru_pays_where_templates_are_shared(capacity: int) -> None:
    requests = open_trace(AGENTS).requests
    cache = etlru(capacity)
    tel_of_lru = tel(requests, simulate(lru(capacity), requests), 2_048)
    simulate(cache, requests)
    learner = cache._learner
    assert learner is not None
    assert learner.selector is not None
    assert learner.selector.one_in == 1
    assert learner.selector.excess["lru"] == pytest.approx(tel_of_lru, rel=0.1)


def test_where_templates_are_shared_etlru_has_less_tel_than_tlru_and_lru() -> None:
    requests = open_trace(AGENTS).requests
    for capacity in (100_000, 200_000, 400_000):
        tels = [tel(requests, simulate(cache, requests), 2_048) for cache in (etlru(capacity), lru(capacity))]
        pinned = simulated_cache("tlru", capacity, threshold=2_048, next_prompt_estimate=200, page_size=16)
        assert tels[0] < min(tels[1], tel(requests, simulate(pinned, requests), 2_048))


def test_a_run_finds_its_template_unless_the_cache_was_too_small_for_it() -> None:
    requests = open_trace(AGENTS).requests
    uncached = uncached_tokens(requests, simulate(etlru(50_000_000), requests))
    seen: set[int] = set()
    for request, tokens in zip(requests, uncached, strict=True):
        if len(request.prompt.ids) == 2 and request.prompt.ids[0] in seen:
            assert tokens <= request.prompt_tokens - request.prompt.ends[0] + 15
        seen.add(request.prompt.ids[0])
    assert len(seen) == 12


def etlru(capacity: int) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=2_048, page_size=16)


def lru(capacity: int) -> SimulatedCache:
    return simulated_cache("lru", capacity, threshold=2_048, page_size=16)
