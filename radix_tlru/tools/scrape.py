"""The metrics of a server, read over HTTP and told apart by rank.

The names and units of the metrics are those of ``radix_tlru.sglang.metrics``: tokens, requests, ms, or what a name ends
in (``_seconds``, ``_ratio``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import requests
from prometheus_client.parser import text_string_to_metric_families

from radix_tlru.tools.http import OF_ROUTER, ServerError, base_url, request, without_password

__all__ = ["Ahead", "Rank", "Snapshot", "WarmPrompt", "read", "scrape"]

OURS = "sglang:tlru_"
"""What the names of our metrics begin with."""

_ONE_OF_A_RANK = f"{OURS}threshold_tokens"
"""A metric that each rank has, without a label that is not the rank's."""

_WARM, _AHEAD = f"{OURS}warm_", f"{OURS}ahead_"  # of what is prefilled for no request, which is no rank's


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    labels: dict[str, str]
    value: float


class Rank:
    """What one rank's cache says of itself. Metrics are named without ``sglang:tlru_``.

    Args:
        name: such as ``tp 0, dp 1``.
        samples: those of our metrics that are of this rank.
        replica: of the model, or group of data-parallel attention, that it is in; its ranks evict alike.
    """

    def __init__(self, name: str, samples: Iterable[_Sample], replica: str = "") -> None:
        self.name, self.replica = name, replica
        self._samples: dict[str, list[_Sample]] = {}
        for sample in samples:
            self._samples.setdefault(sample.name.removeprefix(OURS), []).append(sample)

    def value(self, name: str) -> float | None:
        """The value of a metric, in the unit that its name says; None if the server has no such metric."""
        samples = self._samples.get(name)
        return samples[0].value if samples else None

    def by(self, name: str, label: str) -> dict[str, float]:
        """The values of a metric by one of its labels, in the server's order; empty if there is no such metric.

        Raises:
            KeyError: the metric has no such label.
        """
        return {sample.labels[label]: sample.value for sample in self._samples.get(name, ())}

    @property
    def is_dry_run(self) -> bool:
        """Whether stock evicts, and the policy in force is only watched."""
        return bool(self.value("dry_run"))

    @property
    def policy(self) -> str | None:
        """Name of the policy in force; None if the server says none."""
        return next((name for name, in_force in self.by("policy", "policy").items() if in_force), None)


class WarmPrompt(NamedTuple):
    """A prompt that the server keeps warm."""

    name: str
    tokens: float
    cached: float  # tokens of it, when it was asked for last


class Ahead(NamedTuple):
    """Answers whose next prompt was to be prefilled ahead."""

    answers: Mapping[str, float]  # by outcome: done, dropped, failed
    tokens: float  # that were prefilled


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A server at one moment."""

    url: str  # of the server, with http:// and without /metrics or a password
    at: float  # of ``time.monotonic``, s
    model: str
    hit_ratio: float | None  # cached by all prompt tokens, 0 to 1, since the start; None before the first
    ranks: tuple[Rank, ...]  # at least one, in the order of their numbers
    warm: tuple[WarmPrompt, ...] = ()
    ahead: Ahead | None = None  # if anything was to be prefilled ahead


def scrape(url: str, session: requests.Session | None = None) -> Snapshot:
    """Ask a server for its metrics. It has 10 s to answer.

    Args:
        url: of the server; ``http://`` and ``/metrics`` may be left out.
        session: to ask through, for one that asks again and again; by default a connection is made and closed.

    Raises:
        ServerError: nobody answers, the server has no metrics, or none of ours, or those of several servers.
    """
    base = base_url(url)
    reply = request(base, "/metrics", session)
    if reply.status_code == requests.codes.not_found:
        raise ServerError(f"{base}/metrics: not found; start the server with --enable-metrics{OF_ROUTER}")
    if reply.status_code == requests.codes.unauthorized:
        raise ServerError(f"{base}/metrics: wants a key; give --api-key")
    if not reply.ok:
        raise ServerError(f"{base}/metrics: HTTP {reply.status_code} {reply.reason}")
    return read(reply.text, without_password(base))


def read(text: str, url: str) -> Snapshot:
    """A snapshot of what a server answered, as of now.

    Args:
        text: the answer, in Prometheus' text format.
        url: of the server, for the snapshot and for messages.

    Raises:
        ServerError: the text is of another format, of a server that evicts as stock does, or of several servers.
    """
    try:
        families = list(text_string_to_metric_families(text))
    except (ValueError, IndexError):  # whichever its parser happens to meet
        raise ServerError(f"{url}/metrics: is not in the format of Prometheus") from None
    samples = [_Sample(each.name, each.labels, each.value) for family in families for each in family.samples]
    ranks: dict[tuple[tuple[str, str], ...], list[_Sample]] = {}
    for sample in samples:
        if sample.name.startswith(OURS) and not sample.name.startswith((_WARM, _AHEAD)):
            key = tuple(sorted((name, value) for name, value in sample.labels.items() if name.endswith("_rank")))
            ranks.setdefault(key, []).append(sample)
    if not ranks:
        server = "stock eviction" if any(each.name.startswith("sglang:") for each in samples) else "no SGLang server"
        raise ServerError(f"{url}/metrics: {server}; start one with --radix-eviction etlru --enable-metrics")

    if any(sum(each.name == _ONE_OF_A_RANK for each in of_rank) > 1 for of_rank in ranks.values()):
        raise ServerError(f"{url}/metrics: several servers, that differ in no rank; give the URL of one")

    def total(name: str) -> float:
        return sum(sample.value for sample in samples if sample.name == f"sglang:{name}")

    keys = sorted(ranks, key=_numbers)
    prompt = total("prompt_tokens_total")
    return Snapshot(
        url,
        time.monotonic(),
        next((sample.labels["model_name"] for sample in samples if "model_name" in sample.labels), "unknown model"),
        total("cached_tokens_total") / prompt if prompt else None,
        tuple(Rank(_name(key, keys), ranks[key], dict(key).get("dp_rank", "")) for key in keys),
        _warm(samples),
        _ahead(samples),
    )


def _warm(samples: Iterable[_Sample]) -> tuple[WarmPrompt, ...]:
    by_name: dict[str, dict[str, float]] = {}
    for sample in samples:
        if sample.name.startswith(_WARM) and "prompt" in sample.labels:
            by_name.setdefault(sample.labels["prompt"], {})[sample.name.removeprefix(_WARM)] = sample.value
    return tuple(
        WarmPrompt(name, values.get("tokens", 0.0), values.get("cached_tokens", 0.0))
        for name, values in by_name.items()
    )


def _ahead(samples: Iterable[_Sample]) -> Ahead | None:
    found = [sample for sample in samples if sample.name.startswith(_AHEAD)]
    answers = {sample.labels["outcome"]: sample.value for sample in found if "outcome" in sample.labels}
    tokens = sum(sample.value for sample in found if sample.name == f"{_AHEAD}prefilled_tokens_total")
    return Ahead(answers, tokens) if answers else None


def _numbers(key: tuple[tuple[str, str], ...]) -> list[tuple[str, int, str]]:
    """What sorts ranks by their numbers: 10 is after 9."""
    return [(label, len(value), value) for label, value in key]


def _name(key: tuple[tuple[str, str], ...], keys: list[tuple[tuple[str, str], ...]]) -> str:
    """By the labels in which ranks differ; ``this rank`` if there is one."""
    shared = set.intersection(*map(set, keys))
    own = [f"{label.removesuffix('_rank')} {value}" for label, value in key if (label, value) not in shared]
    return ", ".join(own) or "this rank"
