"""Servers behind SGLang's own router, as one server: the replicas of a fleet, started, routed to, asked and stopped."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

import requests

from eval.live.running_server import ServerError
from eval.live.server import LAUNCH_COMMAND, LOG_TAIL_LINES, Server, free_port

ROUTER_COMMAND = (sys.executable, "-m", "sglang_router.launch_router")


class Router(Server):
    """`with Router(flags, workers=2) as router:` runs so many servers alike, and SGLang's router before them.

    Otherwise it is a `Server`: requests go to `base_url`, and leaving the block ends every process of every part, each
    part by its own process group. The router is up when it reports each worker as healthy, some seconds after they are.

    It does not send a request again that a worker failed, so that clients see what went wrong. `flush_cache` empties
    the workers, but the router keeps its own tree of prompts: a fair comparison takes a new router.

    Args:
        flags: of each worker, as of a `Server`.
        workers: how many.
        policy: of `python -m sglang_router.launch_router`.
        router_flags: further ones of it, `--cache-threshold 0.5` for one.
        name: of the log files: `<name>.log`, and `<name>-0.log`, `<name>-1.log`, … of the workers.
        command: what workers are started with.
        limits: `startup_s`, `grace_s`, `environment` of each part, as of a `Server`.

    Raises:
        ServerError: on entering, when a part dies or is not healthy in time; carries the tail of the logs.
        ValueError: fewer than one worker.
    """

    def __init__(
        self,
        flags: Sequence[str],
        *,
        workers: int = 2,
        policy: str = "cache_aware",
        router_flags: Sequence[str] = (),
        name: str = "router",
        command: Sequence[str] = LAUNCH_COMMAND,
        **limits: Any,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers {workers}: must be 1 or more")
        given = ["--policy", policy, "--disable-retries", "--worker-startup-check-interval", "1", *router_flags]
        super().__init__(given, name=name, command=ROUTER_COMMAND, **limits)
        self.workers = [Server(flags, name=f"{name}-{n}", command=command, **limits) for n in range(workers)]

    @property
    def process_groups(self) -> list[int]:
        """Process groups of the router and of each worker."""
        return [self.process_group, *(worker.process_group for worker in self.workers)]

    def __enter__(self) -> Self:
        try:
            # All at once, as a third of a start is imports in one process. And an idle server of `Disaggregated` keeps
            # a core busy, which the next one would lack.
            for worker in self.workers:
                worker.launch()
            for worker in self.workers:
                worker.wait_until_healthy()
            super().__enter__()
            self._wait_until_all_are_routed_to()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every process of the router, then of each worker. May be called again."""
        with contextlib.ExitStack() as last_first:
            for worker in self.workers:
                last_first.callback(worker.stop)
            last_first.callback(super().stop)

    def alive(self) -> bool:
        """Whether the router and all workers still run."""
        return super().alive() and all(worker.alive() for worker in self.workers)

    def get_metrics(self) -> dict[str, float]:
        """Prometheus samples by name, each summed over its labels and over the workers.

        Settings and shares are summed, too; ask `workers` for what each says.
        """
        totals: dict[str, float] = {}
        for worker in self.workers:
            for name, value in worker.get_metrics().items():
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def get_labels(self, name: str, label: str) -> list[str]:
        """The values of a label of a metric at any worker, each once."""
        return list(dict.fromkeys(value for worker in self.workers for value in worker.get_labels(name, label)))

    def flush_cache(self, idle_s: float = 30.0) -> None:
        """Empty the radix cache of each worker, once its running requests have finished."""
        for worker in self.workers:
            worker.flush_cache(idle_s)

    def server_info(self) -> dict[str, Any]:
        """What the first worker says, as all are started alike; under `workers` what each says."""
        each = [worker.server_info() for worker in self.workers]
        return {**each[0], "workers": each}

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines that the router printed, then those of each worker."""
        return "\n".join([super().log_tail(lines), *(f"{it.log_path}:\n{it.log_tail(lines)}" for it in self.workers)])

    def _more_ports(self) -> list[str]:
        # The router's own metrics need a port, too; its default is the same for every router.
        return ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), *self._destinations()]

    def _destinations(self) -> list[str]:
        """Flags of the router that name the running workers."""
        return ["--worker-urls", *(worker.base_url for worker in self.workers)]

    def _wait_until_all_are_routed_to(self) -> None:
        deadline = time.monotonic() + self._startup_s
        healthy = 0
        while time.monotonic() < deadline:
            self._raise_if_ended()
            with contextlib.suppress(requests.RequestException, ServerError):
                healthy = sum(worker["is_healthy"] for worker in self._get("/workers").json()["workers"])
                if healthy == len(self.workers):
                    return
            time.sleep(0.2)
        found = f"the router calls {healthy} of {len(self.workers)} workers healthy after {self._startup_s:g} s"
        raise self._failure(found)
