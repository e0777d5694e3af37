"""What one request lacked, who had it evicted, when, at which price, and what lru had kept: in five lines.

A server keeps it of its last requests (``--tlru-explain``). It is asked over HTTP, and answers with the fields.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["ROUTE", "Eviction", "Explanation", "explanation_of", "lines"]

ROUTE = "/tlru/explain"
"""Where a server is asked; ``?rid=`` is the id of the request."""


@dataclass(slots=True)
class Eviction:
    """What was taken of a conversation since its last turn. Times are s since the epoch, by the server's clock."""

    first_at: float
    last_at: float
    cuts: int
    tokens: int
    largest: int  # tokens of the largest cut, which is what follows
    needed_for: str  # what the room was made for, of the largest cut
    cost: float  # of its first token: what was compared
    return_rate: float  # λ, in 1 / (unit of the return model's time)
    exceed_probability: float | None  # P(Q > ξ - (L - X)); None: the policy that was in force sees no threshold
    median_weight: float  # w


@dataclass(slots=True)
class Explanation:
    """One request that was served. Lengths are tokens."""

    rid: str
    finished_at: float  # s since the epoch
    prompt: int
    cached: int  # of the prompt
    new: int  # of the prompt: no earlier turn had them
    threshold: int  # ξ that was in force
    policy: str  # that was in force
    silent_s: float  # since the conversation's last turn; negative: this was the first
    lru_cached: int | None  # of the prompt, in a shadow cache under lru; None: that has not served it yet
    eviction: Eviction | None  # None: none is known


def explanation_of(fields: dict[str, Any]) -> Explanation:
    """From what a server answers: ``dataclasses.asdict`` of one.

    Raises:
        KeyError, TypeError: it is something else.
    """
    eviction = fields["eviction"]
    return Explanation(**{**fields, "eviction": None if eviction is None else Eviction(**eviction)})


def lines(told: Explanation) -> Iterator[str]:
    """The five lines."""
    uncached = told.prompt - told.cached
    lacked = max(uncached - told.new, 0)
    beyond = uncached - told.threshold
    judged = f"{beyond:,} beyond" if beyond > 0 else "within"
    prefilled = f"prefilled {uncached:,} of {told.prompt:,} prompt tokens"
    done = f"done at {_clock(told.finished_at)} under {told.policy}"
    yield f"request: {told.rid} {prefilled}, {judged} ξ = {told.threshold:,}; {done}"
    if not lacked:
        yield f"lacked:  nothing that was cached before; {uncached:,} tokens were new"
    else:
        since = "in other conversations" if told.silent_s < 0 else f"{told.silent_s:,.0f} s before"
        yield f"lacked:  {lacked:,} tokens that were cached {since}; {uncached - lacked:,} were new"
    eviction = told.eviction
    if eviction is None:
        # SGLang uses nothing that is cached of the tokens whose log-probabilities are wanted.
        unknown = "not known: before what is remembered, or by a flush; or nothing, if it wanted logprobs of its prompt"
        yield f"evicted: {unknown if lacked else 'nothing'}"
        yield "price:   –"
    else:
        at, until = _clock(eviction.first_at), _clock(eviction.last_at)
        when = at if at == until else f"{at} to {until}"
        cuts = f" in {eviction.cuts:,} cuts, {eviction.largest:,} of them" if eviction.cuts > 1 else ""
        yield f"evicted: {eviction.tokens:,} tokens, {when}{cuts} for {eviction.needed_for}"
        exceed = "–" if eviction.exceed_probability is None else f"{eviction.exceed_probability:.2f}"
        yield (
            f"price:   {eviction.cost:.2g} a token of them, the lowest of all then: λ {eviction.return_rate:.2g}, "
            f"P(over ξ) {exceed}, w {eviction.median_weight:g}"
        )
    if told.lru_cached is None:
        yield "lru:     not known yet (its shadow cache is behind)"
        return
    more = told.lru_cached - told.cached
    against = "as many" if not more else f"{abs(more):,} {'more' if more > 0 else 'fewer'}"
    yield f"lru:     would have had {told.lru_cached:,} tokens of it cached, {against} (by a shadow cache)"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
