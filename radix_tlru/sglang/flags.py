"""The flags: what they are called, what their help says, and how they become a :class:`~radix_tlru.config.Config`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, get_args

from radix_tlru.config import (
    CHUNKS_IN_POOL,
    DEFAULT_NEXT_PROMPT,
    DEFAULT_TTFT_SLO_MS,
    ETLRU_ONLY,
    FLAGS,
    MAX_CHUNK,
    MIN_POOL_FOR_CHUNKS,
    START_THRESHOLD,
    Config,
    ConfigError,
    PolicyName,
)

__all__ = ["REMOVED", "add_flags", "config_from", "given_flags", "keyword"]

REMOVED = {"--tlru-target": f"state an objective in ms with {FLAGS['ttft_slo_ms']}, or pin {FLAGS['threshold']}"}
"""Flags of earlier versions, and what to give instead. They are refused by name."""

_TEXTS = ("policy", "return_model", "state", "warm")
"""Fields whose flags have a name, which is no number whatever it looks like."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add our flags, in a group of their own, to the parser of SGLang's server."""
    group = parser.add_argument_group("tail-optimised eviction (radix-tlru)")

    def flag(field: str, text: str, **options: Any) -> None:
        group.add_argument(FLAGS[field], dest=keyword(FLAGS[field]), default=None, help=text, **options)

    flag(
        "policy",
        "Evict by this order instead of --radix-eviction-policy: 'tlru' takes TEL-safe tails of conversation "
        "paths first, page by page, which the next turn can lack and still meet the threshold, then LRU leaves "
        "(arXiv:2510.15152), and learns while serving how long next prompts are; 'etlru' takes what is least likely to "
        "be missed, and learns, too, which conversations return, and when.",
        # `lru` at page granularity is there for comparisons from Python, not for serving.
        choices=[name for name in get_args(PolicyName) if name != "lru"],
    )
    flag(
        "ttft_slo_ms",
        "TTFT objective in milliseconds. How many uncached tokens meet it is learned from the prefills of this server "
        f"(default {DEFAULT_TTFT_SLO_MS:g}; {START_THRESHOLD} tokens until enough were measured).",
        metavar="MS",
    )
    flag(
        "threshold",
        f"Instead of {FLAGS['ttft_slo_ms']}: pin the uncached tokens that still meet the TTFT objective.",
        metavar="TOKENS",
    )
    flag(
        "next_prompt_estimate",
        "Pin the tokens that the next prompt of a conversation is expected to add (default: learned from the prompts "
        f"of this server; {DEFAULT_NEXT_PROMPT} until enough were seen).",
        metavar="TOKENS",
    )
    flag(
        "median_weight",
        "From 0 (protect the tail alone) to 1 (no threshold): how much a token counts whether or not its request is in "
        "the tail. Default: 0 for tlru; for etlru 1, and less where that was seen to be worse than lru in nothing.",
        metavar="W",
    )
    flag(
        "trim_chunk",
        "Tokens to make room for at least, and to take from a leaf at a time if as many cost the same "
        f"(default: 1/{CHUNKS_IN_POOL} of the pool, {MAX_CHUNK:,} at most; 1, no more than asked for, in pools of "
        f"fewer than {MIN_POOL_FOR_CHUNKS:,}).",
        metavar="TOKENS",
    )
    flag(
        "host_threshold",
        "With --enable-hierarchical-cache: the threshold of the host tier's own eviction, in tokens that neither tier "
        "holds (default: that of the device, pinned or learned).",
        metavar="TOKENS",
    )
    flag(
        "return_model",
        f"With {FLAGS['policy']} etlru: a return model of your own instead of the learned rates, as module:attribute.",
        metavar="MODEL",
    )
    flag(
        "highest_priority",
        "A request's plain priority says how its context is kept: P or more as the highest priority of a hint, 0 as if "
        "nothing was said, -P or less goes first (default: it says nothing of that).",
        metavar="P",
    )
    flag(
        "state",
        f"With {FLAGS['policy']} etlru: load what was learned from this file, and save it there while serving, so that "
        "a restarted server need not learn it anew. Refused if it is of another model, page size or release.",
        metavar="FILE",
    )
    flag(
        "dry_run",
        "Evict by stock lru, and only watch: learn as otherwise, and tell at /metrics (radix-tlru top) what the policy "
        "would have saved. Needs --enable-metrics.",
        action="store_true",
    )
    flag(
        "explain",
        "Keep of the last requests what they lacked and who had it evicted, when and at which price; ask for it by "
        "radix-tlru explain URL RID.",
        action="store_true",
    )
    flag(
        "warm",
        "Prompts that conversations begin with, a JSONL file or a folder: they are prefilled once the server is up and "
        "kept warm, in a quarter of the pool at most.",
        metavar="FILE",
    )
    flag(
        "prefill_ahead",
        "After the answer to a chat whose request says nvext.agent_hints.speculative_prefill: prefill what the next "
        "prompt will surely have, while no request is in flight.",
        action="store_true",
    )
    for removed in REMOVED:
        group.add_argument(removed, dest=keyword(removed), default=None, help=argparse.SUPPRESS)


def keyword(flag: str) -> str:
    """The keyword of ``sglang.Engine`` for a flag, which is its name in a namespace, too."""
    return flag.removeprefix("--").replace("-", "_")


def given_flags(namespace: argparse.Namespace) -> dict[str, Any]:
    """Our flags out of SGLang's namespace, by keyword; None: absent."""
    return {keyword(flag): getattr(namespace, keyword(flag), None) for flag in (*FLAGS.values(), *REMOVED)}


def config_from(given: Mapping[str, Any]) -> Config | None:
    """The Config of flags by keyword (None: absent), as text or as values; None if stock eviction is asked for.

    Raises:
        ConfigError: a value that cannot be served, a flag that was removed, or one that needs ``--radix-eviction``.
    """
    for flag, instead in REMOVED.items():
        if given.get(keyword(flag)) is not None:
            raise ConfigError(f"{flag} {given[keyword(flag)]}: was removed; {instead}")
    values = {field: given.get(keyword(flag)) for field, flag in FLAGS.items()}
    if values["policy"] is None:
        for field, value in values.items():
            if value is not None and value is not False:
                given_flag = FLAGS[field] if value is True else f"{FLAGS[field]} {value}"
                policies = "etlru" if field in ETLRU_ONLY else "etlru (or tlru)"
                raise ConfigError(f"{given_flag}: needs {FLAGS['policy']} {policies}")
        return None
    return Config(**{field: _number(field, value) for field, value in values.items() if value is not None})


def _number(field: str, value: Any) -> Any:
    """A number out of the text of a flag. Other text is left to Config, which says what is allowed."""
    if field not in _TEXTS and isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value
