"""The servers that are compared: their names, their flags, or where they run."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eval.live.server import cpu_flags, ensure_demo_model
from radix_tlru.config import Config

Device = Literal["cpu", "gpu"]


@dataclass(frozen=True, slots=True)
class Arm:
    """One of the servers that are compared: ``flags`` to start it with, or the ``url`` of one that runs."""

    name: str
    flags: tuple[str, ...] = ()
    url: str | None = None

    @property
    def stem(self) -> str:
        """The name as part of a file name."""
        return re.sub(r"[^\w.-]+", "-", self.name)


def parse_arm(text: str) -> Arm:
    """``NAME=FLAGS``: a server to start with these flags and those that all arms have."""
    name, equals, flags = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FLAGS, such as ours='--radix-eviction tlru'")
    try:
        return Arm(name.strip(), tuple(shlex.split(flags)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None


def parse_url(text: str) -> Arm:
    """``NAME=http://host:port``: a server that runs already."""
    name, equals, url = text.partition("=")
    if not equals or not name.strip() or not re.match(r"https?://[^/]", url):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL, such as ours=http://127.0.0.1:30000")
    return Arm(name.strip(), url=url.rstrip("/"))


def default_arms(threshold: int, next_prompt_estimate: int) -> list[Arm]:
    """Stock lru, the baseline; stock tlru, which needs Q̂; etlru, told nothing but ξ. Lengths in tokens.

    Raises:
        ConfigError: radix-tlru does not take these settings.
    """
    Config(threshold=threshold, next_prompt_estimate=next_prompt_estimate)  # before any server is started
    Config("etlru", threshold)
    stock = json.dumps({"threshold": threshold, "next_prompt_estimate": next_prompt_estimate})
    return [
        Arm("stock lru", ("--radix-eviction-policy", "lru")),
        Arm("stock tlru", ("--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", stock)),
        Arm("etlru", ("--radix-eviction", "etlru", "--tlru-threshold", str(threshold))),
    ]


def base_flags(device: Device, model: Path | None, pool: int | None, page_size: int) -> list[str]:
    """The flags that all arms have: model, pool, page size, and the reports that are read.

    Args:
        pool: tokens; None: 20,480 on a CPU, all that fits on a GPU.

    Raises:
        ValueError: there is no model for a GPU.
    """
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
    """Whether it is a directory that `radix-tlru demo-model` wrote; a model of a hub has weights."""
    return model.is_dir() and not any(model.glob("*.safetensors")) and not any(model.glob("*.bin"))
