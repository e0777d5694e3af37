"""A replay that was played, row by row: four requests of two conversations, without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from eval.live.replay.rows import Folder, Part, Row, Run

RUN = Run(
    trace="t",
    requests=4,
    digest="d",
    arms={"stock lru": "", "ours": ""},
    repeats=2,
    api="generate",
    loop="ordered",
    speed=1.0,
    users=1,
    threshold=600,
    next_prompt_estimate=100,
    slo_ms=None,
)

FACTS = {
    "pool": 2000,
    "page_size": 1,
    "chunk": 8192,
    "policy": "lru",
    "threshold": None,
    "next_prompt_estimate": None,
    "version": "0",
    "model": "m",
    "device": "cpu",
    "attention_backend": "a",
    "replicas": 1,
}


def row(
    number: int, conversation: int, turn: int, prompt: int, cached: int, ttft_ms: float = 10.0, **more: object
) -> Row:
    base = {
        "number": number,
        "sent_s": float(number),
        "conversation": conversation,
        "turn": turn,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "uncached_tokens": prompt - cached,
        "output_tokens": 4,
        "ttft_ms": ttft_ms,
        "e2e_ms": 50.0,
        "itl_ms": (1.0, 3.0),
        "retries": 0,
        "error": None,
    }
    return Row(**{**base, **more})  # type: ignore[arg-type]


# Uncached: 1000, 200, 700, 600. With a threshold of 600 the first and the third violate, by 400 and 100 tokens.
ROWS = [
    row(0, 0, 0, 1000, 0, 40.0),
    row(1, 1, 0, 1200, 1000, 10.0),
    row(2, 0, 1, 1500, 800, 30.0),
    row(3, 1, 1, 1600, 1000, 20.0),
]


def played(
    folder: Folder,
    arm: str,
    repeat: int,
    rows: Sequence[Row],
    alone_ms: tuple[float, ...] = (),
    metrics: Mapping[str, float] = MappingProxyType({}),
) -> None:
    with folder.begin(arm, repeat) as file:
        for one in rows:
            file.append(one)
    folder.finish(
        Part(arm=arm, repeat=repeat, seconds=2.0, facts=FACTS, metrics=dict(metrics), prefill_alone_ms=alone_ms)
    )
