"""Return models of one's own: the worked example decides as it says, and what is none is named."""

from __future__ import annotations

import pytest

from eval.examples.tool_calls import AfterToolCalls
from radix_tlru import Config, ConfigError, EvictionOrder, Leaf
from radix_tlru.learning.custom_model import custom_model
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Turn

CALL, PAGE, CAPACITY, TOKENS = AfterToolCalls().token, 16, 64_000, 160
EXAMPLE = "eval.examples.tool_calls:AfterToolCalls"


def turn(number: int, at: float, turns: int, *, calls: bool) -> Turn:
    context = TOKENS * (turns + 1)
    said = [1, 2, CALL] if calls else [1, 2, 3]
    return Turn(
        at, context - 20, 20, context, 0, lambda start, end, above: number << 32 | end // TOKENS, None, (), said
    )


def test_a_program_outlasts_a_person_who_came_as_recently() -> None:
    learner = Learner(Config("etlru", threshold=210, median_weight=1.0, return_model=EXAMPLE), CAPACITY, PAGE)
    leaves: dict[int, Leaf] = {}
    order = EvictionOrder(learner.policy, PAGE, leaves.get)
    for number in range(400):
        for turns in range(2):
            at = 100.0 * number + turns
            conversation = learner.record_turn(turn(number, at, turns, calls=number % 2 == 0))
        length = 2 * TOKENS
        leaves[number] = Leaf(0, length, length, float(number), conversation)
        order.add_leaf(number)
    assert learner.in_force == "etlru", "with a w of one's own there is nothing to wait for"
    order.switch_policy(learner.policy)
    gone = []
    while len(gone) < 60:
        order.renew_prices()
        victim = order.choose_victim(2 * TOKENS)
        assert victim is not None
        order.remove_leaf(victim.leaf_id)
        leaf = leaves.pop(victim.leaf_id)
        if victim.keep:
            leaves[victim.leaf_id] = leaf._replace(end=victim.keep)
            order.add_leaf(victim.leaf_id)
        elif victim.phase == "lru":
            gone.append(victim.leaf_id)
    assert all(number % 2 for number in gone), "eight times as dear: of the oldest, people go"
    assert gone == sorted(gone)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "--tlru-return-model nobody: must be module:attribute"),
        ("eval.no_such:Thing", "--tlru-return-model eval.no_such:Thing: cannot be made, ModuleNotFoundError"),
        (
            "eval.examples.tool_calls:Nothing",
            "--tlru-return-model eval.examples.tool_calls:Nothing: cannot be made, AttributeError",
        ),
        ("builtins:dict", "--tlru-return-model builtins:dict: has no timeless"),
    ],
)
def test_what_is_no_return_model_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        custom_model(name)
    assert str(error.value).startswith(message)


def test_a_return_model_is_for_etlru() -> None:
    with pytest.raises(ConfigError, match="must be left out without --radix-eviction etlru"):
        Config("tlru", return_model=EXAMPLE)
    assert EXAMPLE in str(Config("etlru", return_model=EXAMPLE))
