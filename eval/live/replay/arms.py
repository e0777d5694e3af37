"""The servers that are compared: started here, one at a time, or running elsewhere."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import requests

from eval.command import median_weight
from eval.live.server import RunningServer, Server, ServerError, cpu_flags, ensure_demo_model
from radix_tlru.config import FLAGS, LOAD, Config, MedianWeight, PolicyName

__all__ = [
    "STARTUP_S",
    "Arm",
    "Facts",
    "Host",
    "base_flags",
    "default_arms",
    "facts",
    "launched",
    "parse_arm",
    "parse_url",
]

Device = Literal["cpu", "gpu"]

STARTUP_S = 900.0
"""How long a server may take to load a model."""


@dataclass(frozen=True, slots=True)
class Arm:
    """A server with a name. Either ``flags``, to start one with, or the ``url`` of one that runs."""

    name: str
    flags: tuple[str, ...] = ()
    url: str | None = None

    @property
    def stem(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^\w.-]+", "-", self.name)


class Host(Protocol):
    """What a run needs of a server, wherever it runs."""

    base_url: str

    def get_metrics(self) -> dict[str, float]: ...
    def get_labels(self, name: str, label: str) -> list[str]: ...
    def flush_cache(self) -> None: ...
    def server_info(self) -> dict[str, Any]: ...
    def alive(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Facts:
    """What a server says of itself; lengths in tokens."""

    pool: int  # of all replicas together
    page_size: int
    chunk: int  # prefilled at a time
    policy: str  # of eviction: "ours", or the name that SGLang has for it
    threshold: int | None  # ξ, where the policy has one
    next_prompt_estimate: int | None  # Q̂ likewise, where it can be told
    version: str  # of SGLang
    model: str
    device: str
    attention_backend: str
    replicas: int = 1
    eviction: str = "tlru"  # by ours: tlru, etlru
    median_weight: MedianWeight = 0.0  # w of ours, as far as the flags or the metrics tell
    learns: bool = False  # how long next prompts are; an etlru that runs already is taken to
    moves: bool = False  # its ξ, which follows what is measured
    return_model: str | None = None  # somebody's own
    trim_chunk: int | None = None  # of ours; None: what a pool of that size has
    sessions: bool = False  # whether it knows of them


def parse_arm(text: str) -> Arm:
    """``NAME=flags``: a server to start with these flags beside those that all have."""
    name, equals, flags = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FLAGS, such as ours='--radix-eviction tlru'")
    try:
        return Arm(name.strip(), tuple(shlex.split(flags)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def parse_url(text: str) -> Arm:
    """``NAME=http://host:port``: a server that runs."""
    name, equals, url = text.partition("=")
    if not equals or not name.strip() or not re.match(r"https?://[^/]", url):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as ours=http://127.0.0.1:30000")
    return Arm(name.strip(), url=url.rstrip("/"))


def default_arms(threshold: int, next_prompt_estimate: int) -> list[Arm]:
    """Stock lru, the baseline; stock tlru; ours.

    Raises:
        ConfigError: ours would not be served with these.
    """
    Config(threshold=threshold, next_prompt_estimate=next_prompt_estimate)  # before any server is started
    stock = json.dumps({"threshold": threshold, "next_prompt_estimate": next_prompt_estimate})
    ours = ("--radix-eviction", "tlru", "--tlru-threshold", str(threshold))
    return [
        Arm("stock lru", ("--radix-eviction-policy", "lru")),
        Arm("stock tlru", ("--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", stock)),
        Arm("radix-tlru", (*ours, "--tlru-next-prompt-estimate", str(next_prompt_estimate))),
    ]


def base_flags(device: Device, model: Path | None, pool: int | None, page_size: int) -> list[str]:
    """What all arms have in common: the model, the pool (tokens; None: all that fits) and the reports that are read.

    Raises:
        ValueError: a pool of no tokens, or no model for a GPU.
    """
    if pool is not None and pool < 1:
        raise ValueError(f"--pool {pool}: must be 1 or more")
    if device == "cpu":
        return cpu_flags(model or ensure_demo_model(), 20_480 if pool is None else pool, page_size)
    if model is None:
        raise ValueError("--device gpu: --model is needed")
    return [
        *("--model-path", str(model), "--page-size", str(page_size), "--attention-backend", "flashinfer"),
        *(("--load-format", "dummy") if _has_no_weights(model) else ()),
        *(("--max-total-tokens", str(pool)) if pool is not None else ()),
        "--enable-cache-report",
        "--enable-metrics",
    ]


def _has_no_weights(model: Path) -> bool:
    """A directory that `radix-tlru demo-model` wrote; the name of a model on a hub has its own."""
    return model.is_dir() and not any(model.glob("*.safetensors")) and not any(model.glob("*.bin"))


@contextlib.contextmanager
def launched(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
    """The server of an arm, started if it does not run yet, and stopped if it was started.

    Raises:
        ServerError: it does not start, or does not answer.
    """
    if arm.url is not None:
        yield RunningServer(arm.url)
        return
    with Server([*common, *arm.flags], name=name, startup_s=STARTUP_S) as server:
        yield server


def facts(host: Host, arm: Arm) -> Facts:
    """What the server says of itself.

    Raises:
        ServerError: it does not answer, or does not say how large its pool is.
    """
    try:
        info, metrics = host.server_info(), host.get_metrics()
    except requests.RequestException as error:
        raise ServerError(f"{arm.name}: {host.base_url} does not answer: {error}") from None
    except ServerError:
        info, metrics = host.server_info(), {}  # a server without --enable-metrics
    states = info.get("internal_states") or [{}]
    workers = info.get("workers") or [info]
    replicas = sum(int(worker.get("dp_size") or 1) for worker in workers)
    each = info.get("max_total_num_tokens") or states[0].get("memory_usage", {}).get("token_capacity")
    # What a server says of one pool, if it does: every rank has a gauge of its own, and their sum counts a pool twice.
    pool = each * replicas if each else metrics.get("sglang:max_total_num_tokens")
    if not pool:
        raise ServerError(
            f"{arm.name}: {host.base_url} does not say how large its pool is; start it with --enable-metrics"
        )
    page_size = int(info.get("page_size") or 1)
    ours = "sglang:tlru_threshold_tokens" in metrics or info.get("radix_cache_backend") == "radix_tlru"
    policy, threshold, estimate = info.get("radix_eviction_policy", "lru"), None, None
    compared: list[str] = []
    trim = _flag(arm.flags, "--tlru-trim-chunk")
    if ours:
        policy = "ours"
        compared = host.get_labels("sglang:tlru_policy", "policy") if metrics else []
        if total := metrics.get("sglang:tlru_threshold_tokens"):  # of all workers of a router and all ranks of each
            threshold = round(total / (len(workers) * _ranks(host, "sglang:tlru_threshold_tokens")))
        estimate = _flag(arm.flags, "--tlru-next-prompt-estimate")
    elif policy == "tlru":
        config = info.get("radix_eviction_policy_config") or {}
        config = json.loads(config) if isinstance(config, str) else config
        threshold, estimate = config.get("threshold"), config.get("next_prompt_estimate")
    eviction: PolicyName = "etlru" if "etlru" in compared else "tlru"
    learns = any(name == "etlru" or name.startswith("tlru Q=") for name in compared)
    return Facts(
        pool=int(pool),
        page_size=page_size,
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
        median_weight=_weight(arm, metrics, Config(eviction, next_prompt_estimate=None if learns else 0)),
        learns=estimate is None and learns,
        moves="sglang:tlru_threshold_samples" in metrics,
        return_model=_flag(arm.flags, "--tlru-return-model"),
        trim_chunk=None if trim is None else int(trim),
        sessions=bool(info.get("enable_session_radix_cache")),
    )


def _ranks(host: Host, name: str) -> int:
    """How many ranks of a server have a metric of that name."""
    return math.prod(len(host.get_labels(name, label)) or 1 for label in ("tp_rank", "pp_rank", "dp_rank"))


def _weight(arm: Arm, metrics: Mapping[str, float], otherwise: Config) -> MedianWeight:
    """w of a server of ours. If neither its metrics nor its flags tell, that of ``otherwise``."""
    if "sglang:tlru_waiting_requests" in metrics:
        return LOAD
    given = _flag(arm.flags, FLAGS["median_weight"])
    return otherwise.weight if given is None else median_weight(given)


def _flag(flags: Sequence[str], name: str) -> str | None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(name, dest="value")
    value: str | None = parser.parse_known_args(list(flags))[0].value
    return value
