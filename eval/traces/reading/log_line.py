"""One line of a SGLang server's log that says something of a request."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from eval.traces.reading.records import json_value

# Before it there may be what collects logs writes, such as a container and a time; JSON lines have no time before them.
_PREFIX = re.compile(r"^[^\"'{}(]{0,200}?\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)[^\]]*\] ?")
_COLLECTED = re.compile(r"^[^\"'{}(]{0,200}(?=\{\")")
_COLOUR = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_VLLM = re.compile(r"\b[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \[[\w./]+:\d+\]")
_TEXT = re.compile(r"(Receive|Finish): obj=\w+\(")
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[\[\](){},]""")
_EVENTS: dict[str, Literal["received", "finished"]] = {
    **dict.fromkeys(("Receive", "request.received"), "received"),
    **dict.fromkeys(("Finish", "request.finished"), "finished"),
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A request that came, or that ended; fields as SGLang names them."""

    event: Literal["received", "finished"]
    time_s: float | None  # when it was written, since 1970
    request: Mapping[str, Any]
    answer: Mapping[str, Any]

    @property
    def meta(self) -> Mapping[str, Any]:
        """The ``meta_info`` of the answer."""
        found = self.answer.get("meta_info")
        return found if isinstance(found, Mapping) else {}


def logged_line(line: str) -> LogLine | None:
    """What a line says of a request; None where it says nothing of one."""
    line = _COLOUR.sub("", line)
    head = _PREFIX.match(line)
    time_s = _seconds(head[1]) if head else None
    head = head or _COLLECTED.match(line)
    body = line[head.end() :] if head else line
    if body.startswith("{"):
        return _json_line(body, time_s)
    found = _TEXT.search(body)
    if found is None:
        return None
    request, end = _values(body, found.end())
    out = body.find("out={", end) if end >= 0 else -1
    answer, end_of_answer = _values(body, out + len("out={")) if out >= 0 else ({}, end)
    if end_of_answer < 0 or (out < 0 and ", out=".startswith(body[end:].rstrip())):
        return LogLine("received", time_s, request, {})  # the log ends within the line: its answer was not written yet
    return LogLine(_EVENTS[found[1]], time_s, request, answer)


def line_seconds(line: str) -> float | None:
    """When any line of a log was written, since 1970; None where it does not tell."""
    head = _PREFIX.match(_COLOUR.sub("", line))
    return _seconds(head[1]) if head else None


def is_of_vllm(line: str) -> bool:
    """Whether a server of vLLM wrote a line."""
    return _VLLM.search(line[:300]) is not None


def _json_line(body: str, time_s: float | None) -> LogLine | None:
    fields = json_value(body)
    if not isinstance(fields, dict) or (event := _EVENTS.get(str(fields.get("event")))) is None:
        return None
    request, answer = fields.get("obj"), fields.get("out")
    if isinstance(request, dict) and not request.get("rid"):
        request["rid"] = fields.get("rid")
    told = fields.get("timestamp")
    return LogLine(
        event,
        _seconds(told) if isinstance(told, str) else time_s,
        request if isinstance(request, dict) else {},
        answer if isinstance(answer, dict) else {},
    )


def _values(text: str, start: int) -> tuple[dict[str, Any], int]:
    """``name=value, …`` or ``'name': value, …`` up to the closing bracket, and where that is; -1: there is none.

    A value that is no literal, such as a text that was cut in the middle, is left out.
    """
    values: dict[str, Any] = {}
    depth, begin = 0, start
    for token in _TOKEN.finditer(text, start):
        mark = token[0]
        if mark in "[({":
            depth += 1
        elif (mark in "])}" or mark == ",") and depth == 0:
            _take(text[begin : token.start()], values)
            begin = token.end()
            if mark != ",":
                return values, begin
        elif mark in "])}":
            depth -= 1
    return values, -1


def _take(pair: str, values: dict[str, Any]) -> None:
    name, separator, value = pair.strip().partition("=" if not pair.strip().startswith(("'", '"')) else ": ")
    if separator:
        try:
            values[name.strip("'\"")] = _literal(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return


def _literal(text: str) -> Any:
    if text.startswith("{"):
        return _values(text, 1)[0]
    if text.startswith("["):
        try:
            return json.loads(text)  # lists of token ids are long, and this is ten times faster
        except ValueError:
            pass
    return ast.literal_eval(text)


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
