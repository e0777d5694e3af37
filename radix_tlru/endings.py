"""How answers end: a call of a tool ends as few answers do, and its result is there before a user has read anything.

Chat formats close a call with a token of its own, before or instead of the one that ends every answer. Which tokens
these are nobody has to say: an ending that many answers have is a kind of its own, and who returns after it, and when,
is learned like the rest. Of the content of an answer nothing else is looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["Endings"]

_TOKENS = 2  # the last of an answer: what ends all of them, and what comes before
_LESSON = 200  # answers, after each of which it is asked which endings are frequent
_OFTEN = 0.1  # of them: a frequent one
_MOST = 8  # that are told apart


class Endings:
    """Numbers the endings that many answers have. Memory: those of the last 200."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._numbers: dict[tuple[int, ...], int] = {}
        self._seen = 0

    def number(self, answered: Sequence[int]) -> int:
        """Of an answer's ending, by its token ids; 0: few answers end so, or the tokens are not known."""
        if not len(answered):
            return 0
        ending = tuple(answered[-_TOKENS:])
        self._counts[ending] += 1
        self._seen += 1
        if self._seen % _LESSON == 0:
            for each, times in self._counts.items():
                if times >= _OFTEN * _LESSON and len(self._numbers) < _MOST:
                    self._numbers.setdefault(each, len(self._numbers) + 1)
            self._counts.clear()
        return self._numbers.get(ending, 0)
