"""Models of one's own: all of the package's keep their contracts, and a wrong answer is named in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest

from eval.caches.futures import NEVER, Future
from eval.caches.models import Exponential, LongEnough, NextUse, StepPrompt, TrueNextPrompt, Unended
from eval.examples.tool_calls import AfterToolCalls
from radix_tlru import Config, ConfigError, Leaf, ModelError, check_prompt_model, check_return_model
from radix_tlru.hints.models import HintedPrompts, HintedReturns
from radix_tlru.hints.schema import Hints, Range
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.model_check import check_custom_model
from radix_tlru.learning.prompt_lengths import PromptLengths
from radix_tlru.learning.records import Turn
from radix_tlru.learning.return_model import LearnedReturns, RecentTurns
from radix_tlru.learning.reuse import ReusableOnly
from radix_tlru.policy.checks import LEAVES
from radix_tlru.policy.models import AnyPrompt, FixedPrompt, Recency
from radix_tlru.policy.policy import Policy
from tests.helpers.leaves import Leaves
from tests.helpers.wrong_models import (
    Counts,
    Endless,
    EndsAtOnce,
    EndsNowhere,
    FailsToSay,
    Falls,
    FallsUnseen,
    FirstIsOther,
    Halves,
    HoldsAll,
    HoldsAllLater,
    KeysFall,
    LastsRight,
    LastsTooDear,
    Negative,
    NeverUsed,
    NoLevels,
    NoNumber,
    NoNumberLater,
    NoOrderLater,
    Nothing,
    NotTimeless,
    OldFirst,
    OneLevel,
    OneOfAKind,
    PlainPair,
    Raises,
    Right,
    Rises,
    Rolls,
    SaysWhen,
    Sometimes,
    Unlikely,
)

WRONG = "tests.helpers.wrong_models"


HINTS = (
    None,
    Hints(returns_in_s=90.0),
    Hints(conversation_ends=True),
    Hints(retention=(Range(0, None, 100, 600.0),)),
    Hints(next_prompt_tokens=3_000),
)
PREFIX, ADDED = 1_024, 2_048  # tokens


def told() -> Iterator[Leaf]:
    """Leaves of conversations with one prefix, which a learner was told of; some have hints, some thoughts."""
    learner = Learner(Config("etlru"), capacity=1 << 20, page_size=64)
    for number, (turn, (name, hints)) in enumerate(product((0, 1, 2), enumerate(HINTS)), start=1):
        length = PREFIX + ADDED * (turn + 1)
        served = Turn(
            *(float(number), length - 200, 200, length, PREFIX + ADDED * turn),
            lambda start, end, above, name=name: end if end <= PREFIX else (name + 1) << 32 | end,
            hints,
            thought_len=100 * (name == 0),
        )
        conversation = learner.record_turn(served)
        yield Leaf(PREFIX, length, length, float(number), conversation)
        yield Leaf(0, PREFIX, length, float(number), conversation)
        yield Leaf(PREFIX, length, length, float(number), conversation, usable_without=PREFIX)


TOLD = tuple(told())
FUTURES = tuple(leaf._replace(conversation=known) for leaf in LEAVES for known in (NEVER, Future(9e7, 70_000)))
RATES = tuple(leaf._replace(conversation=(rate, leaf.last_access)) for leaf in LEAVES for rate in (1e-4, 0.5))


@pytest.mark.parametrize(
    ("make", "leaves"),
    [
        (Recency, LEAVES),
        (RecentTurns, TOLD),
        (LearnedReturns, TOLD),
        (lambda: ReusableOnly(Recency()), TOLD),
        (lambda: ReusableOnly(LearnedReturns()), TOLD),
        (lambda: HintedReturns(RecentTurns()), TOLD),
        (lambda: HintedReturns(LearnedReturns()), TOLD),
        (lambda: ReusableOnly(HintedReturns(LearnedReturns())), TOLD),
        (AfterToolCalls, LEAVES),
        (lambda: LongEnough(1_024), LEAVES),
        (Unended, FUTURES),
        (NextUse, FUTURES),
        (lambda: Exponential(1e-3), RATES),
    ],
)
def test_return_models_of_the_package_are_right(make: Callable[[], object], leaves: tuple[Leaf, ...]) -> None:
    check_return_model(make(), leaves, twin=make())


def learned_lengths() -> object:
    lengths = PromptLengths()
    for number in range(500):
        lengths.count_prompt(1 + number * number % 7_000, kind=number % 5)
    return lengths.distribution()


@pytest.mark.parametrize(
    ("model", "leaves"),
    [
        (FixedPrompt(200), LEAVES),
        (AnyPrompt(), LEAVES),
        (StepPrompt.of([1, 20, 300, 4_000]), LEAVES),
        (StepPrompt.of([100, 100, 100, 4_000]), LEAVES),  # equal quantiles
        (TrueNextPrompt(200), FUTURES),
        (learned_lengths(), (*LEAVES, *TOLD)),
        (HintedPrompts(FixedPrompt(200)), TOLD),
    ],
)
def test_prompt_models_of_the_package_are_right(model: object, leaves: tuple[Leaf, ...]) -> None:
    check_prompt_model(model, leaves)


# ---- wrong return models: each has one fault ----


LEAF = "leaf 0 to 64 used at 1"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Nothing(), "Nothing: has no method key"),
        (object(), "object: has no attribute timeless"),
        (Sometimes(), "Sometimes.timeless is 'no': must be True or False"),
        (FailsToSay(), "FailsToSay.timeless raised LookupError: it depends"),
        (OneOfAKind(), "copy.copy(OneOfAKind) raised TypeError: there is but one"),
        (
            EndsAtOnce(),
            f"EndsAtOnce.group({LEAF}, 1.0) returned Group(0, expiry=1.0): "
            "must be a Group of a whole number and an expiry later than now, 1",
        ),
        (
            PlainPair(),
            f"PlainPair.group({LEAF}, 1.0) returned (0, inf): "
            "must be a Group of a whole number and an expiry later than now, 1",
        ),
        (Negative(), "Negative.rate(0, 1.0, 1.0) returned -1.0: must be a finite number ≥ 0"),
        (Endless(), "Endless.rate(0, 1.0, 1.0) returned inf: must be a finite number ≥ 0"),
        (
            OldFirst(),
            "OldFirst.rate(0, 2.0, 4000.0) returned 3999.0: must be at least 4000, the rate of the lower key 1",
        ),
        (
            KeysFall(),
            "KeysFall.key(leaf 0 to 64 used at 2) returned -2.0: must be at least -1.0, as before: keys only grow",
        ),
        (NoNumber(), f"NoNumber.key({LEAF}) returned nan: must be a number; not nan or inf"),
        (NeverUsed(), f"NeverUsed.stamp({LEAF}) returned -inf: must be a finite number"),
        (
            HoldsAll(),
            f"HoldsAll.floor({LEAF}) returned 64: "
            "must be a whole number of tokens from 0 to 63, or nothing of the leaf could go",
        ),
        (
            Halves(),
            f"Halves.floor({LEAF}) returned 32.0: "
            "must be a whole number of tokens from 0 to 63, or nothing of the leaf could go",
        ),
        (
            FallsUnseen(),
            f"FallsUnseen.group({LEAF}, 1.0) returned Group(1, expiry=inf): must be a group whose rate, 1 at 61, "
            "is until its expiry at most that of the leaf: 0.5",
        ),
        (
            LastsTooDear(),
            f"LastsTooDear.lasting_group({LEAF}, 1.0, 0.0) returned Group(1, expiry=inf): must be a group whose rate, "
            "1 at 61, is until its expiry at most that of the leaf: 0.5",
        ),
        (
            NotTimeless(),
            "NotTimeless.rate(0, 1.0, 4000.0) returned 0.00025: must be 0.000249938, "
            "as of key 0 at 4000: the model is timeless",
        ),
        (
            Raises(),
            f"Raises.stamp({LEAF}) raised AttributeError: 'NoneType' object has no attribute 'stamp'",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_wrong_return_model_is_named_with_what_it_said_and_what_is_allowed(model: object, message: str) -> None:
    with pytest.raises(ModelError) as error:
        check_return_model(model)
    assert str(error.value) == message


@pytest.mark.parametrize("make", [Right, SaysWhen, LastsRight])
def test_what_a_fault_was_put_into_is_right_without_it(make: Callable[[], object]) -> None:
    check_return_model(make(), twin=make())


@pytest.mark.parametrize("model", [Rolls(), Counts()])
def test_a_model_that_answers_the_same_question_in_two_ways_is_refused(model: object) -> None:
    with pytest.raises(ModelError, match="as before: nothing has happened"):
        check_return_model(model)


def test_a_model_that_differs_from_rank_to_rank_is_refused() -> None:
    with pytest.raises(ModelError, match="must be -inf, as of a model that was made and told alike"):
        check_return_model(LongEnough(0), twin=LongEnough(1_000))


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (NoNumberLater(), "a rate or a key is nan"),
        (NoOrderLater(), "a rate or a key is nan"),
        (HoldsAllLater(), "nothing goes of leaf 1: it ends at 400, and 400 tokens have to stay"),
    ],
)
def test_a_model_that_is_wrong_later_fails_rather_than_keep_an_eviction_from_its_end(model: Right, fault: str) -> None:
    check_return_model(model)
    leaves = Leaves(Policy(model, AnyPrompt(), threshold=600, median_weight=1.0))
    leaves.appear(1, Leaf(0, 400, 400, last_access=2e8))
    with pytest.raises(AssertionError, match=fault):
        leaves.order.choose_victim(1)


# ---- wrong prompt models ----


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Unlikely(), "Unlikely.probabilities is (0.0, 1.5): must be from 0 to 1, rising"),
        (Falls(), "Falls.probabilities is (1.0, 0.0): must be from 0 to 1, rising"),
        (NoLevels(), "NoLevels.probabilities is (): must be a tuple of one number or more"),
        (
            EndsNowhere(),
            f"EndsNowhere.next_prompt({LEAF}, 1) returned 200: must be None: the last level reaches to the root",
        ),
        (
            OneLevel(),
            f"OneLevel.next_prompt({LEAF}, 0) returned None: "
            "must be a whole number of tokens: only the last level reaches to the root",
        ),
        (Rises(), f"Rises.next_prompt({LEAF}, 1) returned 200: must be at most 100, at which the level before it ends"),
        (
            FirstIsOther(),
            f"FirstIsOther.first_level({LEAF}, 0) returned 0: "
            "must be 1, the first level that next_prompt ends at 0 tokens or less",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_wrong_prompt_model_is_named_with_what_it_said_and_what_is_allowed(model: object, message: str) -> None:
    with pytest.raises(ModelError) as error:
        check_prompt_model(model)
    assert str(error.value) == message


# ---- by its name, as a server does before it loads a model ----


def test_a_right_model_may_start_a_server() -> None:
    check_custom_model("eval.examples.tool_calls:AfterToolCalls")
    check_custom_model(f"{WRONG}:Right")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("EndsAtOnce", "EndsAtOnce.group(leaf 0 to 64 used at 1, 1.0) returned Group(0, expiry=1.0): must be a Group"),
        ("Forgets", "observe raised KeyError: 1000"),
        ("ByIdentity", "ByIdentity.group(leaf 0 to 1024 used at 1, 1.0) returned Group("),
        ("Nothing", "has no key, which a return model has"),
    ],
)
def test_a_wrong_model_is_refused_by_its_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_custom_model(f"{WRONG}:{name}")
    assert str(error.value).startswith(f"--tlru-return-model {WRONG}:{name}: {message}")
    assert "\n" not in str(error.value)
