"""Prompts that are one text, or one list of tokens: cut into small blocks, each named by the hash of its prefix."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from eval.traces.reading.options import Options
from eval.traces.reading.tokenizer import load_tokenizer
from eval.traces.request import Path

BLOCK_TOKENS = 16
"""Tokens of a block; at twice it, up to 16 tokens more of every prompt count as new."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A prompt: its full blocks, and its tokens."""

    path: Path
    tokens: int


class TextPrompts:
    """Cuts texts into blocks of as many characters as 16 tokens have, or of 16 tokens of a tokenizer.

    Raises:
        TraceError: the tokenizer cannot be loaded.
    """

    def __init__(self, options: Options) -> None:
        self._characters = max(round(BLOCK_TOKENS * options.characters_per_token), 1)
        self._ratio = options.characters_per_token
        self._tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else None

    def blocks(self, text: str) -> Blocks:
        """The blocks of one text."""
        if self._tokenizer is not None:
            return token_prompt(self._tokenizer(text))
        starts = range(0, len(text) - self._characters + 1, self._characters)
        ids = _chained(text[each : each + self._characters].encode(errors="surrogatepass") for each in starts)
        return Blocks(_path(ids), max(math.ceil(len(text) / self._ratio), BLOCK_TOKENS * len(ids), 1))


def token_prompt(tokens: Sequence[int]) -> Blocks:
    """The blocks of one list of token ids."""
    raw = np.asarray(tokens, np.int64)
    starts = range(0, len(raw) - BLOCK_TOKENS + 1, BLOCK_TOKENS)
    return Blocks(_path(_chained(raw[each : each + BLOCK_TOKENS].tobytes() for each in starts)), len(raw))


def _path(ids: tuple[int, ...]) -> Path:
    return Path(ids, range(BLOCK_TOKENS, BLOCK_TOKENS * len(ids) + 1, BLOCK_TOKENS))


def _chained(blocks: Iterable[bytes]) -> tuple[int, ...]:
    parent, found = b"", []
    for block in blocks:
        parent = blake2b(parent + block, digest_size=8).digest()
        found.append(int.from_bytes(parent))
    return tuple(found)
