"""What a server says of itself, and what is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from eval.live.replay.arms import Arm
from eval.live.replay.facts import Facts, facts

POOL, THRESHOLD = 20_480, 600


class FakeHost:
    """A server whose ranks each have series of their own, as they are read: summed."""

    base_url = "http://fake"

    def __init__(self, labels: dict[str, list[str]], **info: Any) -> None:
        self.labels = labels
        self.info = {"max_total_num_tokens": POOL, "radix_cache_backend": "radix_tlru", **info}
        ranks = len(info.get("workers", [0]))
        for values in labels.values():
            ranks *= len(values)
        self.metrics = {"sglang:tlru_threshold_tokens": float(THRESHOLD * ranks)}
        self.metrics["sglang:max_total_num_tokens"] = float(POOL * ranks)

    def get_metrics(self) -> dict[str, float]:
        return self.metrics

    def get_labels(self, name: str, label: str) -> list[str]:
        return self.labels.get(label, [""]) if name in self.metrics else []

    def server_info(self) -> dict[str, Any]:
        return self.info

    def flush_cache(self) -> None: ...

    def alive(self) -> bool:
        return True


def said(labels: dict[str, list[str]], **info: Any) -> Facts:
    return facts(FakeHost(labels, **info), Arm("ours"))


@pytest.mark.parametrize(
    ("labels", "info", "replicas"),
    [
        ({}, {}, 1),
        ({"tp_rank": ["0", "1"], "pp_rank": ["0"], "dp_rank": ["0"]}, {"tp_size": 2, "dp_size": 1}, 1),
        ({"tp_rank": ["0", "1"], "pp_rank": ["0", "1"]}, {"tp_size": 2, "pp_size": 2}, 1),
        ({"tp_rank": ["0", "1"], "dp_rank": ["0", "1"]}, {"tp_size": 4, "dp_size": 2}, 2),
        ({"tp_rank": ["0", "1"]}, {"workers": [{"dp_size": 1}, {"dp_size": 1}]}, 2),
    ],
)
def test_the_threshold_is_that_of_one_rank_and_the_pool_that_of_each_replica(
    labels: dict[str, list[str]], info: dict[str, Any], replicas: int
) -> None:
    found = said(labels, **info)
    assert (found.threshold, found.replicas, found.pool) == (THRESHOLD, replicas, POOL * replicas)


def test_flags_of_all_servers_are_those_of_each_that_is_started() -> None:
    common = ["--tlru-next-prompt-estimate", "130", "--tlru-trim-chunk", "32", "--tlru-median-weight", "0.5"]

    def told(arm: Arm) -> tuple[object, ...]:
        found = facts(FakeHost({}), arm, common)
        return found.next_prompt_estimate, found.learns, found.trim_chunk, found.median_weight

    assert told(Arm("ours")) == (130, False, 32, 0.5)
    assert told(Arm("ours", ("--tlru-trim-chunk", "64"))) == (130, False, 64, 0.5)
    assert told(Arm("elsewhere", url="http://fake")) == (None, False, None, 0.0)


def test_a_dry_run_is_stock_lru() -> None:
    host = FakeHost({"policy": ["lru", "etlru"]})
    host.metrics |= {"sglang:tlru_policy": 2.0, "sglang:tlru_dry_run": 0.0, "sglang:tlru_threshold_samples": 9.0}
    arm = Arm("watched", ("--tlru-return-model", "mine:Model"))
    evicting = facts(host, arm)
    assert (evicting.policy, evicting.eviction, evicting.moves) == ("radix_tlru", "etlru", True)
    host.metrics["sglang:tlru_dry_run"] = 1.0
    watched = facts(host, arm)
    assert (watched.policy, watched.threshold, watched.learns) == ("lru", None, False)
    assert (watched.moves, watched.return_model) == (False, None)


def test_a_server_without_metrics_has_a_pool_and_no_threshold() -> None:
    host = FakeHost({})
    host.metrics = {}
    found = facts(host, Arm("ours"))
    assert (found.pool, found.threshold, found.policy) == (POOL, None, "radix_tlru")
