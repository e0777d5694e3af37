"""A Prometheus that scrapes a server every second, as a context manager; Debian's package ``prometheus``."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from eval.command import RunError
from eval.live.running_server import RunningServer, ServerError
from eval.live.server import free_port
from radix_tlru.tools.alerts import rules

COMMAND = "prometheus"

Series = tuple[dict[str, str], list[tuple[float, float]]]
"""Labels, and values by time (s since the epoch)."""


def check_installed() -> None:
    """Raise RunError unless it can be started."""
    if shutil.which(COMMAND) is None:
        raise RunError(f"{COMMAND} is not installed; Debian has it as a package")


class Prometheus:
    """Scrapes ``server``, and evaluates our alerting rules, from when the block is entered until it is left.

    Args:
        folder: an empty one, for its settings and data.

    Raises:
        ServerError: it ends by itself, or does not know what it is asked.
    """

    def __init__(self, folder: Path, server: RunningServer) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        (folder / "rules.yml").write_text(rules())
        target = server.base_url.partition("//")[2]
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            "rule_files: [rules.yml]\n"
            f"scrape_configs: [{{job_name: sglang, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        command = [COMMAND, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        self._command = [*command, f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=30)

    def ask(self, what: str, **parameters: str) -> Any:
        """The data of an answer of its HTTP API.

        Raises:
            requests.ConnectionError: it is not up yet.
        """
        reply = requests.get(f"{self._url}/{what}", params=parameters, timeout=30)
        if reply.status_code == requests.codes.service_unavailable:  # it listens before it can answer
            raise requests.ConnectionError(reply.text)
        if not reply.ok:
            raise ServerError(f"{what} {parameters}: {reply.text}")
        return reply.json()["data"]

    def values(self, expression: str) -> list[float]:
        """What an expression says now, of each series."""
        found = self.ask("query", query=expression)["result"]
        return [value for each in found if not math.isnan(value := float(each["value"][1]))]

    def series(self, expression: str, start: float, end: float, step_s: float) -> list[Series]:
        """What it said from one time to another (s since the epoch)."""
        times = {"start": f"{start}", "end": f"{end}", "step": f"{step_s}"}
        found = self.ask("query_range", query=expression, **times)["result"]
        return [(each["metric"], [(float(at), float(value)) for at, value in each["values"]]) for each in found]

    def wait_for(self, expression: str, patience_s: float = 60.0) -> None:
        """Until the expression has a value; it answers nothing before it is up."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            try:
                if self.values(expression):
                    return
            except requests.ConnectionError:
                if self._process is None or self._process.poll() is not None:
                    raise ServerError("Prometheus ended") from None
            time.sleep(0.5)
        raise ServerError(f"Prometheus has nothing for {expression}")
