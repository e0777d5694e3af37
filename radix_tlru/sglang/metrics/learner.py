"""What the turns cost so far, what they would have cost under other policies, and what was predicted of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radix_tlru.learning.age_bands import SPANS
from radix_tlru.learning.guard import NUMBERED_REASONS, REASONS
from radix_tlru.learning.selector import IN_FORCE
from radix_tlru.sglang.metrics.maker import Maker, MirroredCounter

if TYPE_CHECKING:
    from radix_tlru.learning.learner import Learner
    from radix_tlru.sglang.cache.learning_component import LearningComponent

__all__ = ["LearnerMetrics"]


class LearnerMetrics:
    """The policy in force, and what a learner knows of the turns so far."""

    def __init__(self, make: Maker, tail: LearningComponent, learner: Learner) -> None:
        self._tail, self._learner = tail, learner
        self._reported = -1  # turns
        self._policy = make.gauges("sglang:tlru_policy", "1 for the policy in force.", "policy", [*learner.candidates])
        self._parts = _ServedMetrics(make), _ShadowMetrics(make, [*learner.candidates]), _ReturnMetrics(make)

    def report(self) -> None:
        """Bring them up to date if a turn was served since."""
        learner, requests = self._learner, self._learner.served.requests
        if self._tail.breaker.has_tripped:  # nothing is learned any more
            self._show_in_force("lru")
        elif requests != self._reported:
            self._reported = requests
            self._show_in_force(learner.in_force)
            for part in self._parts:
                part.report(learner)

    def _show_in_force(self, in_force: str) -> None:
        for name, gauge in self._policy.items():
            gauge.set(name == in_force)


class _ServedMetrics:
    """What the turns cost so far."""

    def __init__(self, make: Maker) -> None:
        self._requests = make.counter("sglang:tlru_requests_total", "Requests served.")
        self._violations = make.counter(
            "sglang:tlru_violations_total", "Requests with more uncached tokens than the threshold then in force."
        )
        self._excess = make.counter(
            "sglang:tlru_excess_tokens_total",
            "Uncached tokens of requests beyond the threshold then in force: tail excess latency, in tokens.",
        )

    def report(self, learner: Learner) -> None:
        self._requests.follow(learner.served.requests)
        self._violations.follow(learner.served.violations)
        self._excess.follow(learner.served.excess)


class _ShadowMetrics:
    """What they would have cost under each candidate, and why one may not be in force."""

    def __init__(self, make: Maker, candidates: list[str]) -> None:
        self._requests = make.counter(
            "sglang:tlru_shadow_requests_total", "Requests of sampled conversations, which the shadow caches see, too."
        )
        self._prompt_tokens = make.counter(
            "sglang:tlru_shadow_prompt_tokens_total", "Prompt tokens of the requests that the shadow caches see."
        )

        def counters(name: str, documentation: str) -> dict[str, MirroredCounter]:
            return make.counters(name, documentation, "policy", [*candidates, IN_FORCE])

        self._excess = counters(
            "sglang:tlru_shadow_excess_tokens_total",
            "Tail excess latency of sampled requests under each policy in a shadow cache, in tokens; to be held "
            f"against each other, not against what was served. {IN_FORCE}: under whichever was, or would have been, in "
            "force.",
        )
        self._violations = counters(
            "sglang:tlru_shadow_violations_total",
            "Sampled requests with more uncached tokens than the threshold, under each policy in a shadow cache.",
        )
        self._uncached = counters(
            "sglang:tlru_shadow_uncached_tokens_total",
            "Uncached tokens of sampled requests, under each policy in a shadow cache.",
        )
        self._refused = make.gauges(
            "sglang:tlru_refused",
            "Why a policy may not be in force, by the shadow caches at the last look: the figure in which it was worse "
            "than lru, that what it wins may be chance, or that it was worse of late. "
            f"{NUMBERED_REASONS}.",
            "policy",
            candidates,
        )

    def report(self, learner: Learner) -> None:
        for name, gauge in self._refused.items():
            reason = learner.rule.refused.get(name)
            gauge.set(0 if reason is None else 1 + REASONS.index(reason))
        selector = learner.selector
        if selector is None:
            return
        self._requests.follow(selector.sampled)
        self._prompt_tokens.follow(selector.prompt_tokens)
        for name, tally in selector.served.items():
            self._excess[name].follow(tally.excess)
            self._violations[name].follow(tally.violations)
            self._uncached[name].follow(tally.uncached)


class _ReturnMetrics:
    """Returns of conversations, predicted and seen; and whether they repeated the last answer."""

    def __init__(self, make: Maker) -> None:
        ends = (*(f"{end:g}" for end in SPANS[1:]), "")
        spans = [f"{start:g}-{end}s" if end else f"{start:g}+s" for start, end in zip(SPANS, ends, strict=True)]

        def counters(name: str, documentation: str) -> dict[str, MirroredCounter]:
            return make.counters(name, documentation, "silent", spans)

        self._watched = counters(
            "sglang:tlru_watched_seconds_total",
            "Time that conversations were silent while their return was predicted, by how long they had been silent.",
        )
        self._expected = counters(
            "sglang:tlru_expected_returns_total",
            "Returns of conversations predicted, by how long they had been silent.",
        )
        self._returns = counters(
            "sglang:tlru_returns_total",
            "Returns seen of conversations whose return was predicted, by how long they had been silent.",
        )
        self._continued = make.counters(
            "sglang:tlru_continued_total",
            "Conversations that returned, by their last answer: as_cached; or otherwise, without its reasoning or as a "
            "chat template writes it, when what was cached of it was of no use.",
            "answer",
            ("as_cached", "otherwise"),
        )

    def report(self, learner: Learner) -> None:
        self._continued["as_cached"].follow(learner.answers[True])
        self._continued["otherwise"].follow(learner.answers[False])
        metrics = zip(self._watched.values(), self._expected.values(), self._returns.values(), strict=True)
        for counters, counts in zip(metrics, learner.returns_by_age, strict=False):
            for counter, count in zip(counters, counts, strict=True):
                counter.follow(count)
