"""Texts whose lengths are estimates, fitted to the tokens that a server counted for their prompts.

A prefix keeps the length that the first prompt with it gave it, so that later prompts and contexts still begin with it.
What a prompt has behind it shares the tokens that are left, in proportion to the estimates: agents' logs do the same.
"""

from __future__ import annotations

from eval.traces.request import Path


class Fitted:
    """All prefixes of one trace and their ends.

    Attributes:
        prompts: how many were fitted to a count.
        short: of them, those with fewer tokens than units behind a known prefix; they are longer than was counted.
    """

    def __init__(self) -> None:
        self.prompts = self.short = 0
        self._ends: dict[int, int] = {}  # by unit, of prefixes that were met

    def prompt(self, path: Path, estimate: int, tokens: int | None) -> Path:
        """A prompt of so many tokens as a server counted; None: it counted none.

        Args:
            path: its units, with ends as estimated.
            estimate: tokens of all of it, at least those of the path: the last part of a text may be in no unit.
            tokens: as counted.
        """
        fitted = self.context(path, estimate, tokens)
        if tokens is not None:
            self.prompts += 1
            self.short += len(fitted) > tokens
        return fitted

    def context(self, path: Path, estimate: int, tokens: int | None) -> Path:
        """The same for a prompt with its answer."""
        known = 0
        while known < len(path.ids) and path.ids[known] in self._ends:
            known += 1
        ends = [self._ends[each] for each in path.ids[:known]]
        end, skipped = (ends[-1], path.ends[known - 1]) if known else (0, 0)
        weight = max(estimate - skipped, 1)
        room = weight if tokens is None else max(tokens - end, 0)
        begin = end
        for unit, estimated in zip(path.ids[known:], path.ends[known:], strict=True):
            end = max(end + 1, begin + round((estimated - skipped) * room / weight))
            self._ends[unit] = end
            ends.append(end)
        return Path(path.ids, tuple(ends))

    def keep(self, path: Path) -> None:
        """Take the ends of a path as they are."""
        self._ends.update(zip(path.ids, path.ends, strict=True))

    def said(self) -> str:
        """What is noted of the lengths; nothing if no server counted any."""
        if not self.prompts:
            return ""
        short = f"; {self.short:,} have fewer than their messages: those are longer here" if self.short else ""
        return f"lengths of parts of {self.prompts:,} prompts fit the tokens that their servers counted{short}"
