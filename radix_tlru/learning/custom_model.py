"""Return models of one's own: for those who know more of their conversations than how they came back so far.

A predictor is a ``radix_tlru.policy.models.ReturnModel`` that is also told of every turn, with the tokens that were
asked and answered. It is named by ``--tlru-return-model``, with ``etlru``, and takes the place of the rates that would
be learned. All else stays: lengths of next prompts are learned, and shadows see to it that a predictor which does worse
than T-LRU or LRU is not in force for long. ``eval/examples/tool_calls.py`` is a worked example.

Ranks of one model each have a predictor of their own, so it may depend on nothing but what it is told.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Protocol

from radix_tlru.config import FLAGS, ConfigError, one_line
from radix_tlru.learning.conversations import Conversation, Turn
from radix_tlru.policy.models import ReturnModel

__all__ = ["GROUP", "Conversation", "Predictor", "Turn", "predictor"]

GROUP = "radix_tlru.return_models"
"""The group of entry points in which a distribution offers predictors by name."""


class Predictor(ReturnModel, Protocol):
    """A return model that is told of the turns."""

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """A turn was served. What is written to ``conversation.noted`` is at ``leaf.known.noted`` from now on."""


def predictor(name: str) -> Predictor:
    """A new predictor: of that name among the entry points, or ``module:attribute`` of what makes one.

    Raises:
        ConfigError: there is none, or it cannot be made.
    """
    offered = {point.name: point for point in entry_points(group=GROUP)}
    try:
        if name in offered:
            make: Callable[[], Predictor] = offered[name].load()
        elif ":" in name:
            make = pkgutil.resolve_name(name)
        else:
            known = ", ".join(["module:attribute", *sorted(offered)])
            raise ConfigError(f"{FLAGS['return_model']} {name}: must be one of {known}")
        found = make()
    except ConfigError:
        raise
    except Exception as error:  # whatever somebody else's code raises
        raise ConfigError(f"{FLAGS['return_model']} {name}: cannot be made, {type(error).__name__}: {error}") from error
    missing = [method for method in _METHODS if not hasattr(found, method)]
    if missing:
        raise ConfigError(one_line(f"{FLAGS['return_model']} {name}: has no {missing[0]}, which a return model has"))
    return found


_METHODS = ("timeless", "version", "key", "stamp", "group", "rate", "floor", "observe")
