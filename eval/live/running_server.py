"""A server that runs at a URL, whoever started it: asked how it is, for its metrics, and to empty its cache."""

from __future__ import annotations

import contextlib
import operator
import time
from typing import Any

import requests
from prometheus_client.parser import text_string_to_metric_families

from eval.command import RunError

IDLE_S = 30.0
"""For which it is waited that requests are counted: a server that is paused, or has much to do, counts none."""


class ServerError(RunError):
    """The server died, did not become healthy in time, or refused a control request."""


class RunningServer:
    """A server that runs at a URL."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    def alive(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.base_url}/health", timeout=30).ok
        return False

    def metrics_text(self) -> str:
        """What `/metrics` says, when requests that were answered are counted.

        The scheduler counts them, and learns from them, in steps that have no batch to run, so after their answer. Then
        it publishes its load: with the last batch and the first such step, too, and next when nothing is left to do.
        """
        published, times = self._load_published(), 0
        deadline = time.monotonic() + IDLE_S
        while times < 3 and time.monotonic() < deadline:
            self.server_info()  # wakes a scheduler that sleeps
            latest = self._load_published()
            if not any(map(operator.eq, published, latest)):
                published, times = latest, times + 1
        return self._get("/metrics").text

    def get_metrics(self) -> dict[str, float]:
        """Prometheus samples by name, each summed over its labels; as `metrics_text` has them."""
        totals: dict[str, float] = {}
        for family in text_string_to_metric_families(self.metrics_text()):
            for sample in family.samples:
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
        return totals

    def get_labels(self, name: str, label: str) -> list[str]:
        """The values of a label of a metric, each once."""
        families = text_string_to_metric_families(self._get("/metrics").text)
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return list(dict.fromkeys(sample.labels.get(label, "") for sample in samples))

    def flush_cache(self, idle_s: float = 30.0) -> None:
        """Empty the radix cache, once running requests have finished; waits up to `idle_s` seconds for them."""
        reply = requests.post(f"{self.base_url}/flush_cache", params={"timeout": idle_s}, timeout=idle_s + 10)
        if not reply.ok:
            raise ServerError(f"/flush_cache answered {reply.status_code}: {reply.text.strip()}")

    def server_info(self) -> dict[str, Any]:
        """What `/server_info` says: the resolved server arguments and the live state of the scheduler."""
        info: dict[str, Any] = self._get("/server_info").json()
        return info

    def _load_published(self) -> list[float]:
        """When each replica published its load last, s; of a release or a router that does not tell, nothing."""
        reply = requests.get(f"{self.base_url}/v1/loads", timeout=30)
        loads = reply.json().get("loads", []) if reply.ok else []
        return [load["timestamp"] for load in loads if "timestamp" in load]

    def _get(self, path: str) -> requests.Response:
        reply = requests.get(self.base_url + path, timeout=30)
        if not reply.ok:
            raise ServerError(f"{path} answered {reply.status_code}: {reply.text.strip()}")
        return reply
