"""A real cache in use, beside a registry of what it says of itself, as `radix-tlru top` is given it."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from rich.console import Console

from radix_tlru.config import PolicyName
from radix_tlru.sglang.metrics import TailMetrics
from radix_tlru.tools.scrape import Snapshot, read
from radix_tlru.tools.top import frame
from tests.helpers.caches import Driver, our_cache

CAPACITY, PAGE, THRESHOLD, NEXT_PROMPT = 20_000, 16, 600, 200
CONVERSATIONS, LONGEST = 40, 3_000  # of as many tokens; then it begins anew


class Watched(Driver):
    """A real cache in use, and what it says of itself: as rank 0, or as another."""

    def __init__(
        self,
        policy: PolicyName,
        rank: int = 0,
        threshold: int | None = THRESHOLD,
        median_weight: float | None = 0.0,
        dry_run: bool = False,
        **others: Any,
    ) -> None:
        config: dict[str, Any] = {"policy": policy, "threshold": threshold, "median_weight": median_weight}
        config["dry_run"] = dry_run
        config["next_prompt_estimate"] = NEXT_PROMPT
        super().__init__(our_cache(CAPACITY, PAGE, **{**config, **others}))
        self.tail, self.served = self.cache.tail, 0
        self.registry = CollectorRegistry()

        class Metrics(TailMetrics):
            _counter_cls = partial(Counter, registry=self.registry)
            _gauge_cls = partial(Gauge, registry=self.registry)

        self.labels = {"cache_type": "TailRadixCache", "dp_rank": "0", "pp_rank": "0", "tp_rank": str(rank)}
        self._metrics, self._random, self._now = (
            Metrics(self.labels, self.tail, self.cache.live_threshold),
            Random(1),
            0.0,
        )

    def serve(self, requests: int) -> Snapshot:
        """So many turns, some seconds after each other."""
        for _ in range(requests):
            history = self.histories.setdefault(f"{self._random.randrange(CONVERSATIONS)}", [])
            if len(history) > LONGEST:
                history.clear()
            history += self.fresh(self._random.randrange(50, 600))
            prompt = len(history)
            history += self.fresh(20)
            self._now += self._random.expovariate(1 / 3)
            self.request(history, prompt, self._now)
            self.served += 1
        self._metrics.report()
        if self._metrics.victims is not None:
            self._metrics.victims.look()  # whether or not it is time to
        return read(self.text(), "http://server")

    def text(self) -> str:
        return generate_latest(self.registry).decode()


def shown(now: Snapshot, before: Snapshot | None = None, width: int = 120) -> str:
    """The screen of `radix-tlru top`."""
    console = Console(width=width, height=60)
    with console.capture() as capture:
        console.print(frame(now, before, width))
    return capture.get()


def row(screen: str, name: str) -> str:
    """What stands behind a name in the first column of a screen, its words one space apart."""
    (line,) = (line.strip() for line in screen.splitlines() if line.strip().startswith(name))
    return " ".join(line.removeprefix(name).split())
