"""What an operator sees at ``/metrics``, under SGLang's registry, names and rank labels.

===============  =======================================================================  ============================
class            says                                                                     brought up to date
===============  =======================================================================  ============================
TailMetrics      ξ in force, and the line it comes from                                   at every report
_OrderMetrics    what was evicted and could be; nothing in a dry run, where stock evicts  at every report
_LearnerMetrics  TEL so far, what it would be under other policies, returns predicted     once for each request
_VictimMetrics   what goes next, and what a token of it costs                             in 0.2 % of the time at most
===============  =======================================================================  ============================

``radix-tlru top`` shows it all on a screen.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, get_args

from sglang.srt.observability.metrics_collector import _StatLoggerDIMixin

from radix_tlru.learning.age_bands import GROUPS
from radix_tlru.learning.guard import FIGURES
from radix_tlru.learning.selector import IN_FORCE
from radix_tlru.policy.order import EvictionOrder, Phase
from radix_tlru.policy.preview import preview
from radix_tlru.sglang.cache.component import TailComponent

if TYPE_CHECKING:
    from radix_tlru.learning.learner import Learner
    from radix_tlru.sglang.cache.learning_component import LearningComponent
    from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold

__all__ = ["TailMetrics"]

_NEXT = 5  # victims that are shown before they are
_SHARE = 0.002  # of the time, that looking for them may take: about three looks a second


class TailMetrics(_StatLoggerDIMixin):
    """Counters and gauges of one rank's cache; built in the scheduler process, once metrics are set up there.

    Args:
        labels: of this rank, and of no other.
        tail: the component whose learner, and whose order, is reported, as far as it has them.
        live: what moves its threshold, if anything does.
    """

    def __init__(self, labels: dict[str, Any], tail: LearningComponent, live: LiveThreshold | None = None) -> None:
        # Imported here as SGLang does: the multiprocess directory must be in the environment by then.
        from prometheus_client import Counter, Gauge

        make = _Maker(self._counter_cls or Counter, self._gauge_cls or Gauge, labels)
        self._tail = tail
        self._parts: list[_Reports] = []
        self._victims: _VictimMetrics | None = None
        if isinstance(tail, TailComponent):
            self._victims = _VictimMetrics(make, tail)
            self._parts += [_OrderMetrics(make, tail), self._victims]
        if tail.learner is not None:
            self._parts.append(_LearnerMetrics(make, tail, tail.learner))
        self._fallen_back = make.gauge(
            "sglang:tlru_fallen_back", "1: a fault of the policy, which the log tells; lru evicts since, as stock."
        )
        dry_run = make.gauge("sglang:tlru_dry_run", "1: stock lru evicts, and the policy in force is only watched.")
        dry_run.set(tail.config.dry_run)
        self._threshold = make.gauge(
            "sglang:tlru_threshold_tokens", "Uncached tokens that meet the TTFT objective, in force."
        )
        self._weight = make.gauge(
            "sglang:tlru_median_weight", "w in force: from 0, the tail alone counts, to 1, all tokens count alike."
        )
        self._live = live
        if live is not None:
            self._samples = make.gauge(
                "sglang:tlru_threshold_samples", "Recent prefills that the threshold is learned from."
            )
            self._alpha = make.gauge(
                "sglang:tlru_alpha_ms_per_token",
                "Prefill time of a token, of about as many as meet the objective; 0 before.",
            )
            self._beta = make.gauge(
                "sglang:tlru_beta_ms",
                "Prefill time without tokens, by the line of that slope near the objective; 0 before.",
            )
            self._late = make.gauge(
                "sglang:tlru_prefill_late_ratio", "What 19 of 20 prefills take at most, in times that line; 0 before."
            )
            self._overhead = make.gauge(
                "sglang:tlru_overhead_ms", "What a first token waits for other than prefills; 0 before it is known."
            )
        self.report()

    def report(self) -> None:
        """Bring the registry up to date: so many metrics that no token of an answer should wait for it."""
        for part in self._parts:
            part.report()
        self._fallen_back.set(self._tail.breaker.has_tripped)
        self._threshold.set(self._tail.policy.threshold)
        self._weight.set(self._tail.policy.median_weight)
        if self._live is not None:
            self._samples.set(self._live.samples)
            if self._live.estimate is not None:
                _, line, late, overhead_ms = self._live.estimate
                self._alpha.set(line.alpha)
                self._beta.set(line.beta)
                self._late.set(late)
                self._overhead.set(overhead_ms)


class _Reports(Protocol):
    """A part of the metrics."""

    def report(self) -> None:
        """Bring it up to date."""


class _OrderMetrics:
    """What was evicted by the order, and could be."""

    def __init__(self, make: _Maker, tail: TailComponent) -> None:
        self._tail = tail
        self._evicted = make.counters(
            "sglang:tlru_evicted_tokens_total",
            "Tokens evicted by phase: tel_safe (free at the tail) or lru (the least recent of the rest).",
            "phase",
            get_args(Phase),
        )
        self._dropped = make.counters(
            "sglang:tlru_host_dropped_tokens_total",
            "Tokens dropped from the host tier of a hierarchical cache, by phase; what the device evicts is demoted.",
            "phase",
            get_args(Phase),
        )
        self._splits = make.counter("sglang:tlru_splits_total", "Leaves split so that only their tail was evicted.")
        self._leaves = make.gauge("sglang:tlru_evictable_leaves", "Leaves that could be evicted now.")
        self._over_budget = make.gauge(
            "sglang:tlru_over_budget_tokens",
            "Tokens of evictable paths beyond their safe budget now; a shared token counts for each of its leaves.",
        )

    def report(self) -> None:
        counts = self._tail.counts
        for phase, counter in self._evicted.items():
            counter.follow(counts[phase])
        for phase, counter in self._dropped.items():
            counter.follow(counts[f"host_{phase}"])
        self._splits.follow(counts["splits"])
        self._leaves.set(len(self._tail.order))
        self._over_budget.set(self._tail.order.over_budget)


class _LearnerMetrics:
    """What the turns cost so far, and what was predicted of them."""

    def __init__(self, make: _Maker, tail: LearningComponent, learner: Learner) -> None:
        self._tail, self._learner = tail, learner
        self._reported = -1
        names = list(learner.candidates)
        self._policy = make.gauges("sglang:tlru_policy", "1 for the policy in force.", "policy", names)
        self._requests = make.counter("sglang:tlru_requests_total", "Requests served.")
        self._violations = make.counter(
            "sglang:tlru_violations_total", "Requests with more uncached tokens than the threshold then in force."
        )
        self._excess = make.counter(
            "sglang:tlru_excess_tokens_total",
            "Uncached tokens of requests beyond the threshold then in force: tail excess latency, in tokens.",
        )
        self._shadow_requests = make.counter(
            "sglang:tlru_shadow_requests_total", "Requests of sampled conversations, which the shadow caches see, too."
        )
        self._shadow_prompt = make.counter(
            "sglang:tlru_shadow_prompt_tokens_total", "Prompt tokens of the requests that the shadow caches see."
        )

        def shadow(name: str, documentation: str) -> dict[str, _Counter]:
            return make.counters(name, documentation, "policy", [*names, IN_FORCE])

        self._shadow_excess = shadow(
            "sglang:tlru_shadow_excess_tokens_total",
            "Tail excess latency of sampled requests under each policy in a shadow cache, in tokens; to be held "
            f"against each other, not against what was served. {IN_FORCE}: under whichever was, or would have been, in "
            "force.",
        )
        self._shadow_violations = shadow(
            "sglang:tlru_shadow_violations_total",
            "Sampled requests with more uncached tokens than the threshold, under each policy in a shadow cache.",
        )
        self._shadow_uncached = shadow(
            "sglang:tlru_shadow_uncached_tokens_total",
            "Uncached tokens of sampled requests, under each policy in a shadow cache.",
        )
        self._refused = make.gauges(
            "sglang:tlru_refused",
            "Why a policy may not be in force, by the shadow caches: the figure in which it was worse than lru at the "
            f"last look. 0: none; {'; '.join(f'{code}: {figure}' for code, figure in enumerate(FIGURES, 1))}.",
            "policy",
            names,
        )
        ends = (*(f"{end:g}" for end in GROUPS[1:]), "")
        spans = [f"{start:g}-{end}s" if end else f"{start:g}+s" for start, end in zip(GROUPS, ends, strict=True)]
        self._watched = make.counters(
            "sglang:tlru_watched_seconds_total",
            "Time that conversations were silent while their return was predicted, by how long they had been silent.",
            "silent",
            spans,
        )
        self._expected = make.counters(
            "sglang:tlru_expected_returns_total",
            "Returns of conversations predicted, by how long they had been silent.",
            "silent",
            spans,
        )
        self._returns = make.counters(
            "sglang:tlru_returns_total",
            "Returns seen of conversations whose return was predicted, by how long they had been silent.",
            "silent",
            spans,
        )
        self._continued = make.counters(
            "sglang:tlru_continued_total",
            "Conversations that returned, by their last answer: as_cached; or otherwise, without its reasoning or as a "
            "chat template writes it, when what was cached of it was of no use.",
            "answer",
            ("as_cached", "otherwise"),
        )

    def report(self) -> None:
        learner = self._learner
        served = learner.served
        if self._tail.breaker.has_tripped:  # nothing is learned any more
            for name, gauge in self._policy.items():
                gauge.set(name == "lru")
            return
        if served.requests == self._reported:
            return
        self._reported = served.requests
        for name, gauge in self._policy.items():
            gauge.set(name == learner.in_force)
        for name, gauge in self._refused.items():
            figure = learner.rule.refused.get(name)
            gauge.set(0 if figure is None else 1 + FIGURES.index(figure))
        self._requests.follow(served.requests)
        self._violations.follow(served.violations)
        self._excess.follow(served.excess)
        if learner.selector is not None:
            self._shadow_requests.follow(learner.selector.sampled)
            self._shadow_prompt.follow(learner.selector.prompt_tokens)
            for name, tally in learner.selector.served.items():
                self._shadow_excess[name].follow(tally.excess)
                self._shadow_violations[name].follow(tally.violations)
                self._shadow_uncached[name].follow(tally.uncached)
        self._continued["as_cached"].follow(learner.answers[True])
        self._continued["otherwise"].follow(learner.answers[False])
        metrics = zip(self._watched.values(), self._expected.values(), self._returns.values(), strict=True)
        for counters, counts in zip(metrics, learner.returns_by_age, strict=False):
            for counter, count in zip(counters, counts, strict=True):
                counter.follow(count)


class _VictimMetrics:
    """The leaves that go next, if nothing is used before: how deep they are, and why they go before the others."""

    def __init__(self, make: _Maker, tail: TailComponent) -> None:
        self._tail = tail
        self._next_look, self._shown = 0.0, 0
        positions = [str(position) for position in range(1, _NEXT + 1)]

        def gauges(name: str, documentation: str) -> list[Any]:
            return list(make.gauges(f"sglang:tlru_next_victim_{name}", documentation, "position", positions).values())

        self._cached = gauges(
            "cached_tokens", "Resident tokens of the path to a leaf that goes next; 0: there is none."
        )
        self._keep = gauges(
            "keep_tokens",
            "Tokens of such a path that stay once all has gone that costs the same.",
        )
        self._history = gauges("history_tokens", "The most tokens that the path to a leaf that goes next has ever had.")
        self._silent = gauges(
            "silent_seconds", "Since the last turn that used a leaf that goes next, by the newest stamp; NaN: unknown."
        )
        self._rate = gauges(
            "return_rate",
            "Of a leaf that goes next: 1 / s if it is learned, else 1 / (turns, or matches and inserts of this cache, "
            "since the last use + 1).",
        )
        self._exceed = gauges(
            "exceed_probability", "That for want of the next token to go a turn goes beyond the threshold; 0: tel_safe."
        )
        self._cost = gauges("cost", "What leaves are ordered by: return rate * ((1 - w) * exceed probability + w).")

    def report(self) -> None:
        # The clock decides what is shown, never what is evicted.
        began = time.perf_counter()
        if began < self._next_look and (self._tail.order or not self._shown):  # once there is none, none is shown
            return
        self._look()
        done = time.perf_counter()
        self._next_look = done + (done - began) / _SHARE

    def _look(self) -> None:
        order = self._tail.order
        victims = preview((order,) if isinstance(order, EvictionOrder) else order.parts, _NEXT)
        self._shown = len(victims)
        for cached in self._cached[len(victims) :]:
            cached.set(0)
        for position, (victim, price) in enumerate(victims):
            leaf = victim.leaf
            silent = math.nan
            if self._tail.learner is not None and leaf.conversation is not None:
                # The stamp may be the newer one: of a prompt that others continue, or of a turn that is learned later.
                silent = max(0.0, self._tail.learner.now - leaf.conversation.stamp)
            self._cached[position].set(leaf.end)
            self._keep[position].set(victim.keep)
            self._history[position].set(leaf.history)
            self._silent[position].set(silent)
            self._rate[position].set(price.return_rate)
            self._exceed[position].set(price.exceed_probability)
            self._cost[position].set(price.cost)


class _Counter:
    """A counter of what is counted elsewhere."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._told = 0.0

    def follow(self, count: float) -> None:
        """Bring it up to that count; what has not grown is left alone."""
        if count > self._told:
            self._metric.inc(count - self._told)
            self._told = count


class _Maker:
    """Makes metrics under the labels of a rank, one or several that differ in one more label."""

    def __init__(self, counter: Any, gauge: Any, labels: Mapping[str, Any]) -> None:
        self._counter, self._gauge, self._labels = counter, gauge, labels

    def counter(self, name: str, documentation: str) -> _Counter:
        return _Counter(self._counter(name, documentation, list(self._labels)).labels(**self._labels))

    def counters(self, name: str, documentation: str, label: str, values: Sequence[str]) -> dict[str, _Counter]:
        metric = self._counter(name, documentation, [*self._labels, label])
        return {value: _Counter(metric.labels(**self._labels, **{label: value})) for value in values}

    def gauge(self, name: str, documentation: str) -> Any:
        metric = self._gauge(name, documentation, list(self._labels), multiprocess_mode="mostrecent")
        return metric.labels(**self._labels)

    def gauges(self, name: str, documentation: str, label: str, values: Sequence[str]) -> dict[str, Any]:
        metric = self._gauge(name, documentation, [*self._labels, label], multiprocess_mode="mostrecent")
        return {value: metric.labels(**self._labels, **{label: value}) for value in values}
