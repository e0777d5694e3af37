"""Every query of the dashboard and every rule, by a real Prometheus that scrapes a live server."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import yaml

from eval.live.dashboard import draw
from eval.live.prometheus import COMMAND, Prometheus
from radix_tlru.tools.alerts import rules
from radix_tlru.tools.dashboard import PANELS, Query
from tests.helpers.plugins import slow, write_plugin
from tests.helpers.servers import complaints, serve
from tests.helpers.talk import Conversation

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which(COMMAND) is None, reason="Debian's package prometheus is not installed"),
]

CONVERSATIONS, TURNS = 20, 160
"""More turns than the shadow caches wait for (50), and some estimates of ξ (32 prefills each); the pool holds a few."""
PER_TOKEN_MS = 0.1
"""That prefills sleep: however busy the machine is, long ones take longer, or there would be no estimate."""
ESTIMATED = '{__name__=~"sglang[:_]tlru_alpha_ms_per_token"} > 0'

WITH_A_THRESHOLD = "tlru_over_budget_tokens"
"""Has data while the policy in force has a threshold: at first this server's, and none once lru has less TEL."""


@pytest.fixture(scope="module")
def watching(weighted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has watched a server before, while and after it was used."""
    given = ("--radix-eviction", "etlru", "--tlru-median-weight", "0.05", "--tlru-ttft-slo", "50")
    path = write_plugin(tmp_path_factory.mktemp("slow"), slow(PER_TOKEN_MS))
    with serve(weighted_model, "watched", *given, PYTHONPATH=path) as server:
        with Prometheus(tmp_path_factory.mktemp("prometheus"), server) as prometheus:
            prometheus.wait_for("up == 1")
            rng = Random(0)  # short prefills between long ones: a machine is not busy with one kind
            conversations = [Conversation(seed) for seed in range(CONVERSATIONS)]
            for _ in range(TURNS):
                rng.choice(conversations).turn(server, rng.randrange(20, 200))
            # Metrics of a busy server are some requests behind.
            prometheus.wait_for('increase({__name__=~"sglang[:_]tlru_shadow_requests_total"}[5m]) > 0')
            prometheus.wait_for(ESTIMATED)
            yield prometheus
        assert complaints(server) == []


@pytest.mark.parametrize(
    ("title", "query"), [(panel.title, query) for panel in PANELS for query in panel.queries], ids=str
)
@pytest.mark.long
def test_every_query_of_the_dashboard_has_data_under_load(title: str, query: Query, watching: Prometheus) -> None:
    expression = query.expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
    if WITH_A_THRESHOLD in expression:
        now = time.time()
        points = [point for _, points in watching.series(expression, now - 600, now, 1.0) for point in points]
        assert any(math.isfinite(value) for _, value in points), f"{title}: {expression}"
    else:
        assert watching.values(expression), f"{title}: {expression}"


@pytest.mark.long
def test_the_picture_has_every_panel(watching: Prometheus) -> None:
    now = time.time()
    places = draw(watching, now - 120, now).axes
    assert [place.get_title(loc="left") for place in places[: len(PANELS)]] == [panel.title for panel in PANELS]
    shown = {place.get_title(loc="left") for place in places if place.lines}
    assert {"Policy in force", "Threshold ξ", "What could go", "Next victim", "w"} <= shown


@pytest.mark.long
def test_the_rules_are_evaluated_and_none_fires_on_a_server_that_is_well(watching: Prometheus) -> None:
    deadline = time.monotonic() + 60
    while any(rule["health"] == "unknown" for rule in watching.ask("rules")["groups"][0]["rules"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    (group,) = watching.ask("rules")["groups"]
    states = {rule["name"]: rule["state"] for rule in group["rules"]}
    assert list(states) == [rule["alert"] for rule in yaml.safe_load(rules())["groups"][0]["rules"]]
    # How long evictions take is the machine's: on a busy one that may be about to be told, after 15 minutes.
    assert {name: state for name, state in states.items() if name not in ("TlruEvictionSlow", "TlruEvictionShare")} == {
        "TlruWorseThanLru": "inactive",
        "TlruFellBack": "inactive",
    }
    assert "firing" not in states.values()
    assert all(rule["health"] == "ok" for rule in group["rules"]), group
