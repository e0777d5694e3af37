"""The caches that are audited, and the requests that run on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from eval.soak.prefixes import Context
from radix_tlru.sglang.offline import Core


@dataclass(frozen=True)
class Shape:
    """Which cache is audited."""

    core: Core
    page_size: int
    is_eagle: bool = False
    """Keys are pairs of tokens, as for speculative decoding with EAGLE."""

    median_weight: float = 0.0
    trim_pages: int = 1
    """Pages of a trim chunk."""

    pages: int = 48
    hybrid: tuple[Literal["swa", "mamba"], ...] = ()
    """What a hybrid model caches beside the KV of full attention."""

    sessions: int = 0
    """Sessions that clients name and close; 0: the cache has none (``--enable-session-radix-cache``)."""

    def __str__(self) -> str:
        weight = f"-w{self.median_weight:g}" if self.median_weight else ""
        trim = f"-trim{self.trim_pages}" if self.trim_pages > 1 else ""
        hybrid = "".join(f"-{each}" for each in self.hybrid)
        sessions = "-sessions" if self.sessions else ""
        keys = "pairs" if self.is_eagle else "tokens"
        return f"{self.core}-{keys}-page{self.page_size}{weight}{trim}{hybrid}{sessions}"

    @property
    def capacity(self) -> int:
        """Tokens of the pool."""
        return self.pages * self.page_size

    @property
    def trim_chunk(self) -> int:
        """Tokens."""
        return self.trim_pages * self.page_size


@dataclass
class Running:
    """A request between its match and its end."""

    context: Context
    prompt: int  # tokens of the context that are the prompt; the rest is the answer
    prefixes: Sequence[int]  # of its whole pages
    done: int  # pages that are in the tree, and locked there
    node: int
    lock: Any
    computed: int = 0  # tokens with a slot, those of the tree included
    pages: list[int] = field(default_factory=list)  # its own, after those in the tree
