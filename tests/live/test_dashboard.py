"""Every query of the dashboard and every rule, by a real Prometheus that scrapes a live server."""

from __future__ import annotations

import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from eval.live.server import Server, ServerError, free_port
from radix_tlru.tools.dashboard import PANELS, Query, rules
from tests.helpers.servers import complaints, serve
from tests.helpers.talk import Conversation

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Debian's package prometheus is not installed"),
]

CONVERSATIONS, TURNS = 20, 6
"""More turns than the shadow caches wait for (50), of contexts of which the pool holds a few."""


class Prometheus:
    """A Prometheus that scrapes a server every second."""

    def __init__(self, folder: Path, server: Server) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}/api/v1"
        (folder / "rules.yml").write_text(rules())
        scraped = {"job_name": "sglang", "static_configs": [{"targets": [server.base_url.partition("//")[2]]}]}
        times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config = {"global": times, "rule_files": ["rules.yml"], "scrape_configs": [scraped]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def ask(self, what: str, **parameters: str) -> Any:
        reply = requests.get(f"{self._url}/{what}", params=parameters, timeout=30)
        assert reply.ok, reply.text
        return reply.json()["data"]

    def values(self, expression: str) -> list[float]:
        found = self.ask("query", query=expression)["result"]
        return [value for each in found if not math.isnan(value := float(each["value"][1]))]

    def wait_for(self, expression: str) -> None:
        """Until the expression has a value; it answers nothing before it is up."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                if self.values(expression):
                    return
            except requests.ConnectionError:
                assert self.process.poll() is None, "Prometheus ended"
            time.sleep(0.5)
        raise ServerError(f"Prometheus has nothing for {expression}")


@pytest.fixture(scope="module")
def watching(weighted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has watched a server before, while and after it was used."""
    given = ("--radix-eviction", "etlru", "--tlru-median-weight", "load", "--tlru-ttft-slo", "50")
    with serve(weighted_model, "watched", *given) as server:
        prometheus = Prometheus(tmp_path_factory.mktemp("prometheus"), server)
        try:
            prometheus.wait_for("up == 1")
            conversations = [Conversation(seed) for seed in range(CONVERSATIONS)]
            for _ in range(TURNS):
                for conversation in conversations:
                    conversation.turn(server, 100)
            # Metrics of a busy server are some requests behind.
            prometheus.wait_for('increase({__name__=~"sglang[:_]tlru_shadow_requests_total"}[5m]) > 0')
            yield prometheus
        finally:
            prometheus.process.terminate()
            prometheus.process.wait(timeout=30)
        assert complaints(server) == []


@pytest.mark.parametrize(
    ("title", "query"), [(panel.title, query) for panel in PANELS for query in panel.queries], ids=str
)
def test_every_query_of_the_dashboard_has_data_under_load(title: str, query: Query, watching: Prometheus) -> None:
    expression = query.expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
    assert watching.values(expression), f"{title}: {expression}"


def test_the_rules_are_evaluated_and_none_fires_on_a_server_that_is_well(watching: Prometheus) -> None:
    deadline = time.monotonic() + 60
    while any(rule["health"] == "unknown" for rule in watching.ask("rules")["groups"][0]["rules"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (group,) = watching.ask("rules")["groups"]
    assert {rule["name"]: rule["state"] for rule in group["rules"]} == {
        rule["alert"]: "inactive" for rule in yaml.safe_load(rules())["groups"][0]["rules"]
    }
    assert all(rule["health"] == "ok" for rule in group["rules"]), group
