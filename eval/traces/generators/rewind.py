"""Chats that are rewound and branch: a user goes back to an earlier turn and asks something else there.

The old branch is left, or taken up again later. How often people do that is an assumption: 15 in 100 prompts go back,
mostly by one or two turns, and a fifth of these return to the branch that they left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from numpy.random import Generator

from eval.traces.generators.chat_loop import ChatLoop, chat_turns
from eval.traces.generators.talk import Talk, talks
from eval.traces.generators.workload import Workload
from eval.traces.parameters import check_ranges
from eval.traces.request import Path, Request


@dataclass(frozen=True, slots=True)
class Rewind(ChatLoop):
    """A chat loop with branches."""

    back_probability: float = 0.15  # that a prompt goes back to an earlier turn
    further_probability: float = 0.4  # that it goes back by one more turn, and again
    return_probability: float = 0.2  # that it goes to the branch that was left last, if there is one
    follow_probability: float = 0.8

    def __post_init__(self) -> None:
        check_ranges(self, {"further_probability": (0, 0.99)})


def generate(kind: Rewind) -> Iterator[Request]:
    """The requests of all conversations in order of arrival."""
    return talks(kind, lambda talk, rng: chat_turns(kind, talk, rng, back=_Branches(kind).back))


class _Branches:
    """Where a conversation can go back to."""

    def __init__(self, kind: Rewind) -> None:
        self._kind = kind
        self._ends: list[Path] = []  # contexts after each turn of this branch
        self._left: list[Path] = []  # ends of branches that were left

    def back(self, talk: Talk, rng: Generator) -> Iterable[Request]:
        """A user is back: the context is that of the turn that the next prompt follows."""
        self._ends.append(talk.path)
        if rng.random() < self._kind.back_probability and len(self._ends) > 1:
            if self._left and rng.random() < self._kind.return_probability:
                talk.path, self._left[-1] = self._left[-1], talk.path
                self._ends.append(talk.path)
                return ()
            turns = min(int(rng.geometric(1.0 - self._kind.further_probability)), len(self._ends) - 1)
            self._left.append(talk.path)
            del self._ends[-turns:]
            talk.path = self._ends[-1]
        return ()


REWIND = Workload("rewind", "chats that go back to an earlier turn and branch", Rewind, generate)
