"""What a caller may choose about the reading of a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from eval.traces.arrivals import Arrivals
from eval.traces.request import TraceError


@dataclass(frozen=True, slots=True)
class Options:
    """Each format uses those that it has a use for.

    Raises:
        TraceError: a value is out of range.
    """

    limit: int | None = None
    """Requests, the first to arrive."""

    block_size: int | None = None
    """Tokens of a block of a block trace; None: as the file says, or as its lengths tell."""

    tokenizer: str | None = None
    """Name or path of the Hugging Face tokenizer that counts the tokens of texts; None: by their length."""

    characters_per_token: float = 4.0
    """Of a text that no tokenizer counts, rounded up, at least one token a message."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    """When conversations start and turns arrive, for data that does not tell."""

    texts: bool = False
    """Keep the messages themselves, for who is to send them."""

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise TraceError(f"limit: {self.limit} requests, must be 1 or more")
        if self.block_size is not None and self.block_size < 1:
            raise TraceError(f"block_size: {self.block_size} tokens, must be 1 or more")
        if not (math.isfinite(self.characters_per_token) and self.characters_per_token > 0):
            raise TraceError(f"characters_per_token: {self.characters_per_token}, must be a number above 0")
