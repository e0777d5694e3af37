"""Return models of one's own: for operators who know more of their conversations than how they returned so far.

A custom model is a :class:`~radix_tlru.policy.models.ReturnModel` that is also told of every turn, with the tokens of
its prompt and answer. ``--tlru-return-model module:attribute`` names it, with ``etlru``. It takes the place of the
learned rates. All else stays: lengths of next prompts are learned, and a custom model that does worse than lru is not
in force for long. ``eval/examples/tool_calls.py`` is a worked example.

Each rank of a server has a model of its own, so it may depend on nothing but what it is told.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Protocol

from radix_tlru.config import FLAGS, ConfigError
from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.models import ReturnModel

__all__ = ["Conversation", "CustomReturnModel", "Turn", "custom_model"]

_MEMBERS = ("timeless", "key", "stamp", "group", "rate", "floor", "observe")


class CustomReturnModel(ReturnModel, Protocol):
    """A return model that is told of the turns."""

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """A turn was served.

        What is written to ``conversation.annotation`` is at ``leaf.conversation.annotation`` from now on. It must not
        lead back to the conversation, or neither is ever freed.
        """


def custom_model(name: str) -> CustomReturnModel:
    """A new model, made by calling what ``module:attribute`` names.

    Raises:
        ConfigError: there is none, or it cannot be made.
    """
    if ":" not in name:
        raise ConfigError(f"{FLAGS['return_model']} {name}: must be module:attribute, of what makes a return model")
    try:
        make: Callable[[], CustomReturnModel] = pkgutil.resolve_name(name)
        found = make()
    except Exception as error:  # whatever somebody else's code raises
        raise ConfigError(f"{FLAGS['return_model']} {name}: cannot be made, {type(error).__name__}: {error}") from error
    for member in _MEMBERS:
        if not hasattr(found, member):
            raise ConfigError(f"{FLAGS['return_model']} {name}: has no {member}, which a return model has")
    return found
