"""One frozen configuration, validated in one place; flags, ``Engine`` arguments and files all end here."""

from __future__ import annotations

import json
import os
import sys
import zlib
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, get_args

__all__ = [
    "CHUNKS_IN_POOL",
    "DEFAULT_NEXT_PROMPT",
    "DEFAULT_TTFT_SLO_MS",
    "ETLRU_ONLY",
    "FLAGS",
    "MAX_CHUNK",
    "MIN_POOL_FOR_CHUNKS",
    "REMOVED_WEIGHTS",
    "START_THRESHOLD",
    "Config",
    "ConfigError",
    "PolicyName",
    "one_line",
    "shown",
]

PolicyName = Literal["tlru", "etlru", "lru"]

# Field → command-line flag; the keyword of `sglang.Engine` is the flag in snake case.
FLAGS = {
    "policy": "--radix-eviction",
    "ttft_slo_ms": "--tlru-ttft-slo",
    "threshold": "--tlru-threshold",
    "next_prompt_estimate": "--tlru-next-prompt-estimate",
    "median_weight": "--tlru-median-weight",
    "trim_chunk": "--tlru-trim-chunk",
    "host_threshold": "--tlru-host-threshold",
    "return_model": "--tlru-return-model",
    "highest_priority": "--tlru-priority",
    "state": "--tlru-state",
    "dry_run": "--tlru-dry-run",
    "explain": "--tlru-explain",
    "warm": "--tlru-warm",
    "prefill_ahead": "--tlru-prefill-ahead",
}

ETLRU_ONLY = ("return_model", "state")
"""Fields that ``etlru`` alone has a use for."""

REMOVED_WEIGHTS = ("auto", "load")
"""What ``median_weight`` could be once. With ``load``, w followed the number of waiting requests. Where requests queue,
that gave no less TTFT than the default on chats, and a p50 above lru's by 7 % on agents."""

START_THRESHOLD = 2048
"""ξ (tokens) until enough prefills were seen: about 200 ms of prefill for a 7B model on an A100."""

DEFAULT_TTFT_SLO_MS = 200.0
"""The objective if none is given."""

DEFAULT_NEXT_PROMPT = 200
"""Q̂ (tokens) if none is given: the WildChat mean (paper, section 5)."""

CHUNKS_IN_POOL = 100
"""Trim chunks of a pool: by default one is 1/100 of it."""

MAX_CHUNK = 1_024
"""Tokens of a default trim chunk, at most: each of its victims is a decision, and all are made in one call."""

MIN_POOL_FOR_CHUNKS = 8_192
"""Tokens. Smaller pools, as in tests that account for every token, are trimmed page by page by default."""

FEWEST_CHUNKS_IN_POOL = 16
"""A chunk that is given may be 1/16 of the pool at most. 1/32 already costs 0.4 % of TEL on Mooncake, and saves nothing
that 1/100 does not (``eval bench --only trim``, ``--only decode``)."""

MIN_CHUNK_LIMIT = 512
"""Tokens that a chunk may have in any pool, however small."""

_MOST_TOKENS = 2**31 - 1  # of a flag: no pool has more, and what learns counts in 64 bits


class ConfigError(ValueError):
    """A value that cannot be served; the message is one line naming the flag, the value and what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True, slots=True)
class Config:
    """What to evict first.

    The threshold ξ, uncached tokens that still meet the TTFT objective, is either pinned in tokens (``threshold``) or
    learned from an objective in milliseconds (``ttft_slo_ms``). With neither it is an objective of 200 ms.

    Raises:
        ConfigError: a value is out of range, of the wrong type, contradicts another or leaves nothing to do.
    """

    policy: PolicyName = "tlru"
    """What goes first: ``tlru``, TEL-safe tails, then LRU. ``etlru``: what is least likely to be missed, learned while
    serving. ``lru``: stock order at page granularity, for comparison."""

    threshold: int | None = None
    """ξ pinned, in tokens. None: learned while serving from ``ttft_slo_ms``."""

    next_prompt_estimate: int | None = None
    """Q̂ pinned: tokens that the next prompt is expected to add. None: learned while serving, as a distribution; 200
    until then. ``tlru`` with both ξ and Q̂ pinned is T-LRU as published."""

    median_weight: float | None = None
    """w in [0, 1]: 0 protects the tail alone, 1 sees no threshold. In between, a TEL-safe token has a price, too. None:
    for ``tlru`` 0, as published; for ``etlru`` 1, and less where that was seen to be worse than lru in nothing."""

    ttft_slo_ms: float | None = None
    """TTFT objective in ms. ξ is the largest number of uncached tokens that 19 of 20 prefills of this server compute in
    the time that the objective leaves them (``radix_tlru.objective``)."""

    trim_chunk: int | None = None
    """Tokens, rounded up to pages, that an allocation makes room for at least. As many are taken from a leaf at once,
    if they cost the same. 1: what was asked for. None: 1/100 of the pool, 1,024 at most, or 1 in pools of fewer than
    8,192 tokens (:meth:`for_pool`).

    While a full pool decodes, each step asks for a token a request, and a leaf is cut for it. With a chunk one leaf is
    cut for many steps, and the rest of the chunk is idle until then. ``python -m eval bench --only decode`` measures
    what a chunk saves, ``--only trim`` what it costs.
    """

    host_threshold: int | None = None
    """ξ of the host tier of a hierarchical cache, in tokens that neither tier holds. None: that of the device."""

    return_model: str | None = None
    """With ``etlru``: a return model of one's own in place of the learned rates, as ``module:attribute``
    (``radix_tlru.learning.custom_model``)."""

    highest_priority: int | None = None
    """The plain ``priority`` of a request (SGLang's, or Dynamo's) that is kept as the highest one. 0 says nothing, and
    the negative of it goes first. None: a plain priority says nothing of what is kept."""

    state: str | None = None
    """With ``etlru``: a file that what was learned is loaded from at the start, and saved to again while serving."""

    dry_run: bool = False
    """Stock lru evicts, and the policy is only watched: what it would have saved, by shadow caches."""

    explain: bool = False
    """Keep of the last requests what they lacked and who had it evicted, for ``radix-tlru explain``."""

    warm: str | None = None
    """A file or folder of prompts (``radix_tlru.tools.prompts``) that are prefilled at the start and kept warm."""

    prefill_ahead: bool = False
    """After the answer to a chat whose request has Dynamo's ``speculative_prefill``: prefill the certain beginning of
    the next prompt, while no request is in flight."""

    def __post_init__(self) -> None:
        self._check_values()
        self._check_combinations()

    def _check_values(self) -> None:
        """Raise ConfigError for a field that is of the wrong type or out of range, whatever the others are."""
        if self.policy not in get_args(PolicyName):
            raise _error("policy", self.policy, f"one of {', '.join(get_args(PolicyName))}")
        for field in ("threshold", "next_prompt_estimate", "host_threshold"):
            self._check_whole(field, "a whole number of tokens", least=0)
            if (getattr(self, field) or 0) > _MOST_TOKENS:
                raise _error(field, getattr(self, field), f"a whole number of tokens, {_MOST_TOKENS} at most")
        self._check_whole("trim_chunk", "a whole number of tokens", least=1)
        self._check_whole("highest_priority", "a whole number", least=1)
        weight: Any = self.median_weight
        if not (weight is None or (_is_number(weight) and 0.0 <= float(weight) <= 1.0)):
            removed = f"; {weight} was removed, as it did not pay" if str(weight) in REMOVED_WEIGHTS else ""
            raise _error("median_weight", weight, f"a number from 0 to 1{removed}")
        if self.ttft_slo_ms is not None and not (_is_number(self.ttft_slo_ms) and self.ttft_slo_ms > 0):
            raise _error("ttft_slo_ms", self.ttft_slo_ms, "a number of milliseconds above 0")
        for field in ("state", "warm"):
            self._check_name(field, "the name of a file", str | os.PathLike)
        self._check_name("return_model", "module:attribute", str)
        for field in ("dry_run", "explain", "prefill_ahead"):
            if not isinstance(getattr(self, field), bool):
                raise _error(field, getattr(self, field), "true or false")

    def _check_whole(self, field: str, kind: str, least: int) -> None:
        value = getattr(self, field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise _error(field, value, f"{kind}, {least} or more")

    def _check_name(self, field: str, kind: str, types: Any) -> None:
        value = getattr(self, field)
        if value is None:
            return
        if value == "":  # the folder that the server is started in, if it were a path
            raise _error(field, '""', kind)
        if value == "None" or not isinstance(value, types):  # SGLang reads null in a --config as that text
            raise _error(field, value, f"{kind}, or left out")

    def _check_combinations(self) -> None:
        """Raise ConfigError for fields that contradict each other, or leave nothing to do."""
        for field in ETLRU_ONLY:
            if getattr(self, field) is not None and self.policy != "etlru":
                raise _error(field, getattr(self, field), f"left out without {FLAGS['policy']} etlru")
        if self.policy == "lru":
            self._check_lru()
        if self.explain and self.dry_run:
            raise ConfigError(f"{FLAGS['explain']}: not together with {FLAGS['dry_run']}: stock tells nobody what goes")
        if self.dry_run and self.host_threshold is not None:
            host = f"{FLAGS['host_threshold']} {self.host_threshold}"
            raise ConfigError(f"{host}: not together with {FLAGS['dry_run']}: stock lru evicts from the host, too")
        if self.threshold is not None and self.ttft_slo_ms is not None:
            pinned = f"{FLAGS['threshold']} {self.threshold}"
            learned = f"{FLAGS['ttft_slo_ms']} {_plain(self.ttft_slo_ms)}"
            raise ConfigError(f"{pinned}: not together with {learned}; give one of them")
        for field in ("threshold", "host_threshold"):
            value = getattr(self, field)
            if self.policy != "lru" and value is not None and value <= self.next_prompt:
                flag = FLAGS["next_prompt_estimate"]
                if self.next_prompt_estimate is None:
                    expected = f"{self.next_prompt}, the tokens that a next prompt is expected to add ({flag})"
                else:
                    expected = f"{flag} {self.next_prompt}, or nothing is ever TEL-safe"
                raise _error(field, value, f"more than {expected}")

    def _check_lru(self) -> None:
        """Raise ConfigError for what has no meaning under lru."""
        if self.explain:
            raise ConfigError(f"{FLAGS['explain']}: not together with lru, which knows no conversations")
        if self.dry_run:
            raise ConfigError(f"{FLAGS['dry_run']}: not together with lru, which would save nothing")
        for field in ("ttft_slo_ms", "host_threshold"):
            if getattr(self, field) is not None:
                raise _error(field, getattr(self, field), "left out for lru, which has no threshold")
        if self.median_weight not in (None, 1):
            raise _error("median_weight", self.median_weight, "left out for lru, whose weight is 1")

    def for_pool(self, tokens: int) -> Config:
        """The same with the trim chunk of a pool of so many tokens, unless one was given.

        Raises:
            ConfigError: the given chunk is a large part of the pool: what is freed beyond need would lie idle.
        """
        if self.trim_chunk is not None:
            largest = max(tokens // FEWEST_CHUNKS_IN_POOL, MIN_CHUNK_LIMIT)
            if self.trim_chunk > largest:
                raise _error("trim_chunk", self.trim_chunk, f"at most {largest} tokens in a pool of {tokens}")
            return self
        chunk = min(tokens // CHUNKS_IN_POOL, MAX_CHUNK) if tokens >= MIN_POOL_FOR_CHUNKS else 1
        return replace(self, trim_chunk=chunk)

    @property
    def next_prompt(self) -> int:
        """Q̂ in force, in tokens, while nothing else has been learned."""
        return DEFAULT_NEXT_PROMPT if self.next_prompt_estimate is None else self.next_prompt_estimate

    @property
    def weight(self) -> float:
        """w as it was given, or what it is if none was."""
        if self.median_weight is not None:
            return self.median_weight
        return 0.0 if self.policy == "tlru" else 1.0

    @property
    def is_pinned(self) -> bool:
        """Whether ξ stays what it is at the start."""
        return self.policy == "lru" or self.threshold is not None

    @property
    def objective_ms(self) -> float | None:
        """The TTFT objective in force, in ms; None where ξ is pinned."""
        if self.is_pinned:
            return None
        return DEFAULT_TTFT_SLO_MS if self.ttft_slo_ms is None else self.ttft_slo_ms

    @property
    def start_threshold(self) -> int:
        """ξ in tokens, pinned or to begin with; above Q̂, or nothing would be TEL-safe."""
        if self.threshold is not None:
            return self.threshold
        return max(START_THRESHOLD, self.next_prompt + 1)

    @property
    def digest(self) -> int:
        """32 bits that differ where ranks would evict differently; files may have other names on other nodes."""
        return zlib.crc32(repr(replace(self, state=None, warm=None, explain=False)).encode())

    def __str__(self) -> str:
        if self.policy == "lru":
            return "lru"
        if self.threshold is not None:
            objective = f"threshold={self.threshold} tokens"
        else:
            objective = f"ttft_slo={self.objective_ms:g} ms"
        estimate = "learned" if self.next_prompt_estimate is None else f"{self.next_prompt} tokens"
        chunk = (
            f"1/{CHUNKS_IN_POOL} of the pool, {MAX_CHUNK:,} tokens at most"
            if self.trim_chunk is None
            else f"{self.trim_chunk} tokens"
        )
        weight = "chosen" if self.policy == "etlru" and self.median_weight is None else _plain(self.weight)
        returns = "" if self.return_model is None else f", return_model={self.return_model}"
        state = "" if self.state is None else f", state={self.state}"
        host = "" if self.host_threshold is None else f", host_threshold={self.host_threshold} tokens"
        warm = "" if self.warm is None else f", warm={self.warm}"
        ahead = ", prefill_ahead" if self.prefill_ahead else ""
        priority = "" if self.highest_priority is None else f", priority={self.highest_priority}"
        return (
            f"{self.policy} ({objective}, next_prompt_estimate={estimate}, "
            f"median_weight={weight}, trim_chunk={chunk}{returns}{state}{host}{priority}{warm}{ahead})"
        )


def _is_number(value: Any) -> bool:
    # A whole number may be too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def one_line(text: str) -> str:
    """The text with whatever would break its line, or is not to be seen, as an escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shown(value: Any) -> str:
    """How a value that came as JSON begins, in 80 characters at most."""
    # So many pieces, of a character at least: all of it may be nested more deeply than Python can write.
    text = "".join(islice(json.JSONEncoder(default=repr).iterencode(value), 81))
    return text if len(text) <= 80 else text[:77] + "..."


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _error(field: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{FLAGS[field]} {value}: must be {allowed}")
