"""Rows of WildChat, ShareGPT and LMSYS-Chat-1M in the schemas of the hub, and files of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path as FilePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.trace_files import write_lines

# ---- schemas ----

CATEGORIES = (
    *("harassment", "harassment/threatening", "harassment_threatening", "hate", "hate/threatening", "hate_threatening"),
    *("self-harm", "self-harm/instructions", "self-harm/intent", "self_harm", "self_harm_instructions"),
    *("self_harm_intent", "sexual", "sexual/minors", "sexual_minors", "violence", "violence/graphic"),
    "violence_graphic",
)
TOXICITIES = ("identity_attack", "insult", "obscene", "severe_toxicity", "sexual_explicit", "threat", "toxicity")
HEADER = pa.struct([("accept-language", pa.string()), ("user-agent", pa.string())])
MODERATION = pa.struct(
    [
        ("categories", pa.struct([(name, pa.bool_()) for name in CATEGORIES])),
        ("category_scores", pa.struct([(name, pa.float64()) for name in CATEGORIES])),
        ("flagged", pa.bool_()),
    ]
)


def wildchat(time: pa.DataType, message: Sequence[tuple[str, pa.DataType]]) -> pa.Schema:
    return pa.schema(
        [
            *(("conversation_hash", pa.string()), ("model", pa.string()), ("timestamp", time)),
            ("conversation", pa.list_(pa.struct(message))),
            *(("turn", pa.int64()), ("language", pa.string()), ("openai_moderation", pa.list_(MODERATION))),
            ("detoxify_moderation", pa.list_(pa.struct([(name, pa.float64()) for name in TOXICITIES]))),
            *(("toxic", pa.bool_()), ("redacted", pa.bool_()), ("state", pa.string()), ("country", pa.string())),
            *(("hashed_ip", pa.string()), ("header", HEADER)),
        ]
    )


UTC_TIME, NAIVE_TIME = pa.timestamp("us", tz="UTC"), pa.timestamp("us")
WILDCHAT_1M = wildchat(
    UTC_TIME,
    [
        *(("content", pa.string()), ("country", pa.string()), ("hashed_ip", pa.string()), ("header", HEADER)),
        *(("language", pa.string()), ("redacted", pa.bool_()), ("role", pa.string()), ("state", pa.string())),
        *(("timestamp", UTC_TIME), ("toxic", pa.bool_()), ("turn_identifier", pa.int64())),
    ],
)
WILDCHAT_4_8M = wildchat(
    NAIVE_TIME,
    [
        *(("content", pa.string()), ("created", pa.int64()), ("header", HEADER), ("hashed_ip", pa.string())),
        *(("country", pa.string()), ("toxic", pa.bool_()), ("redacted", pa.bool_()), ("state", pa.string())),
        *(("language", pa.string()), ("openai_id", pa.string()), ("role", pa.string())),
        *(("temperature", pa.float64()), ("timestamp", NAIVE_TIME), ("token_counter", pa.int64())),
        *(("top_p", pa.float64()), ("turn_identifier", pa.int64()), ("system_fingerprint", pa.string())),
        ("usage", pa.struct([("completion_tokens", pa.int64())])),
    ],
)
SHAREGPT = pa.schema(
    [("id", pa.string()), ("conversations", pa.list_(pa.struct([("from", pa.string()), ("value", pa.string())])))]
)

# ---- rows ----

START = datetime(2023, 4, 9, 0, 2, 53, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def message(role: str, content: str, time: datetime | None = None) -> dict[str, Any]:
    return {"content": content, "role": role, "timestamp": time, "language": "English", "turn_identifier": 102_005}


def row(name: str, ended: datetime, *messages: dict[str, Any]) -> dict[str, Any]:
    turns = {"turn": len(messages) // 2, "language": "English", "openai_moderation": [], "detoxify_moderation": []}
    return {
        "conversation_hash": name,
        "model": "gpt-4-0314",
        "timestamp": ended,
        "conversation": list(messages),
    } | turns


# Two conversations that overlap; at 4 characters a token their messages have 2, 3, 1, 2 and 2, 4 tokens.
LONG = row(
    "long",
    at(100),
    message("user", "12345678"),
    message("assistant", "123456789", at(0)),
    message("user", "1"),
    message("assistant", "12345", at(100)),
)
SHORT = row("short", at(160), message("user", "12345678"), message("assistant", "another answer", at(40)))


def write_parquet(path: FilePath, schema: pa.Schema, rows: list[dict[str, Any]]) -> str:
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return str(path)


def write_jsonl(path: FilePath, rows: list[Any], time: Callable[[datetime], Any] = datetime.isoformat) -> str:
    """One object a line; lines that are text already stay as they are."""
    return write_lines(path, *(each if isinstance(each, str) else json.dumps(each, default=time) for each in rows))


def write_json(path: FilePath, rows: list[Any]) -> str:
    path.write_text(json.dumps(rows, default=datetime.isoformat, indent=2))
    return str(path)


def milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
