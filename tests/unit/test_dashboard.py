"""The dashboard and the alerting rules: they ask for metrics that are there, and the files of the containers fit."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from radix_tlru.cli import main
from radix_tlru.sglang.releases import SUPPORTED
from radix_tlru.tools.alerts import rules
from radix_tlru.tools.dashboard import PANELS, dashboard
from tests.helpers.paths import REPOSITORY

CONTAINERS = REPOSITORY / ".container"


def names_in(file: Path) -> set[str]:
    """Names of metrics in a module: strings, and what a string of names begins with (``sglang:tlru_next_victim_``)."""
    strings = [each.value for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Constant)]
    return {text for text in strings if isinstance(text, str) and text.startswith("sglang:")}


@pytest.fixture(scope="module")
def defined() -> set[str]:
    package = find_spec("sglang")
    assert package is not None
    assert package.submodule_search_locations
    stock = Path(package.submodule_search_locations[0], "srt", "observability", "metrics_collector.py")
    ours = (REPOSITORY / "radix_tlru" / "sglang" / "metrics").glob("*.py")
    return set().union(*map(names_in, [*ours, stock]))


def asked(expression: str) -> set[str]:
    """The metrics that it asks for, as a server calls them."""
    return {f"sglang:{name}" for name in re.findall(r'"sglang\[:_\](\w+)"', expression)}


def expressions() -> list[str]:
    alerts = [rule["expr"] for group in yaml.safe_load(rules())["groups"] for rule in group["rules"]]
    return [query.expression for panel in PANELS for query in panel.queries] + alerts


@pytest.mark.parametrize("expression", expressions())
def test_a_query_asks_for_metrics_that_a_server_has(expression: str, defined: set[str]) -> None:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked(expression)}
    assert names
    victims = "sglang:tlru_next_victim_"
    assert victims in defined
    assert not {name for name in names if name not in defined and not name.startswith(victims)}


def test_what_is_counted_is_asked_for_as_a_rate_and_nothing_else_is() -> None:
    for expression in expressions():
        found = re.findall(r'(\w+\()?\{__name__=~"(sglang\[:_\]\w+)"', expression)
        assert found, expression
        for before, name in found:
            counted = name.endswith(("_total", "_bucket", "_sum"))
            assert counted == (before in ("rate(", "increase(")), f"{name} in {expression}"


def test_every_metric_of_ours_is_on_the_dashboard_or_is_of_the_screen_alone(defined: set[str]) -> None:
    shown = {name for expression in expressions() for name in asked(expression)}
    ours = {name for name in defined if name.startswith("sglang:tlru_") and not name.endswith("_")}
    of_the_screen = ("prefill_late_ratio", "return_rate_unit", "watched_seconds_total")
    assert ours - shown == {f"sglang:tlru_{name}" for name in of_the_screen}


def test_the_dashboard_of_the_containers_is_the_one_that_the_command_prints(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["dashboard"]) == 0
    printed = capsys.readouterr().out
    assert printed == dashboard() == (CONTAINERS / "grafana" / "radix-tlru.json").read_text()
    panels = json.loads(printed)["panels"]
    assert [panel["title"] for panel in panels] == [panel.title for panel in PANELS]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    assert main(["dashboard", "--rules"]) == 0
    assert capsys.readouterr().out == rules()


WITHOUT_SDK = """
import sys
sys.modules["grafana_foundation_sdk"] = None  # as if it were not installed
from radix_tlru.cli import main
sys.exit(main(sys.argv[1:]))
"""


def test_the_rules_are_printed_without_the_sdk_and_the_dashboard_says_what_to_install() -> None:
    found = {}
    for words in (("dashboard", "--rules"), ("dashboard",)):
        command = [sys.executable, "-c", WITHOUT_SDK, *words]
        found[words] = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    printed, refused = found.values()
    assert (printed.returncode, printed.stdout) == (0, rules())
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("radix-tlru: error: dashboard needs grafana_foundation_sdk")
    assert refused.stderr.endswith("in a checkout, pip install '.[dashboard]'\n")


@pytest.mark.parametrize(("words", "read"), [((), json.loads), (("--rules",), yaml.safe_load)], ids=["json", "yaml"])
def test_it_is_printed_where_the_encoding_lacks_letters_of_it(words: tuple[str, ...], read: Any) -> None:
    command = [sys.executable, "-m", "radix_tlru.cli", "dashboard", *words]
    given = {**os.environ, "PYTHONIOENCODING": "ascii"}
    printed = subprocess.run(command, cwd=REPOSITORY, env=given, capture_output=True, text=True, check=False)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert read(printed.stdout).keys() == read(rules() if words else dashboard()).keys()


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    """A metric as promtool takes it: ``0+5x60`` grows by 5 a minute for an hour."""
    written = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return {"series": f"{name}{{{written}}}", "values": values}


def two_hours(
    instance: str, tokens: int, *, slow_s: float, ranks: int = 1, requests: int = 5, dry_run: int = 0, fallen: int = 0
) -> list[dict[str, str]]:
    """A server, by the minute: each rank has ``tokens`` of TEL where lru has 100, and samples so many requests.

    Evictions of all ranks, in one series as those of replicas, are 600 a minute of ``slow_s`` each for each of them.
    """
    found = []
    for rank in map(str, range(ranks)):
        labels = {"instance": instance, "dp_rank": rank}
        for policy, in_force, grows in (("etlru", 1, tokens), ("lru", 0, 100)):
            found.append(series("sglang:tlru_policy", f"{in_force}x120", **labels, policy=policy))
            counted = "sglang_tlru_shadow_excess_tokens_total"
            found.append(series(counted, f"0+{grows}x120", **labels, policy=policy))
        found.append(series("sglang_tlru_shadow_requests_total", f"0+{requests}x120", **labels))
        found.append(series("sglang:tlru_dry_run", f"{dry_run}x120", **labels))
        found.append(series("sglang:tlru_fallen_back", f"{fallen}x120", **labels))
    return found + evictions(instance, slow_s, 600 * ranks)


def evictions(instance: str, slow_s: float, calls: int) -> list[dict[str, str]]:
    """So many calls a minute that take as long, as SGLang counts them."""
    found = [series("sglang:eviction_duration_seconds_sum", f"0+{calls * slow_s}x120", instance=instance)]
    for le in ("0.005", "0.05", "+Inf"):
        grows = calls if slow_s < float(le) else 0
        found.append(series("sglang:eviction_duration_seconds_bucket", f"0+{grows}x120", instance=instance, le=le))
    return found


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's package prometheus is not installed")
def test_a_rule_fires_where_the_policy_in_force_is_worse_than_lru_and_nowhere_else(tmp_path: Path) -> None:
    """Evictions take a fifth of the time at ``worse``, and a 25th of that of each of the eight replicas at ``even``.

    At ``few`` eight ranks each sampled 60 requests in an hour, all of them the same; at ``watched`` lru evicts, as what
    is worse is only watched; ``stock`` is none of ours.
    """
    found = [
        *two_hours("worse", 110, slow_s=0.02, fallen=1),
        *two_hours("even", 102, slow_s=0.004, ranks=8),
        *two_hours("few", 110, slow_s=0.004, ranks=8, requests=1),
        *two_hours("watched", 110, slow_s=0.004, dry_run=1),
        *evictions("stock", slow_s=0.02, calls=600),
    ]
    firing = [
        {"labels": f'{{__name__="ALERTS",alertstate="firing",instance="worse",severity="warning",alertname={name}}}'}
        for name in ('"TlruEvictionShare"', '"TlruEvictionSlow"', '"TlruFellBack"', '"TlruWorseThanLru",dp_rank="0"')
    ]
    expected = {"expr": "ALERTS", "eval_time": "110m", "exp_samples": [{**each, "value": 1} for each in firing]}
    case = {"interval": "1m", "input_series": found, "promql_expr_test": [expected]}
    (tmp_path / "rules.yml").write_text(rules())
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_containers_mount_files_that_are_there_and_the_release_that_is_supported() -> None:
    services = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for service in services.values() for volume in service["volumes"]]
    files = [CONTAINERS / path for path in mounted if path.startswith(".")]
    assert len(files) == 5
    assert not [path for path in files if not path.is_file()]
    build = services["sglang"]["build"]
    containerfile = (CONTAINERS / build["context"] / build["dockerfile"]).read_text()
    assert f"ARG SGLANG=v{'.'.join(map(str, SUPPORTED[1]))}\n" in containerfile
    (job,) = yaml.safe_load((CONTAINERS / "prometheus.yml").read_text())["scrape_configs"]
    assert [target.split(":")[0] for target in job["static_configs"][0]["targets"]] == ["sglang"]


def test_what_git_ignores_is_copied_into_no_image() -> None:
    ignored = [line for line in (REPOSITORY / ".gitignore").read_text().splitlines() if line]
    # Docker's patterns are from the root, git's are where they have a slash in front.
    anywhere = [f"**/{line.rstrip('/')}" for line in ignored if not line.startswith("/")]
    at_root = [line.strip("/") for line in ignored if line.startswith("/")]
    left_out = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert left_out[1:] == [".git", *anywhere, *at_root]
