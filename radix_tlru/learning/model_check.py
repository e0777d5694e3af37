"""Checks a return model of one's own before a server starts with it: it is told of turns, and then asked."""

from __future__ import annotations

from radix_tlru.config import FLAGS, Config, ConfigError
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Turn
from radix_tlru.policy.checks import LEAVES, ModelError, check_return_model
from radix_tlru.policy.models import Leaf, ReturnModel

__all__ = ["check_custom_model"]

_PAGE, _ADDED = 64, 1_024  # tokens: of a page, and of what each turn adds
_CONVERSATIONS, _TURNS = 3, 3
_ANSWER = 24  # tokens


def check_custom_model(name: str) -> None:
    """Check the model that ``--tlru-return-model`` names: a new one, that has seen a few turns.

    Two models are made and told the same, as on two ranks. They are asked about leaves of the conversations that they
    were told of, and about leaves of which nothing is known.

    Raises:
        ConfigError: there is none, it cannot be made, it fails, or an order cannot rely on its answers.
    """
    try:
        (model, leaves), (twin, _) = _told(name), _told(name)
    except ConfigError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        raised = f"observe raised {type(error).__name__}: {error}"
        raise ConfigError(f"{FLAGS['return_model']} {name}: {raised}") from error
    try:
        check_return_model(model, leaves, twin)
    except ModelError as error:
        raise ConfigError(f"{FLAGS['return_model']} {name}: {error}") from error


def _told(name: str) -> tuple[ReturnModel, list[Leaf]]:
    """A new model that has been told of some turns, and leaves to ask it about."""
    learner = Learner(Config("etlru", return_model=name), capacity=1 << 20, page_size=_PAGE)
    model, leaves = learner.candidates["etlru"].returns, list(LEAVES)
    for number in range(_CONVERSATIONS * _TURNS):
        turn = _turn(number)
        conversation = learner.record_turn(turn)
        leaf = Leaf(0, turn.context_len, turn.context_len, float(number + 1), conversation)
        leaves += [leaf, leaf._replace(start=turn.context_len - _ADDED, end=turn.context_len - _PAGE)]
    return model, leaves


def _turn(number: int) -> Turn:
    """The turns of some conversations, one after the other, 7 s apart."""
    turns, name = divmod(number, _CONVERSATIONS)
    context = _ADDED * (turns + 1)
    ids = list(range(1_000 * name, 1_000 * name + context))
    return Turn(
        stamp=7.0 * number,
        prompt_len=context - _ANSWER,
        answer_len=_ANSWER,
        context_len=context,
        cached_len=_ADDED * turns,
        fingerprint=lambda start, end, above: name << 32 | end,
        prompt_ids=ids[:-_ANSWER],
        answer_ids=ids[-_ANSWER:],
    )
