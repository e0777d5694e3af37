"""What is known of a turn when it has been served, as a row of small numbers: categories in octaves.

=========================  =====================================================  ===========================
feature                    categories                                             why
=========================  =====================================================  ===========================
``ENDING``                 how the answer ended: unknown, end of turn, tool       a tool answers in seconds
                           call, cut off; or one of eight frequent last tokens
``TURN``                   turns of the conversation before this one              who came back, comes back
``ANSWER``                 length of the answer                                   it takes that long to read
``NEW``                    what the prompt added                                  a document is asked about
``WAIT``, ``WAIT_BEFORE``  the last wait and the one before                       who is fast stays fast
``SUPERSEDED``             whether a later turn left the path before its end      a compacted branch is dead
=========================  =====================================================  ===========================

Each was kept because on real chats or agent sessions less of the gap is closed without it (``eval features``). The
length of the context made rates worse. The kind of input (user text or tool results), who is a subagent and how many
calls of a session run at once added nothing.
"""

from __future__ import annotations

import math
from enum import IntEnum

from radix_tlru.learning.records import Conversation, Supersession

__all__ = ["NOTHING_KNOWN", "SIZES", "Feature", "Features", "ending_of", "features_of"]

Features = tuple[int, ...]
"""A category of each feature, in the order of ``Feature``."""

_FINISHES = {"stop": 1, "tool_calls": 2, "length": 3}
"""Category of an answer whose end is named; unknown is 0."""

_FREQUENT = 3
"""Added to the number of a frequent ending (:mod:`~radix_tlru.learning.endings`)."""


class Feature(IntEnum):
    """Position in a row."""

    ENDING = 0
    TURN = 1
    ANSWER = 2
    NEW = 3
    WAIT = 4
    WAIT_BEFORE = 5
    SUPERSEDED = 6


SIZES = (12, 10, 8, 7, 13, 13, len(Supersession))
"""Categories of each feature."""

NOTHING_KNOWN: Features = (0,) * len(SIZES)
"""Of a leaf whose conversation is not known."""


def ending_of(finish: str | None, frequent: int) -> int:
    """The category of an answer by its ``finish_reason`` and by the number of its frequent ending.

    A server that parses no tool calls calls their end "stop", too. Then the last tokens tell more.
    """
    category = _FINISHES.get(finish or "", 0)
    return _FREQUENT + frequent if frequent and category < 2 else category


def features_of(conversation: Conversation) -> Features:
    """The row of a conversation as of its last turn."""
    turn = conversation.turn
    return (
        conversation.ending,
        turn if turn < 4 else min(1 + turn.bit_length(), 9),
        _octaves(conversation.answer_len, 32, 7),
        (_octaves(conversation.new_len, 64, 12) + 1) // 2,
        _wait(conversation.wait),
        _wait(conversation.wait_before),
        int(conversation.superseded),  # a row of plain numbers is nothing to Python's garbage collector
    )


def _octaves(value: float, first: float, last: int) -> int:
    """0 below ``first``, 1 up to twice as much, and so on, ``last`` at most."""
    return min(max(math.frexp(value / first)[1], 0), last)


def _wait(seconds: float) -> int:
    """0: there was none. Then 1 below 4 s, 2 up to 8 s and so on."""
    return 0 if seconds < 0.0 else 1 + _octaves(seconds, 4.0, 11)
