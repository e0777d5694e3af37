"""What the simulator predicts, given the pool and the measured α and β, beside what the clients measured.

The requests of each arm go through a cache of the server's size, in the order in which they were sent. For radix-tlru
it is simulated under the server's own order. For stock, and where there are sessions, it is the real class of SGLang.
TTFT is then β + α·uncached. A prediction that is off is split into its two halves: tokens (the cache) and time (the
line: queueing, batching, load).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from eval.caches.policies import simulated_cache
from eval.caches.real import STOCK_POLICIES, RealCache
from eval.caches.simulator import Cache
from eval.live.replay.facts import PLUGIN, Facts
from eval.live.replay.rows import Folder, Row
from eval.live.replay.turns import Load, Segment, Turn
from eval.simulate.timing import Point, Timing, TimingError, fit
from eval.traces.request import Path, Request

TOLERANCE = 0.15
"""Relative error of a p95 that counts as predicted."""

_FITTED = 2_000  # points at most: a robust line takes the square of it in time and memory


@dataclass(frozen=True, slots=True)
class Prediction:
    """p95 of one arm, measured and predicted, over all its repeats."""

    arm: str
    ttft_ms: float  # measured
    predicted_ms: float
    uncached: float  # tokens, measured
    predicted_uncached: float
    same_tokens: float  # share of requests whose uncached tokens were predicted to the page

    @property
    def error(self) -> float:
        """Relative error of the predicted p95 of TTFT."""
        return self.predicted_ms / self.ttft_ms - 1

    def verdict(self, timing: Timing) -> str:
        """Whether the prediction holds; if not, which half of it is off and why that happens."""
        if abs(self.error) <= TOLERANCE:
            return f"within {TOLERANCE:.0%}"
        tokens = self.predicted_uncached / self.uncached - 1 if self.uncached else 0.0
        time = timing.ms(self.uncached) / self.ttft_ms - 1
        if abs(tokens) >= abs(time):
            return (
                f"off: the cache held other tokens than simulated ({tokens:+.0%} uncached at p95): requests at once "
                "lock their contexts, answers may be cut into other tokens"
            )
        return (
            f"off: requests with as many tokens took {-time / (1 + time):+.0%} against the line: they queued, shared a "
            "batch, or the machine was busy"
        )


def measured_points(folder: Folder) -> list[Point]:
    """Uncached tokens and TTFT of every request of all arms that succeeded."""
    return [
        Point(row.uncached_tokens, row.ttft_ms)
        for arm in folder.run.arms
        for row in folder.answered(arm)
        if row.ttft_ms is not None
    ]


def fitted_line(points: Sequence[Point]) -> Timing | None:
    """α and β of all arms together; None if they give no line."""
    chosen = points
    if len(points) > _FITTED:
        picks = np.random.default_rng(0).choice(len(points), _FITTED, replace=False)
        chosen = [points[pick] for pick in np.sort(picks)]
    try:
        return fit(chosen, f"fitted to {len(chosen):,} of {len(points):,} requests of all arms")
    except TimingError:
        return None


def predict(folder: Folder, load: Load, timing: Timing) -> tuple[list[Prediction], dict[str, str]]:
    """Predictions by arm, and the reasons where there is none."""
    made, not_made = [], {}
    for arm in folder.run.arms:
        facts = folder.facts(arm)
        if facts is None:
            continue
        if (reason := refusal(facts, folder, arm)) is not None:
            not_made[arm] = reason
            continue
        measured: list[Row] = []
        uncached: list[int] = []
        for repeat in sorted(part.repeat for part in folder.parts if part.arm == arm):
            rows = folder.rows(arm, repeat)
            cache = _cache(facts, folder)
            measured += [row for row in rows if folder.counts(row)]
            predicted = [request.prompt_tokens - cache.request(request) for request in requests_of(rows, load)]
            uncached += [tokens for tokens, row in zip(predicted, rows, strict=True) if folder.counts(row)]
        ttft = [row.ttft_ms for row in measured if row.ttft_ms is not None]
        known = [row.uncached_tokens for row in measured]
        made.append(
            Prediction(
                arm=arm,
                ttft_ms=_p95(ttft),
                predicted_ms=timing.ms(_p95(uncached)),
                uncached=_p95(known),
                predicted_uncached=_p95(uncached),
                same_tokens=float(
                    np.mean(np.abs(np.subtract(known, uncached)) < facts.page_size) if known else float("nan")
                ),
            )
        )
    return made, not_made


def refusal(facts: Facts, folder: Folder, arm: str) -> str | None:
    """Why an arm cannot be predicted; None if it can."""
    if facts.policy not in (PLUGIN, *STOCK_POLICIES):
        return f"no simulator has the policy {facts.policy}"
    if facts.replicas > 1:
        return f"{facts.replicas} replicas: `simulate --replicas` is the place"
    if facts.moves:
        return "its ξ was learned while it ran"
    if facts.return_model is not None:
        return f"no simulator asks {facts.return_model}"
    if folder.fell_back(arm):
        return "it fell back to lru on the way"
    if any(row.error is not None for _, row in folder.finished_rows(arm)):
        return "some requests failed: what they left in the cache is not known"
    return None


def _p95(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.95, method="inverted_cdf"))


def _cache(facts: Facts, folder: Folder) -> Cache:
    threshold = folder.run.threshold if facts.threshold is None else facts.threshold
    estimate = folder.run.next_prompt_estimate if facts.next_prompt_estimate is None else facts.next_prompt_estimate
    sessions = facts.sessions and folder.run.sessions
    if facts.policy == PLUGIN:
        sizes: dict[str, Any] = {
            "threshold": threshold,
            "next_prompt_estimate": None if facts.learns else estimate,
            "median_weight": facts.median_weight,
            "page_size": facts.page_size,
            "trim_chunk": facts.trim_chunk,
        }
        if not sessions:
            return simulated_cache(facts.eviction, facts.pool, **sizes)
        return RealCache(facts.eviction, facts.pool, **sizes, sessions=True)
    return RealCache(
        facts.policy,
        facts.pool,
        stock=True,
        threshold=threshold,
        next_prompt_estimate=estimate,
        page_size=facts.page_size,
        chunk=facts.chunk,
        core="python" if sessions else "rust",
        sessions=sessions,
    )


def requests_of(rows: Sequence[Row], load: Load) -> list[Request]:
    """The requests that were sent, as units of the trace with the lengths that the server counted.

    Their conversations are named by the session that servers were told.
    """
    conversations = load.by_index()
    histories: dict[int, list[Segment]] = {}
    answers: dict[int, list[Segment]] = {}  # by the unit that an answer ends with, what stands for it instead
    made = []
    for row in rows:
        conversation = conversations[row.conversation]
        turn = conversation.turns[row.turn]
        history = [] if turn.whole else histories.get(row.conversation, [])
        new = [unit for segment in turn.segments for unit in answers.get(segment.unit, [segment])]
        asked, said = _fitted([*history, *new], row.prompt_tokens), _answer(row, turn)
        histories[row.conversation] = asked + said
        if turn.answer:
            answers[turn.answer[-1].unit] = said[len(turn.answer) - 1 :]
        # The last token of an answer was never an input: it is in the next prompt, but not cached.
        prompt, context = _path(asked), _path(asked + said[:-1])
        session = conversation.session_index
        sent = row.sent_s, str(session), prompt, context, len(prompt), row.output_tokens
        made.append(Request(*sent, closes=turn.closes and conversation.index == session))
    return made


def _answer(row: Row, turn: Turn) -> list[Segment]:
    """The units of an answer. The last one is its last token."""
    own = _answer_unit(row)
    known = list(turn.answer) or [Segment(own, row.output_tokens)]
    last = known.pop()
    but_one = [Segment(last.unit, last.tokens - 1)] if last.tokens > 1 else []
    return [*known, *but_one, Segment(own + 1, 1)]


def _fitted(segments: list[Segment], prompt_tokens: int) -> list[Segment]:
    """The server counts texts with its own tokenizer and template: the last unit takes the difference."""
    if not segments:
        return []
    before = sum(segment.tokens for segment in segments[:-1])
    return [*segments[:-1], Segment(segments[-1].unit, max(prompt_tokens - before, 1))]


def _path(segments: Sequence[Segment]) -> Path:
    return Path(tuple(each.unit for each in segments), tuple(accumulate(each.tokens for each in segments)))


def _answer_unit(row: Row) -> int:
    """A number that no unit of a trace has: these have 64 bits at most, or 79 for a partial block."""
    return (1 << 100) + ((row.conversation << 24) + row.turn) * 2
