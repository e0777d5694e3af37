"""Rows of logs of OpenAI's API, and the trace that is read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.traces import Trace, open_trace
from tests.helpers.trace_files import write_lines

__all__ = ["body", "read"]


def read(tmp_path: Path, *rows: Any, **options: Any) -> Trace:
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *rows), **options)
    assert trace.format == "openai"
    return trace


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages)} | more
