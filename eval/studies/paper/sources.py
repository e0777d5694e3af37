"""The traces of the experiments: the data sets of the paper where they can be loaded, else a model of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from eval.caches.knowledge import TraceKnowledge
from eval.simulate.rows import digest_of
from eval.studies.paper.published import WILDCHAT, DataSet
from eval.traces import Arrivals, Request, Synthetic, Trace, TraceError, open_trace
from eval.traces.request import Path

_SHAREGPT_BIRTHS = 1.0
_SHAREGPT_RATES = Arrivals(birth_rate=_SHAREGPT_BIRTHS, turn_rate=3.0)
"""λ_conv and λ_turn of section G.2."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How traces are read."""

    limit: int = 2_000  # turns, the first to arrive; the paper takes 1,000 to 2,000
    seed: int = 0
    tokenizer: str | None = None
    characters_per_token: float = 4.0
    skip_bad: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A trace, and what a reader of its results must know of it."""

    data: DataSet  # its tables are filled from this trace
    trace: Trace
    statement: str
    next_prompt_estimate: int  # Q̂ in tokens, the average prompt of the trace
    stands_in: bool = False  # it is a model in the place of the data set

    @property
    def label(self) -> str:
        """Its name in a title."""
        return f"synthetic model for {self.data.name}" if self.stands_in else self.trace.name

    @property
    def requests(self) -> list[Request]:
        """Those of the trace, in order of arrival."""
        return self.trace.requests

    @property
    def key(self) -> str:
        """Name and content, so that results of another trace are never taken for those of this one."""
        return f"{self.trace.name}@{digest_of(self.trace)}"


def load(data: DataSet, wanted: str | None, reading: Reading) -> Source:
    """The trace that was asked for, else the data set from the hub, else a model in its place.

    Raises:
        TraceError: the trace that was asked for cannot be read. A hub that cannot be reached is no error.
    """
    try:
        return _source(data, wanted or data.hub, reading, reason=None)
    except TraceError as error:
        if wanted is not None:
            raise
        return _source(data, _name(stand_in(data, reading)), reading, reason=str(error))


def stand_in(data: DataSet, reading: Reading) -> Synthetic:
    """The stochastic model of section 4 in the place of a data set.

    The average prompt and the rates of section G.2 are the paper's. The rest is fitted to what it reports, coarsely and
    by hand:

    - WildChat: lengths and turns are the generator's defaults and not fitted. λ_conv is fitted: of eight values from
      0.03 to 0.3 conversations a second, T-LRU's improvements over LRU come closest to the paper's Table 1 at 0.13 and
      at 0.16 (2.9 percentage points apart on average, four seeds).
    - ShareGPT: with answers of 2,500 tokens on average, σ = 1, the TTFT under LRU at a capacity of 1,000 is as section
      G.2 reports it (p50 to p99, within 10 % on average).
    """
    if data is WILDCHAT:
        model = Synthetic(birth_rate=0.15, prompt_mean=200.0, seed=reading.seed)
    else:
        mean_life_s = (3.5 - 1) / _SHAREGPT_RATES.turn_rate  # 3.5 turns on average
        model = Synthetic(
            birth_rate=_SHAREGPT_BIRTHS,
            turn_rate=_SHAREGPT_RATES.turn_rate,
            mean_life_s=mean_life_s,
            prompt_mean=100.0,
            answer_mean=2_500.0,
            answer_sigma=1.0,
            seed=reading.seed,
        )
    return replace(model, conversations=max(reading.limit, 1))  # more than enough: each has a turn at least


_FITTED = {
    "WildChat": "average prompt from the paper; other lengths and turns are built in; λ_conv fitted to its Table 1, so "
    "that agreement with that table is no evidence",
    "ShareGPT": "rates, turns and average prompt from section G.2; lengths of answers fitted to its TTFT under LRU",
}


def drawn(given: Synthetic, data: DataSet, reading: Reading) -> Source:
    """A trace of the stochastic model with parameters of one's own."""
    return _source(data, _name(given), reading, reason=None)


def _source(data: DataSet, name: str, reading: Reading, reason: str | None) -> Source:
    trace = open_trace(
        name,
        limit=reading.limit,
        skip_bad=reading.skip_bad,
        tokenizer=reading.tokenizer,
        characters_per_token=reading.characters_per_token,
        arrivals=replace(_SHAREGPT_RATES, seed=reading.seed),
    )
    lengths = prompt_lengths(trace.requests)
    if not lengths:  # a block trace does not tell conversations apart, but its contexts return
        lengths = [one.added for one in TraceKnowledge(trace.requests).returns]
    estimate = round(fmean(lengths)) if lengths else data.next_prompt_estimate
    return Source(data, trace, _statement(data, trace, reading, reason, lengths), estimate, reason is not None)


def _statement(data: DataSet, trace: Trace, reading: Reading, reason: str | None, lengths: Sequence[int]) -> str:
    requests = trace.requests
    conversations = len({request.conversation for request in requests})
    facts = [f"{len(requests):,} turns"]
    if requests[0].conversation is not None:
        facts.append(f"{conversations:,} conversations")
    if lengths:
        facts.append(f"prompts of {fmean(lengths):.0f} tokens on average")
    if trace.format in ("wildchat", "sharegpt"):
        counter = reading.tokenizer or f"{reading.characters_per_token:g} characters a token, not the model's tokenizer"
        facts.append(f"tokens counted by {counter}")
    if trace.format == "sharegpt":
        rates = f"λ_conv = {_SHAREGPT_BIRTHS:g}, λ_turn = {_SHAREGPT_RATES.turn_rate:g}"
        facts.append(f"stamped with {rates} as in section G.2, seed {reading.seed}")
    if trace.skipped:
        facts.append(f"{trace.skipped:,} records skipped")
    if reason is None:
        return f"{trace.name} ({trace.format}): {', '.join(facts)}"
    return (
        f"synthetic model, seed {reading.seed}, {', '.join(facts)} ({_FITTED[data.name]}; {trace.name}): "
        f"{data.name} could not be loaded: {reason}"
    )


def prompt_lengths(requests: Sequence[Request]) -> list[int]:
    """Tokens that each prompt adds to its conversation; empty where the trace does not tell conversations apart.

    Where a history was cut or replaced, all that follows what is left of it is added.
    """
    contexts: dict[str, Path] = {}
    lengths = []
    for request in requests:
        if request.conversation is None:
            return []
        known = contexts.get(request.conversation, Path((), ()))
        lengths.append(request.prompt_tokens - request.prompt.common(known))
        contexts[request.conversation] = request.context
    return lengths


def _name(given: Synthetic) -> str:
    """The model as a name that ``open_trace`` understands."""
    different = [
        f"{field.name}={getattr(given, field.name)}"
        for field in fields(Synthetic)
        if getattr(given, field.name) != field.default
    ]
    return "synthetic" + (":" + ",".join(different) if different else "")
