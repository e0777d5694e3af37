"""What a reader did to the data, and what it left out: part of the trace, so that every command can say it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from eval.traces.request import TraceError

NoteKind = Literal["real", "rebuilt", "chained", "sorted", "drawn", "assumed", "left out", "ignored"]
"""How a trace was made of its data.

real: taken as it is. rebuilt: made up to fit what the data says. chained: ids of blocks made ids of prefixes. sorted:
put in order of arrival. drawn: from a seed. assumed: taken for granted. left out: in the data and not in the trace.
ignored: asked for, and without effect."""

_SHOWN = 5  # reasons that a trace remembers of what it skipped


@dataclass(frozen=True, slots=True)
class Note:
    """One thing to know about a trace."""

    kind: NoteKind
    text: str


class Notes:
    """Notes of one reading, and the records that gave no request: counted, and the first reasons kept."""

    def __init__(self, skip_bad: bool) -> None:
        self.skipped = 0
        self.reasons: list[str] = []
        self._skip_bad = skip_bad
        self._notes: list[tuple[NoteKind, str | Callable[[], str]]] = []

    def add(self, kind: NoteKind, text: str | Callable[[], str]) -> None:
        """Note something; a function is called when all is read, and "" from it means that there is nothing to say."""
        self._notes.append((kind, text))

    def bad(self, error: TraceError) -> None:
        """A record that cannot be read.

        Raises:
            TraceError: the same, unless bad records are to be skipped.
        """
        if not self._skip_bad:
            error.skippable = True
            raise error
        self.left_out(str(error))

    def left_out(self, reason: str) -> None:
        """A sound record that gives no request, such as an empty conversation."""
        self.skipped += 1
        if len(self.reasons) < _SHOWN:
            self.reasons.append(reason)

    def all(self) -> tuple[Note, ...]:
        """Every note once, in the order in which they were added."""
        said = ((kind, text if isinstance(text, str) else text()) for kind, text in self._notes)
        return tuple(dict.fromkeys(Note(kind, text) for kind, text in said if text))
