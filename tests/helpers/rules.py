"""Rules by which a candidate is put in force whatever it costs, so that a test can look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class InTurn:
    """Each of some candidates for so many turns of the shadows, again and again; with one of them: always that one."""

    names: Sequence[str]
    turns: int = 1
    seen: int = field(default=0, init=False)
    refused: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def preferred(self) -> str:
        return self.names[self.seen // self.turns % len(self.names)]

    def count_turn(self, prompt_len: int, uncached: Sequence[int], threshold: int) -> None:
        self.seen += 1
