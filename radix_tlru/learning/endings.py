"""How answers end: a call of a tool ends as few answers do, and its result is there before a user has read anything.

Chat formats close a call with a token of its own, before the one that ends every answer or instead of it. Which tokens
these are nobody has to say: an ending that many answers have is a kind of its own, and who returns after it, and when,
is learned like the rest. Of the content of an answer nothing else is looked at.

An ending is the last two tokens of an answer; or the last one alone, where not all have that and what comes before it
differs from call to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["Endings"]

_LESSON = 200  # answers, after each of which it is asked which endings are frequent
_OFTEN = 0.1  # of them: a frequent one
_NEARLY_ALL = 0.9  # of them: a last token that tells nobody apart
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
        two, one = tuple(answered[-2:]), tuple(answered[-1:])
        self._counts.update(dict.fromkeys((two, one), 1))
        self._seen += 1
        if self._seen % _LESSON == 0:
            for each, times in self._counts.items():
                told = times >= _OFTEN * _LESSON and (len(each) == 2 or times < _NEARLY_ALL * _LESSON)
                if told and len(self._numbers) < _MOST:
                    self._numbers.setdefault(each, len(self._numbers) + 1)
            self._counts.clear()
        return self._numbers.get(two) or self._numbers.get(one, 0)
