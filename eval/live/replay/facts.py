"""What a running server says of itself: its pool, its pages, its eviction policy and that policy's settings."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import requests

from eval.arguments import median_weight
from eval.live.replay.arms import Arm
from eval.live.running_server import RunningServer, ServerError
from radix_tlru.config import FLAGS, Config, PolicyName

PLUGIN = "radix_tlru"
"""Name of the plugin's cache backend."""

_THRESHOLD = "sglang:tlru_threshold_tokens"
"""The metric of the plugin's ξ: each rank has one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself. Lengths in tokens."""

    pool: int  # of all replicas together
    page_size: int
    chunk: int  # prefilled at a time
    policy: str  # ``radix_tlru``, or SGLang's name of its own eviction policy
    threshold: int | None  # ξ; None: the policy has none
    next_prompt_estimate: int | None  # Q̂; None: the policy has none, or the server does not say
    version: str  # of SGLang
    model: str
    device: str
    attention_backend: str
    replicas: int = 1
    eviction: str = "tlru"  # policy of radix-tlru: tlru, etlru
    median_weight: float | None = 0.0  # w of radix-tlru, as far as flags or metrics tell; None: etlru's own
    learns: bool = False  # Q is learned; assumed of an etlru that runs already
    moves: bool = False  # ξ follows the measured prefills
    return_model: str | None = None  # name of a return model of one's own
    trim_chunk: int | None = None  # of radix-tlru; None: the default of a pool of that size
    sessions: bool = False  # conversations are sessions


def facts(host: RunningServer, arm: Arm, common: Sequence[str] = ()) -> Facts:
    """What the server says of itself.

    Args:
        common: flags that all servers have which are started.

    Raises:
        ServerError: it does not answer, or does not say how large its pool is.
    """
    try:
        info, metrics = host.server_info(), host.get_metrics()
    except requests.RequestException as error:
        raise ServerError(f"{arm.name}: {host.base_url} does not answer: {error}") from None
    except ServerError:
        info, metrics = host.server_info(), {}  # a server without --enable-metrics
    workers = info.get("workers") or [info]
    replicas = sum(int(worker.get("dp_size") or 1) for worker in workers)
    pool = _pool(info, metrics, replicas)
    if not pool:
        raise ServerError(
            f"{arm.name}: {host.base_url} does not say how large its pool is; start it with --enable-metrics"
        )
    has_plugin = _THRESHOLD in metrics or info.get("radix_cache_backend") == PLUGIN
    has_plugin &= not metrics.get("sglang:tlru_dry_run")  # in a dry run stock lru evicts
    policy, threshold, estimate = info.get("radix_eviction_policy", "lru"), None, None
    compared: list[str] = []
    flags = (*common, *arm.flags) if arm.url is None else ()
    trim = _flag(flags, "--tlru-trim-chunk")
    if has_plugin:
        policy = PLUGIN
        compared = host.get_labels("sglang:tlru_policy", "policy") if metrics else []
        if total := metrics.get(_THRESHOLD):  # of all workers of a router and all ranks of each
            threshold = round(total / (len(workers) * _ranks(host)))
        estimate = _flag(flags, "--tlru-next-prompt-estimate")
    elif policy == "tlru":
        config = info.get("radix_eviction_policy_config") or {}
        config = json.loads(config) if isinstance(config, str) else config
        threshold, estimate = config.get("threshold"), config.get("next_prompt_estimate")
    eviction: PolicyName = "etlru" if "etlru" in compared else "tlru"
    learns = eviction == "etlru" or (has_plugin and arm.url is None)
    return Facts(
        pool=int(pool),
        page_size=int(info.get("page_size") or 1),
        chunk=int(info.get("chunked_prefill_size") or 8192),
        policy=policy,
        threshold=None if threshold is None else int(threshold),
        next_prompt_estimate=None if estimate is None else int(estimate),
        version=str(info.get("version", "unknown")),
        model=str(info.get("model_path", "unknown")),
        device=str(info.get("device", "unknown")),
        attention_backend=str(info.get("attention_backend", "unknown")),
        replicas=replicas,
        eviction=eviction,
        median_weight=_weight(flags, eviction),
        learns=estimate is None and learns,
        moves=has_plugin and "sglang:tlru_threshold_samples" in metrics,
        return_model=_flag(flags, "--tlru-return-model") if has_plugin else None,
        trim_chunk=None if trim is None else int(trim),
        sessions=bool(info.get("enable_session_radix_cache")),
    )


def _pool(info: Mapping[str, Any], metrics: Mapping[str, float], replicas: int) -> float | None:
    """Tokens of all replicas together; None: the server does not say.

    Rather what it says of one pool: every rank has a gauge of its own, so their sum counts a pool twice.
    """
    states = info.get("internal_states") or [{}]
    each = info.get("max_total_num_tokens") or states[0].get("memory_usage", {}).get("token_capacity")
    return each * replicas if each else metrics.get("sglang:max_total_num_tokens")


def _ranks(host: RunningServer) -> int:
    """How many ranks of a server have a threshold."""
    return math.prod(len(host.get_labels(_THRESHOLD, label)) or 1 for label in ("tp_rank", "pp_rank", "dp_rank"))


def _weight(flags: Sequence[str], eviction: PolicyName) -> float | None:
    """w of a server with radix-tlru. If its flags do not tell, that of a server that is told none."""
    given = _flag(flags, FLAGS["median_weight"])
    if given is not None:
        return median_weight(given)
    return None if eviction == "etlru" else Config(eviction).weight


def _flag(flags: Sequence[str], name: str) -> str | None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(name, dest="value")
    value: str | None = parser.parse_known_args(list(flags))[0].value
    return value
