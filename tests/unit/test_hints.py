"""What clients say of their conversations: what is said wrongly, what it changes, and what it cannot."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from radix_tlru import Config, EvictionOrder, Leaf
from radix_tlru.hints.models import DEAREST, factor
from radix_tlru.hints.quota import SHARE, ClaimQuota
from radix_tlru.hints.schema import HIGHEST, LONGEST_S, Hints, HintsError, Range
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Turn
from tests.helpers.leaves import Leaves
from tests.helpers.rules import InTurn
from tests.helpers.turns import Words, told, turn

PAGE, CAPACITY, THRESHOLD, NEXT_PROMPT = 16, 16_000, 640, 64


def nested(depth: int) -> Any:
    """A list in a list, and so on: 5,000 are more than Python writes as JSON, of which there are parsers."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (7, "tlru 7: must be an object with any of conversation_ends, next_prompt_tokens, returns_in_s, retention"),
        ({"ends": True}, "tlru.ends true: must be left out; known are "),
        ({"conversation_ends": 1}, "tlru.conversation_ends 1: must be true or false"),
        ({"next_prompt_tokens": -1}, "tlru.next_prompt_tokens -1: must be a whole number of tokens from 0 to 1048576"),
        ({"next_prompt_tokens": 2.5}, "tlru.next_prompt_tokens 2.5: must be a whole number"),
        ({"returns_in_s": 0}, "tlru.returns_in_s 0: must be a number of seconds above 0, up to 3600"),
        ({"returns_in_s": float("nan")}, "tlru.returns_in_s NaN: must be a number"),
        ({"returns_in_s": 9, "conversation_ends": True}, "tlru.returns_in_s 9: must be left out of a conversation"),
        ({"retention": {}}, "tlru.retention {}: must be a list of up to 16 ranges"),
        ({"retention": [{"priority": 101}]}, "tlru.retention[0].priority 101: must be a whole number from 0 to 100"),
        ({"retention": [{"start": 9, "end": 9, "priority": 1}]}, "tlru.retention[0].end 9: must be "),
        ({"retention": [{"priority": 1, "duration_s": 1e9}]}, "tlru.retention[0].duration_s 1000000000.0: must be "),
        ({"retention": [{"priority": 1, "duration_s": None}]}, "tlru.retention[0].duration_s null: must be "),
        ({"retention": [{"priority": 1, "until": 4}]}, "tlru.retention[0] "),
        ({"next_prompt_tokens": "\n" * 200}, 'tlru.next_prompt_tokens "\\n\\n'),
        (nested(5_000), f"tlru {'[' * 77}...: must be an object with any of "),
        ({"retention": [nested(5_000)]}, f"tlru.retention[0] {'[' * 77}...: must be an object with "),
    ],
)
def test_what_is_said_wrongly_is_named_in_one_line(said: Any, message: str) -> None:
    with pytest.raises(HintsError) as error:
        Hints.parse(said)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


def test_what_is_said_arrives_as_it_was() -> None:
    said = {
        "next_prompt_tokens": 300,
        "returns_in_s": 12.5,
        "retention": [{"start": 0, "end": 512, "priority": 80, "duration_s": 60}, {"start": 512, "priority": 10}],
    }
    hints = Hints.parse(said)
    assert Hints.loads(hints.dumps()) == hints
    assert hints.retention[1] == (512, None, 10, LONGEST_S)
    assert Hints.loads(Hints.parse({"conversation_ends": True}).dumps()).conversation_ends


class Lines:
    """A cache of conversations that share nothing, in which every turn is one of 1,600 tokens."""

    def __init__(self, config: Config, capacity: int = CAPACITY) -> None:
        self.learner = Learner(config, capacity, PAGE)
        self.leaves: dict[int, Leaf] = {}
        self.order = EvictionOrder(self.learner.policy, PAGE, self.leaves.get)

    def serve(self, number: int, at: float, tokens: int = 1_600, **said: Any) -> None:
        """A turn of a new conversation of that number, at a time in s."""
        hints = Hints.parse(said) if said else None
        turn = Turn(at, tokens // 2, tokens // 2, tokens, 0, lambda start, end, above: number << 32 | end, hints)
        known = self.learner.record_turn(turn)
        if self.learner.policy is not self.order.policy:
            self.order.switch_policy(self.learner.policy)
        self.leaves[number] = Leaf(0, tokens, tokens, float(len(self.leaves) + 1), known)
        self.order.add_leaf(number)
        self.order.renew_prices()

    def evict(self, tokens: int = 1) -> tuple[int, int]:
        """Take the next victim out; returns its number and what of it would stay."""
        victim = self.order.choose_victim(tokens)
        assert victim is not None
        self.order.remove_leaf(victim.leaf_id)
        del self.leaves[victim.leaf_id]
        return victim.leaf_id, victim.keep

    def evict_all(self) -> list[int]:
        """Numbers of the conversations in the order in which they go, whole."""
        found = []
        while self.leaves:
            number, _ = self.evict(1_600)
            found.append(number)
        return found


LRU_LIKE = Config("tlru", threshold=NEXT_PROMPT + 1, next_prompt_estimate=NEXT_PROMPT)


def test_without_hints_the_policy_is_not_wrapped() -> None:
    lines = Lines(LRU_LIKE)
    lines.serve(1, 0.0)
    before = lines.learner.policy
    lines.serve(2, 1.0, conversation_ends=False)
    assert lines.learner.policy is not before
    assert lines.evict_all() == [1, 2]


def test_a_conversation_that_has_ended_goes_first() -> None:
    lines = Lines(LRU_LIKE)
    for number in range(1, 6):
        lines.serve(number, float(number), **({"conversation_ends": True} if number in (2, 5) else {}))
    assert lines.evict_all() == [2, 5, 1, 3, 4]


def test_the_length_of_the_next_prompt_moves_the_budget() -> None:
    config = Config("tlru", threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    kept = {}
    for tokens in (0, NEXT_PROMPT, 320, 10_000):
        lines = Lines(config)
        lines.serve(1, 0.0, next_prompt_tokens=tokens)
        kept[tokens] = lines.evict(1_600)[1]
    assert kept == {0: 960, NEXT_PROMPT: 1_024, 320: 1_280, 10_000: 0}  # L + Q - ξ; beyond ξ there is no budget


def test_who_returns_soon_outlasts_younger_ones_for_no_longer_than_promised() -> None:
    def order(at: float, returns_in_s: float = 50) -> list[int]:
        lines = Lines(LRU_LIKE, capacity=100_000)
        lines.serve(1, 0.0)
        lines.serve(2, 0.0, returns_in_s=returns_in_s)
        for number in range(3, 10):
            lines.serve(number, at * number / 10)
        lines.serve(10, at)
        return lines.evict_all()

    soon, late = order(45.0), order(101.0)
    assert soon.index(2) > soon.index(3)
    assert late == sorted(late), "twice the time has passed, and it is not coming"
    longest = order(LONGEST_S + 1, returns_in_s=LONGEST_S)
    assert longest == sorted(longest), "nobody is waited for longer than an hour"


def test_priorities_make_tokens_up_to_four_times_as_dear_and_no_more() -> None:
    assert [factor(priority) for priority in (0, 35, 100)] == [0.0, 1.0, DEAREST]
    lines = Lines(LRU_LIKE, capacity=100_000)
    lines.serve(1, 0.0, retention=[{"priority": 100}])
    for number in range(2, 22):
        lines.serve(number, float(number))
    found = lines.evict_all()
    # Of age 20 it is as dear as one of age 5, and older ones go before; younger ones it does not outlast.
    assert 12 <= found.index(1) <= 18
    assert [number for number in found if number != 1] == list(range(2, 22))


def test_what_lru_would_have_cost_does_not_depend_on_how_the_cache_counts_time() -> None:
    """Its clock goes on with each lookup, that of a shadow once a turn; of what hints say both know the seconds."""
    claim = Hints.parse({"retention": [{"priority": 100}]})

    def uncached(lookups_a_turn: int) -> int:
        learner = Learner(Config("etlru", THRESHOLD), 40_000, PAGE)
        learner.rule = InTurn(["lru"])
        leaves = Leaves(learner.policy, PAGE)
        random, contexts = Random(0), dict[int, int]()
        for at in range(600):
            # 67 contexts of 592 tokens fit in; one of the last 150 conversations goes on, or one begins.
            name = random.randrange(max(at - 150, 0), at + 1)
            context = contexts[name] = contexts.get(name, 0) + 600 // PAGE * PAGE
            served = turn(float(at), context, context, name)._replace(hints=claim if name % 4 == 0 else None)
            known = learner.record_turn(served, learns_later=True)
            if name in leaves:
                leaves.vanish(name)
            leaves.order.switch_policy(learner.policy)
            leaves.appear(name, Leaf(0, context, context, float(at * lookups_a_turn), known))
            leaves.order.choose_victim(1)  # which looks at the time
            learner.learn()
        assert learner.in_force == "lru"
        assert learner.selector is not None
        assert learner.selector.one_in == 1
        return learner.selector.served["lru"].uncached

    assert uncached(lookups_a_turn=1) == uncached(lookups_a_turn=2) == uncached(lookups_a_turn=8)


def test_when_the_threshold_moves_the_leaves_of_a_shadow_of_lru_keep_their_prices() -> None:
    lines = Lines(Config("etlru", THRESHOLD))
    for number in range(60):
        lines.serve(number, float(number), returns_in_s=60)
    learner = lines.learner
    assert learner.selector is not None
    order = learner.selector._shadows["lru"].order
    before = order.policy.returns
    assert before is not learner.candidates["lru"].returns, "each has a clock of its own"
    learner.use_threshold(2 * THRESHOLD)
    assert (order.policy.threshold, order.policy.returns) == (2 * THRESHOLD, before)
    assert len(order._pricings) == 1


def test_a_range_is_taken_no_further_than_it_goes() -> None:
    lines = Lines(LRU_LIKE)
    lines.serve(1, 0.0)
    lines.serve(2, 1.0, retention=[{"start": 800, "priority": 0}])
    known = lines.leaves[2].conversation
    assert lines.evict(1_600) == (2, 800), "the answer goes, the prompt is as old as it is"
    lines.leaves[2] = Leaf(0, 800, 1_600, 2.0, known)
    lines.order.add_leaf(2)
    assert lines.evict(1_600) == (1, 0), "what ends where the range begins has nothing of it"


def test_claims_fill_no_more_than_their_share_of_the_pool() -> None:
    lines = Lines(LRU_LIKE)  # ten contexts fit in
    for number in range(1, 11):
        lines.serve(number, float(number), returns_in_s=LONGEST_S)
    believed = [number for number, leaf in lines.leaves.items() if leaf.conversation.hints.returns_in_s is not None]
    assert believed == [1, 2]
    assert len(believed) * 1_600 <= SHARE * CAPACITY
    lines.serve(11, LONGEST_S + 3, returns_in_s=60)
    assert lines.leaves[11].conversation.hints.returns_in_s == 60, "claims that are over leave room for others"


LOWEST = {"priority": 0}


def with_a_full_quota(**said: Any) -> Lines:
    """Conversation 1, of which nothing was said; 2 and 3, whose claims fill the quota; 4, whose claim is refused."""
    lines = Lines(LRU_LIKE)  # ten contexts fit in, and claims may fill two and a half
    lines.serve(1, 0.0)
    for number in (2, 3):
        lines.serve(number, float(number), returns_in_s=LONGEST_S)
    lines.serve(4, 4.0, **said)
    assert lines.leaves[4].conversation.hints.claim_s == 0.0
    return lines


def test_behind_a_range_that_is_not_believed_no_other_speaks_of_its_tokens() -> None:
    lines = with_a_full_quota(retention=[{"end": 800, "priority": 100}, LOWEST])
    assert lines.evict(1_600) == (4, 800), "the first 800 tokens were to be kept, and what is behind them was not"


def test_a_conversation_that_has_ended_goes_first_though_its_claim_is_refused() -> None:
    lines = with_a_full_quota(conversation_ends=True, retention=[{"priority": 100, "duration_s": 60}])
    assert lines.evict(1_600) == (4, 0)


@pytest.mark.parametrize(
    "said",
    [
        {"returns_in_s": 30, "retention": [LOWEST]},
        {"retention": [{"priority": 100, "duration_s": 60}, LOWEST]},
    ],
)
def test_a_rejected_claim_counts_as_none_for_as_long_as_it_would_have_held(said: dict[str, Any]) -> None:
    lines = with_a_full_quota(**said)
    assert lines.evict(1_600) == (1, 0), "the least recent"
    lines.serve(5, 4.0 + 60)
    assert lines.evict(1_600) == (4, 0), "twice 30 s are over, and so are 60: the lowest priority holds"


def test_a_claim_counts_for_as_long_as_it_is_believed_however_long_the_answer_took() -> None:
    lines = Lines(LRU_LIKE)
    claim = {"retention": [{"priority": 100, "duration_s": 30}]}
    lines.serve(1, 60.0)
    lines.serve(2, 0.0, tokens=4_000, **claim)  # came at 0, is answered at 60, and believed until 90
    lines.serve(3, 89.0, **claim)
    lines.serve(4, 91.0, **claim)
    believed = {number: lines.leaves[number].conversation.hints.claim_s > 0 for number in (2, 3, 4)}
    assert believed == {2: True, 3: False, 4: True}, "4,000 tokens are all that claims may fill"


def test_what_a_prompt_leaves_out_counts_until_its_claim_ends() -> None:
    """Templates leave reasoning out: the answer stays in the cache, a leaf by whose record it is still claimed."""
    learner, claim = Learner(LRU_LIKE, CAPACITY, PAGE), Hints.parse({"retention": [{"priority": 100}]})
    words, prompt, believed = Words(), [], []
    for at in (0.0, 1.0, 2.0, LONGEST_S):
        prompt = [*prompt, *words.fresh(160)]
        known = learner.record_turn(told(at, prompt, words.fresh(1_440), hints=claim, thought_len=1_400))
        believed.append(known.hints == claim)
    assert (known.number, known.turn) == (1, 3), "one conversation, known by its prompts"
    # Claims may fill 4,000: 1,600, then 1,440 + 1,760, but not 2 · 1,440 + 1,920; when the first is over 1,440 + 2,080.
    assert believed == [True, True, False, True]


def test_of_a_context_that_is_left_in_part_only_the_rest_counts_beside_the_new_one() -> None:
    claims, claim = ClaimQuota(capacity=10_000), Hints(returns_in_s=LONGEST_S)
    assert claims.admit(claim, 1_000, 0.0, 1, repeated=0) == claim
    assert claims.admit(claim, 1_000, 1.0, 1, repeated=600) == claim
    # Claims may fill 2,500; 400 are left out, and 1,000 claimed anew.
    assert claims.admit(claim, 1_101, 2.0, 2, repeated=0) == claim.without_claims()
    assert claims.admit(claim, 1_100, 3.0, 2, repeated=0) == claim


def test_a_claim_that_is_made_again_and_again_takes_little_memory_and_ends_all_the_same() -> None:
    claims, held_s = ClaimQuota(capacity=10_004), 60.0
    claim, longer = (Hints(retention=(Range(0, None, HIGHEST, each),)) for each in (held_s, LONGEST_S))
    assert claims.admit(longer, 1, 0.0, 5, repeated=0) == longer
    assert claims.admit(claim, 500, 0.0, 3, repeated=0) == claim
    for at in range(1_000):
        for conversation in (1, 2):
            assert claims.admit(claim, 1_000, at / 1_000, conversation, repeated=1_000) == claim
        assert len(claims._expiries) <= 2 * 4 + 64 + 1
    assert claims.admit(claim, 1_000, held_s, 4, repeated=0) == claim.without_claims(), "2,501 are all, and 500 free"
    assert claims.admit(claim, 2_500, held_s + 1.0, 4, repeated=0) == claim


def test_a_conversation_has_one_claim() -> None:
    claims, soon = ClaimQuota(capacity=10_000), Hints(returns_in_s=LONGEST_S)

    def admit(hints: Hints | None, tokens: int, now: float, conversation: int) -> Hints | None:
        return claims.admit(hints, tokens, now, conversation, repeated=tokens)

    for at in range(20):
        assert admit(soon, 2_000, float(at), 1) == soon
    # Two of a quarter of the pool do not fit in, until the first has said something else, or nothing.
    assert admit(soon, 2_000, 20.0, 2) == soon.without_claims()
    assert admit(None, 2_000, 21.0, 1) is None
    assert admit(soon, 2_000, 22.0, 2) == soon
    assert claims.refused == 1
    claims.clear()
    assert admit(soon, 2_500, 23.0, 3) == soon
    # Long after, all of it is free again, whoever spoke last.
    assert admit(soon, 2_500, 3 * LONGEST_S, 4) == soon
    assert admit(soon, 2_500, 4 * LONGEST_S - 1, 4) == soon
    assert admit(soon, 1, 4 * LONGEST_S + 1, 5) == soon.without_claims(), "made again, it counts for an hour again"
