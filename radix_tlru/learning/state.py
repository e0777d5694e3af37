"""What a learner has learned, apart from the requests that it learned it from: what is worth keeping for the next run.

The tokens and hashes of conversations are not in it. After a restart the cache is empty, and so is the index by which
conversations are recognised: one that goes on then begins anew.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.age_bands import BANDS, SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.prompt_lengths import KINDS
from radix_tlru.learning.records import Verdict
from radix_tlru.learning.reuse import AnswerShares
from radix_tlru.learning.turn_features import SIZES
from radix_tlru.learning.turn_log import TURN

__all__ = ["LearnedState", "Seen", "state_shape"]


class Seen(NamedTuple):
    """What was learned from, in all runs so far."""

    turns: int = 0
    conversations: int = 0
    returns: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class LearnedState:
    """What a learner has learned; nothing, by default."""

    turns: NDArray[np.void] = field(default_factory=lambda: np.empty(0, TURN))
    """The turns that are remembered, the oldest first (``turn_log.TURN``)."""
    model: HazardModel = field(default_factory=HazardModel)
    """The hazards in force."""
    endings: tuple[tuple[int, ...], ...] = ()
    """Frequent endings of answers, token ids, in the order of their numbers."""
    answers: AnswerShares = field(default_factory=AnswerShares)
    """Whether next prompts repeat the answers."""
    lengths: tuple[tuple[int, int], ...] = ()
    """Tokens that prompts added, and the kind of conversation; the oldest first."""
    seen: Seen = field(default_factory=Seen)
    verdict: Verdict = field(default_factory=Verdict)
    """The candidate in force, and why."""

    @property
    def digest(self) -> int:
        """A number of 32 bits, the same for the same state: by it ranks make sure that they have loaded one state."""
        verdict = self.verdict
        arrays = (self.turns, self.model.base, *self.model.effects, verdict.judged)
        told = (self.endings, self.answers, self.lengths, self.seen, verdict.candidates, verdict.preferred)
        return zlib.crc32(b"".join([*(array.tobytes() for array in arrays), repr(told).encode()]))


def state_shape() -> dict[str, list[float]]:
    """What the numbers of a state are about, by name. A state of another shape says nothing here."""
    return {"features": list(SIZES), "ages": list(BANDS), "groups of ages": list(SPANS), "kinds of prompts": [KINDS]}
