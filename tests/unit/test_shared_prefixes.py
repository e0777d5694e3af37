"""What contexts have in common: how it is found, how soon it is used again, and what a leaf of it is worth."""

from __future__ import annotations

import math

import pytest

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache, simulate
from eval.simulate.cells import uncached_tokens
from eval.traces import open_trace
from radix_tlru.learning.conversations import Conversations
from radix_tlru.learning.prefix_index import HashedContext, PrefixIndex, depth_of, hash_at
from radix_tlru.learning.records import Conversation, SharedPrefix, Supersession, Turn, session_key
from radix_tlru.learning.return_model import LearnedReturns
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.learning.shared_prefixes import SharedPrefixes, prefixes_of, reuse_rate
from radix_tlru.learning.turn_features import Feature
from radix_tlru.policy.models import FixedPrompt, Leaf, Recency
from radix_tlru.policy.policy import Policy
from radix_tlru.policy.sharded_dict import SHARDS
from tests.helpers.random_traces import tel
from tests.helpers.turns import PAGE, Words, conversation, new_conversations, told

AGENTS = "agents:runs=1200,arrival_span_s=900,templates=12"
REWINDS = "rewind:sessions=150,span_s=1440"


def run(stamp: float, name: int, *, cached: int, template: int = 1, own: int = 1_000) -> Turn:
    """The first turn of a run behind a template of 1,024 tokens."""
    context = 1_024 + own

    def fingerprint(start: int, end: int, above: int) -> int:
        return template if end <= 1_024 else name * 10_000 + end

    return Turn(stamp, context, 0, context, cached, fingerprint)


def used(prefix: SharedPrefix, number: int, stamp: float) -> Conversation:
    """A turn of the conversation with that number, behind the prefix."""
    return conversation(stamp, number, prefix=prefix)


def test_a_prefix_is_used_at_the_rate_of_late_by_one_conversation_after_another() -> None:
    prefixes: SharedPrefixes = SharedPrefixes(PrefixIndex())
    prefix = prefixes.add_prefix([1], 1_030)
    assert reuse_rate(prefix, 99.0) == 0.0
    for number, stamp, uses, wait in (
        (1, 0.0, 0, 0.0),
        (2, 3.0, 1, 3.0),
        (3, 13.0, 2, 0.7 * 3 + 0.3 * 10),
        (3, 60.0, 2, 5.1),  # its own return
        (4, 113.0, 3, 0.7 * 5.1 + 0.3 * 100),
    ):
        prefixes.count_uses(used(prefix, number, stamp))
        assert (prefix.uses, prefix.wait) == (uses, pytest.approx(wait))
    # Of three uses three quarters are believed. Half the rate: waits are mostly shorter than their mean.
    assert reuse_rate(prefix, 120.0) == pytest.approx(0.5 * 3 / 4 / 33.57)
    assert reuse_rate(prefix, 113.0 + 1_000) == pytest.approx(0.5 * 3 / 4 / 1_000)


def test_a_request_that_came_first_and_ended_last_was_no_time_after_the_other() -> None:
    words, conversations = Words(), new_conversations()
    template = words.fresh(1_024)
    for stamp in (0.0, 10.0):
        conversations.record_turn(told(stamp, template + words.fresh(100)), is_leaf=True)
    # Its context is the beginning of one that is cached, so nobody watches for its return.
    conversations.record_turn(told(20.0, template + words.fresh(50)), is_leaf=False)
    late = conversations.record_turn(told(15.0, template + words.fresh(100)), is_leaf=True)
    prefix = late.prefix
    assert prefix is not None
    # Waits of 10, 10 and 0 s.
    assert (prefix.uses, prefix.wait, prefix.last_use) == (3, pytest.approx(0.7 * 10), 20.0)


def test_the_prefixes_that_were_used_of_late_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 2 * SHARDS
    monkeypatch.setattr("radix_tlru.learning.shared_prefixes._MOST_REMEMBERED", most)
    index: PrefixIndex = PrefixIndex()
    prefixes = SharedPrefixes(index)

    def use(name: int, stamp: int) -> None:
        path = HashedContext(lambda start, end, above: name, 100).path_to(90)
        known = index.prefixes.get(path[-1])
        prefixes.count_uses(used(known or prefixes.add_prefix(path, 95), stamp, float(stamp)))

    for stamp in range(2, 300):
        use(1, stamp)  # again and again
        use(stamp, stamp)
        assert len(index.prefixes) <= most
    remembered = {*map(hash_at, index.prefixes)}
    assert remembered == {*map(hash_at, index._leading)}
    assert {1, 299} < remembered
    assert 2 not in remembered


@pytest.mark.parametrize("cached", [0, 1_024])
def test_the_common_prefix_of_a_first_turn_is_a_shared_prefix(cached: int) -> None:
    """Whether it was cached or not."""
    conversations = new_conversations()
    alone = conversations.record_turn(run(0, name=1, cached=0), is_leaf=True)
    second = conversations.record_turn(run(5, name=2, cached=cached), is_leaf=True)
    assert alone.prefix is None
    prefix = second.prefix
    assert prefix is not None
    assert (prefix.depth, prefix.uses, prefix.wait) == (1_024, 1, 5.0)
    third = conversations.record_turn(run(7, name=3, cached=0), is_leaf=True)
    assert (third.prefix, third.shared_len, third.common, third.new_len) == (prefix, 0, 1_024, 1_000)
    assert prefix.uses == 2
    # Each turn of whoever began with it uses it, once others have used it meanwhile.
    more = conversations.record_turn(run(8, name=2, cached=2_024, own=1_200), is_leaf=True)
    assert (more.number, more.prefix, prefix.uses) == (second.number, prefix, 3)
    assert conversations.record_turn(run(9, name=4, cached=0, template=2), is_leaf=True).prefix is None


def test_what_is_found_cached_is_shared_to_the_token_whoever_left_it() -> None:
    conversations = new_conversations()
    first = conversations.record_turn(run(0, name=1, cached=1_030, own=1_006), is_leaf=True).prefix
    assert first is not None
    assert (depth_of(first.checkpoint), first.depth, first.uses) == (1_024, 1_030, 0)


def test_a_prefix_that_reaches_a_little_further_than_was_known_is_the_same_prefix() -> None:
    conversations = new_conversations()
    known, further = (
        conversations.record_turn(run(float(name), name=name, cached=cached), is_leaf=True).prefix
        for name, cached in ((1, 1_024), (2, 1_030))
    )
    assert known is further
    assert known is not None
    assert (known.depth, known.uses, len(conversations._prefixes._known)) == (1_030, 1, 1)
    assert known.above is None, "it is not on a path below itself"


def test_all_prefixes_on_the_path_are_used_and_the_longest_is_that_of_the_conversation() -> None:
    conversations = new_conversations()
    short = conversations.record_turn(run(0, name=1, cached=512), is_leaf=True).prefix
    assert short is not None
    assert short.depth == 512
    second = conversations.record_turn(run(1, name=2, cached=1_024), is_leaf=True)
    assert second.prefix is not None
    assert [each.depth for each in prefixes_of(second)] == [1_024, 512]
    third = conversations.record_turn(run(2, name=3, cached=600), is_leaf=True)
    assert third.prefix is second.prefix
    assert [each.uses for each in prefixes_of(third)] == [2, 2]


def test_a_leaf_that_is_shared_is_worth_what_the_conversation_promises_and_others_do() -> None:
    conversations, returns = new_conversations(), LearnedReturns()
    for number in range(400):  # a run every three seconds, and none comes back
        latest = conversations.record_turn(run(3.0 * number, name=number, cached=1_024 if number else 0), is_leaf=True)
    prefix, now = latest.prefix, latest.stamp + 2.5
    assert prefix is not None
    shared, own = (Leaf(0, end, 2_024, 1.0, latest) for end in (1_024, 2_024))

    def rate(leaf: Leaf) -> float:
        return returns.rate(returns.group(leaf, now).number, 1.0, now)

    half_a_group = math.exp(1 / 16) - 1
    by_others = reuse_rate(prefix, latest.stamp + 4.0)  # when the price is looked at again
    assert by_others == pytest.approx(0.5 / 4, rel=0.01)
    assert rate(shared) == pytest.approx(by_others + returns._rows[latest.features][0], rel=half_a_group)
    assert rate(own) == pytest.approx(returns._rows[latest.features][0], rel=half_a_group)
    assert returns.floor(own) == 1_024, "the two go apart"
    assert returns.floor(shared) == 0


# ---- what leaves a path ----


def test_a_conversation_whose_path_was_left_is_superseded_early_or_late() -> None:
    conversations, words = new_conversations(), Words()
    path = words.fresh(4_096)
    cases = (724, Supersession.EARLY), (1_024, Supersession.LATE), (128, Supersession.NONE)  # of 4,096
    for shared, how in cases:
        left = conversations.record_turn(told(0.0, [*path[:3_000], *words.fresh(1_096)]), is_leaf=True)
        conversations.record_turn(told(1.0, [*path[:shared], *words.fresh(500)]), is_leaf=True)
        assert left.superseded is how
        assert left.features[Feature.SUPERSEDED] == how
        path = words.fresh(4_096)


def test_a_path_that_is_left_again_was_left_as_it_was_at_first() -> None:
    conversations, words = new_conversations(), Words()
    path = words.fresh(4_096)
    left = conversations.record_turn(told(0.0, path), is_leaf=True)
    for at, shared in ((1.0, 512), (2.0, 2_048)):  # an eighth and a half of it
        conversations.record_turn(told(at, words.fresh(100)), is_leaf=True)
        conversations.record_turn(told(at, [*path[:shared], *words.fresh(500)]), is_leaf=True)
        assert left.superseded is Supersession.EARLY
    assert conversations._log.intervals().start.tolist() == [0.0] * 5 + [1.0], "since 1 s, and not since 2 s"


def test_whoever_leaves_the_path_of_an_answer_that_was_left_out_supersedes_nobody() -> None:
    conversations, words = new_conversations(), Words()
    prompt, answer = words.fresh(1_000), words.fresh(1_000)
    first = conversations.record_turn(told(0.0, prompt, answer, thought_len=1_000), is_leaf=True)
    second = conversations.record_turn(told(1.0, [*prompt, *words.fresh(100)]), is_leaf=True)
    assert second.number == first.number
    other = conversations.record_turn(told(2.0, [*prompt, *answer[:500], *words.fresh(500)]), is_leaf=True)
    assert other.left == first.number
    assert (first.superseded, second.superseded) == (Supersession.NONE, Supersession.NONE)


def test_in_a_session_whatever_begins_anew_supersedes_what_was_there() -> None:
    conversations, words = new_conversations(), Words()
    path = words.fresh(4_096)
    left, other = (
        conversations.record_turn(told(0.0, context, session=session), is_leaf=True)
        for context, session in ((path, "mine"), (words.fresh(4_096), "yours"))
    )
    again = conversations.record_turn(told(1.0, [*path[:512], *words.fresh(500)], session="mine"), is_leaf=True)
    assert (left.superseded, other.superseded) == (Supersession.SESSION, Supersession.NONE)
    conversations.record_turn(told(2.0, words.fresh(500), session="mine"), is_leaf=True)
    assert (again.superseded, other.superseded) == (Supersession.SESSION_ANEW, Supersession.NONE)
    assert left.superseded is Supersession.SESSION, "as it was"


def test_a_session_of_the_same_name_in_another_namespace_is_another_session() -> None:
    conversations, words = new_conversations(), Words()
    first, second, third = (
        conversations.record_turn(told(at, words.fresh(500), session="1", namespace=namespace), is_leaf=True)
        for at, namespace in ((0.0, 7), (1.0, 8), (2.0, 7))
    )
    assert (first.superseded, second.superseded) == (Supersession.SESSION_ANEW, Supersession.NONE)
    assert third.superseded is Supersession.NONE


def test_a_session_name_of_any_length_has_the_same_number_in_every_process() -> None:
    conversations, words = new_conversations(), Words()
    for name in ("a chat", "a chat " + 100_000 * "x", "half a character \ud800"):
        found = conversations.record_turn(told(0.0, words.fresh(500), session=name), is_leaf=True)
        assert found.session == session_key(name) < 1 << 64
        assert conversations._known.in_session(found.session) is found
    assert session_key("a chat") == 10_618_921_346_787_006_025


def test_whoever_goes_on_with_a_conversation_supersedes_nobody() -> None:
    conversations, words = new_conversations(), Words()
    history = words.fresh(2_000)
    first = conversations.record_turn(told(0.0, history, session="mine"), is_leaf=True)
    other = conversations.record_turn(told(0.0, words.fresh(2_000), session="yours"), is_leaf=True)
    conversations.record_turn(told(1.0, [*history, *words.fresh(500)], session="mine"), is_leaf=True)
    assert (first.superseded, other.superseded) == (Supersession.NONE, Supersession.NONE)


# ---- shadows ----


def tlru(threshold: int = 2_048) -> Policy:
    return Policy(Recency(), FixedPrompt(200), threshold, median_weight=0.0)


def served(shadow: ShadowCache, conversations: Conversations, turns: list[Turn]) -> list[int]:
    return [shadow.serve(conversations.record_turn(turn, is_leaf=True), turn) for turn in turns]


@pytest.mark.parametrize("one_in", [1, 2])
def test_a_shadow_holds_once_what_lines_share(one_in: int) -> None:
    shadow = ShadowCache(tlru(), 100_000, 1, one_in)
    turns = [run(float(name), name, cached=1_024 if name else 0) for name in range(9)]
    found = served(shadow, new_conversations(), turns)
    assert found == [0, *[1_024] * 8]
    assert shadow._resident == 1_024 + one_in * 9 * 1_000


@pytest.mark.parametrize("kept", [1_700, 1_024, 600])
def test_who_leaves_a_path_finds_what_a_shadow_still_holds_of_it(kept: int) -> None:
    """A conversation of 2,024 tokens is cut to ``kept``. Another leaves its path after 1,024 tokens and adds 1,000."""
    shadow, conversations = ShadowCache(tlru(), 100_000, 1), new_conversations()
    first, other = run(0.0, 1, cached=0), run(1.0, 2, cached=1_024)
    served(shadow, conversations, [first])
    shadow._evict(shadow._ids[1], kept)
    assert served(shadow, conversations, [other]) == [min(kept, 1_024)]
    assert shadow._resident == max(kept, 1_024) + 1_000


def test_in_a_shadow_both_go_on_after_one_left_the_path_of_the_other() -> None:
    shadow, conversations = ShadowCache(tlru(), 100_000, 1), new_conversations()
    turns = [run(0.0, 1, cached=0), run(1.0, 2, cached=1_024)]
    grown = [turn._replace(stamp=2.0, prompt_len=3_000, context_len=3_000) for turn in turns]
    assert served(shadow, conversations, [*turns, *grown]) == [0, 1_024, 2_024, 2_024]
    assert shadow._resident == 1_024 + 2 * (3_000 - 1_024)


def test_a_shadow_evicts_a_shared_prefix_with_its_last_branch() -> None:
    shadow = ShadowCache(tlru(200), 6_000, 1)  # which lets nothing go before its turn
    conversations = new_conversations()
    first = [run(float(name), name, cached=1_024 if name else 0) for name in range(3)]
    others = [run(10.0 + name, 100 + name, cached=0, template=2 + name) for name in range(9)]
    served(shadow, conversations, first)
    assert len(shadow._nodes) == 1
    served(shadow, conversations, others)
    assert not shadow._nodes, "nine others of 2,024 tokens each leave nothing of it"
    assert not shadow._childless
    (found,) = served(shadow, conversations, [run(30.0, 200, cached=1_024)])
    assert found == 0
    assert shadow._resident <= shadow.capacity


@pytest.mark.parametrize(
    ("trace", "capacity"),
    [(AGENTS, 100_000), pytest.param(AGENTS, 300_000, marks=pytest.mark.long), (REWINDS, 120_000)],
)
def test_a_shadow_of_lru_pays_what_lru_pays_where_paths_are_shared(trace: str, capacity: int) -> None:
    """From the 100th request on, when the shadow, which begins with the 50th, holds what others left behind."""
    requests = open_trace(trace).requests
    cache = etlru(capacity)
    simulate(cache, requests[:100])
    learner = cache.learner
    assert learner is not None
    assert learner.selector is not None
    before = learner.selector.served["lru"].excess
    simulate(cache, requests[100:])
    assert learner.selector.one_in == 1
    tel_of_lru = tel(requests[100:], simulate(lru(capacity), requests)[100:], 2_048)
    assert learner.selector.served["lru"].excess - before == pytest.approx(tel_of_lru, rel=0.01)


@pytest.mark.parametrize(
    "capacity", [100_000, *(pytest.param(more, marks=pytest.mark.long) for more in (200_000, 400_000))]
)
def test_with_shared_templates_etlru_has_less_tel_than_lru_and_in_small_caches_than_tlru(
    capacity: int,
) -> None:
    requests = open_trace(AGENTS).requests
    learning = etlru(capacity)
    tels = [tel(requests, simulate(cache, requests), 2_048) for cache in (learning, lru(capacity))]
    assert learning.learner is not None
    assert learning.learner.selector is not None
    shadows = learning.learner.selector.served
    assert shadows["etlru"].excess < 0.95 * shadows["lru"].excess, "by the learned rates alone"
    if capacity == 200_000:  # there they are worse in something, and the guard lets them in late or not at all
        assert tels[0] <= tels[1]
    else:
        assert tels[0] < tels[1]
    if capacity == 100_000:
        pinned = simulated_cache("tlru", capacity, threshold=2_048, next_prompt_estimate=200, page_size=16)
        assert tels[0] < tel(requests, simulate(pinned, requests), 2_048)


@pytest.mark.parametrize("one_in", [1, 2])
def test_what_a_shadow_pays_does_not_depend_on_what_the_policy_in_force_holds(one_in: int) -> None:
    """Templates that the cache has evicted are found by a shadow that has not, and the other way round."""

    def served(cached: int) -> list[int]:
        shadow, conversations = ShadowCache(tlru(), 40_000, PAGE, one_in), new_conversations()
        turns = [run(float(name), name, cached=cached if name else 0) for name in range(40)]
        return [shadow.serve(conversations.record_turn(turn, is_leaf=True), turn) for turn in turns]

    assert served(cached=1_024) == served(cached=0) == [0, *[1_024] * 39]


def test_a_run_finds_its_template_unless_the_cache_was_too_small_for_it() -> None:
    requests = open_trace(AGENTS).requests
    uncached = uncached_tokens(requests, simulate(etlru(50_000_000), requests))
    seen, later_runs = set[int](), 0
    for request, tokens in zip(requests, uncached, strict=True):
        if len(request.prompt.ids) == 2 and request.prompt.ids[0] in seen:
            assert tokens <= request.prompt_tokens - request.prompt.ends[0] + 15
            later_runs += 1
        seen.add(request.prompt.ids[0])
    assert len(seen) == 12
    assert later_runs > 100


def etlru(capacity: int) -> SimulatedCache:
    return simulated_cache("etlru", capacity, threshold=2_048, page_size=16)


def lru(capacity: int) -> SimulatedCache:
    return simulated_cache("lru", capacity, threshold=2_048, page_size=16)
