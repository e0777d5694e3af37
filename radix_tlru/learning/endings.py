"""How answers end: tells calls of a tool from other answers, by the last tokens alone.

Chat formats close a tool call with a token of its own, before the one that ends every answer or instead of it. The
result of a tool is there before a user has read anything, so who returns after such an ending returns soon. Nobody has
to say which tokens these are: an ending that many answers have is a kind of its own, and its returns are learned like
the rest. Nothing else of the content of an answer is looked at.

An ending is the last two tokens of an answer; or the last one alone, where not all answers have it and the token before
differs from call to call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["Endings"]

_EVERY = 200  # answers between two counts of frequent endings
_FREQUENT = 0.1  # share of these answers that makes an ending frequent
_NEARLY_ALL = 0.9  # share of these answers from which on a last token tells nothing
_MOST = 8  # endings that are told apart


class Endings:
    """Numbers the endings that many answers have. Memory: those of the last 200."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, ...]] = Counter()
        self._numbers: dict[tuple[int, ...], int] = {}
        self._seen = 0

    @property
    def frequent(self) -> tuple[tuple[int, ...], ...]:
        """The frequent endings, in the order of their numbers."""
        return tuple(self._numbers)

    def restore(self, frequent: Sequence[tuple[int, ...]]) -> None:
        """Begin with the frequent endings of a former run."""
        self._numbers = {ending: number for number, ending in enumerate(frequent[:_MOST], 1)}

    def number_of(self, answer_ids: Sequence[int]) -> int:
        """The number of an answer's ending; 0: few answers end so, or the tokens are not known."""
        if not len(answer_ids):
            return 0
        two, one = tuple(answer_ids[-2:]), tuple(answer_ids[-1:])
        self._counts.update(dict.fromkeys((two, one), 1))
        self._seen += 1
        if self._seen % _EVERY == 0:
            for each, times in self._counts.items():
                told = times >= _FREQUENT * _EVERY and (len(each) == 2 or times < _NEARLY_ALL * _EVERY)
                if told and len(self._numbers) < _MOST:
                    self._numbers.setdefault(each, len(self._numbers) + 1)
            self._counts.clear()
        return self._numbers.get(two) or self._numbers.get(one, 0)
