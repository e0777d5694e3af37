"""A return model of one's own that reads: does this conversation go on, by the last message of its user?

"Thanks, that is all" is rarely followed by another turn. A small classifier, fitted beforehand to a chat trace with
texts (:mod:`eval.examples.fit_goes_on`), says how likely a next turn is. A conversation that ends with probability
1 − p is worth p times what it would be worth by recency::

    python -m eval.examples.fit_goes_on --trace chats.jsonl --tokenizer MODEL --out goes_on.npz
    GOES_ON=goes_on.npz python -m sglang.launch_server --model-path MODEL … \
        --radix-eviction etlru --tlru-return-model eval.examples.goes_on:GoesOn

A server has tokens, no texts, so the classifier looks at tokens: fit it with the tokenizer of the model. "Learned
Prefix Caching" (NeurIPS 2025) predicts the same from the text, with a larger model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from radix_tlru.learning.records import Conversation, Turn
from radix_tlru.policy.models import Group, Leaf, SingleGroup

WEIGHTS = "GOES_ON"
"""Environment variable that names the file of weights. On every rank it has to be the same file."""

FEATURES = 1 << 14
"""Features: runs of tokens, by their hash."""

_LONGEST = 200  # tokens of a message that are looked at: its last ones
_RUN = 4  # tokens of the longest run
_LEVELS = 16  # groups, by probability
_PRIME = 1_000_003


def features(message: Sequence[int]) -> NDArray[np.int64]:
    """The runs of 1 to 4 tokens that a message holds, each once, as numbers below FEATURES."""
    ids = np.asarray(message[-_LONGEST:], np.int64)
    found, runs = [ids[:0]], np.zeros(len(ids) + 1, np.int64)
    for length in range(1, _RUN + 1):
        runs = (runs[: len(ids) - length + 1] * _PRIME + ids[length - 1 :] + 1) % (1 << 31)
        found.append(runs * 0x9E3779B1 % (1 << 32) * FEATURES >> 32)
    return np.unique(np.concatenate(found))


@dataclass(frozen=True)
class Classifier:
    """A logistic regression on the features of a message."""

    weights: NDArray[np.float64]  # of each feature
    bias: float

    def probability(self, message: Sequence[int]) -> float:
        """P(another turn follows a message of these token ids)."""
        score = self.bias + float(self.weights[features(message)].sum())
        return 1.0 / (1.0 + math.exp(-min(max(score, -30.0), 30.0)))

    def save(self, path: Path) -> None:
        """Write it to a file of numpy's."""
        with path.open("wb") as file:  # a name alone would get the ending .npz, and GOES_ON would not find it
            np.savez_compressed(file, weights=self.weights, bias=self.bias)

    @classmethod
    def load(cls, path: Path) -> Classifier:
        """Read it again.

        Raises:
            OSError: there is no such file.
            KeyError, ValueError: it holds something else.
        """
        with np.load(path) as file:
            return cls(file["weights"], float(file["bias"]))


class GoesOn(SingleGroup):
    """λ = p / age, with p the probability that the conversation goes on. The classifier is that of WEIGHTS if none."""

    def __init__(self, classifier: Classifier | None = None) -> None:
        self._classifier = classifier or Classifier.load(Path(os.environ[WEIGHTS]))

    def observe(self, turn: Turn, conversation: Conversation) -> None:
        """Read what the prompt added to the conversation: the last message of its user."""
        added = turn.prompt_ids[max(turn.prompt_len - conversation.new_len, 0) :]
        conversation.annotation = min(int(self._classifier.probability(added) * _LEVELS), _LEVELS - 1)

    def key(self, leaf: Leaf) -> float:
        """The time of the last use, logical."""
        return leaf.last_access

    def group(self, leaf: Leaf, now: float) -> Group:
        """The level of its probability; a leaf stays in its group until it is used."""
        level = None if leaf.conversation is None else leaf.conversation.annotation
        return Group(_LEVELS - 1 if level is None else level, math.inf)

    def rate(self, group: int, key: float, now: float) -> float:
        """λ, by the middle of the level, in 1 / uses of the cache."""
        return (group + 0.5) / _LEVELS / (now - key + 1.0)
