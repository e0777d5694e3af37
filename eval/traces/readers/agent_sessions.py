"""Agent sessions as kv-cache-tester publishes them: one JSON object a session, subagents nested in it.

Source: callanjfox/kv-cache-tester ``traces/`` (Claude Code), ``build_traces_from_neon.py``; the schema that
ai-dynamo/aiperf checks (``weka/trace_models.py``). ``t`` of a call is its start, in seconds from that of the session.
``t`` of a subagent is when the call that ran it ended, so it started ``duration_ms`` before; times within it count from
its start, in some files from that of the session. One in the background (``async_launched``) has no duration, and the
call that ran it ended when it started. Subagents run beside each other. ``hash_ids`` name blocks of ``block_size``
tokens, within a session (``hash_id_scope: local``) or in all of them (``global``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec

from eval.traces.arrivals import Stamper
from eval.traces.reading.blocks import BlockNumbers, Chain, block_path, said_of_content
from eval.traces.reading.content import input_kind, stop_reason
from eval.traces.reading.files import Source
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, Size, bad_field, decode
from eval.traces.request import Path, Request, TraceError

SESSION_BIRTHS = 355 / (12 * 3600)
"""Sessions a second, where none are given: 355 in 12 hours, about 30 an hour, as a small team has them."""

_SCOPES = ("local", "global")

_BACKGROUND = "async_launched"  # status of a subagent that its parent does not wait for


class _Entry(msgspec.Struct):
    """A call, or a subagent with calls of its own."""

    t: Number  # s
    type: str = "n"
    model: str | None = None
    input_tokens: Count | None = msgspec.field(default=None, name="in")
    output_tokens: Count | None = msgspec.field(default=None, name="out")
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[int | str] = []
    input_types: list[str] | None = None
    stop: str | None = None
    api_time: Number | None = None  # s
    think_time: Number | None = None  # s
    agent_id: Name | None = None
    duration_ms: Number | None = None
    status: str | None = None
    requests: list[_Entry] | None = None


class _Session(msgspec.Struct):
    requests: list[_Entry]
    id: Name | None = None
    block_size: Size = 64
    hash_id_scope: str = "local"


def _detects(record: Mapping[str, Any]) -> bool:
    if "requests" in record and ("hash_id_scope" in record or "tool_tokens" in record):
        return True  # without a look at the requests, which may be long
    requests = record.get("requests")
    first = requests[0] if isinstance(requests, list) and requests else None
    return isinstance(first, Mapping) and "t" in first and ("hash_ids" in first or "requests" in first)


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    stamper = Stamper(options.arrivals, SESSION_BIRTHS)
    reading = _Reading(options, notes)
    sessions = 0
    notes.add(
        "real", "times within a session, lengths, which prompts begin alike, subagents, how answers ended, models"
    )
    for record in source.records():
        try:
            session = decode(record, _Session)
            made = reading.session(record, session, stamper.birth())
        except TraceError as error:
            notes.bad(error)
            continue
        if not made:
            notes.left_out(f"{record.where}: requests: none")
            continue
        sessions += 1
        yield from made
    notes.add("drawn", stamper.said(f"starts of {sessions:,} sessions"))
    if reading.scopes == {"local"} and sessions > 1:
        notes.add("assumed", "sessions share nothing: the ids of each are its own, though system prompts may be alike")


@dataclass(slots=True)
class _Agent:
    """Whose calls are read."""

    session: str
    conversation: str  # the session, and the number of the agent in it; 0: the main one
    parent: str | None  # conversation


class _Reading:
    """What one reading knows beyond a session."""

    def __init__(self, options: Options, notes: Notes) -> None:
        self.scopes: set[str] = set()
        self._options = options
        self._numbers = BlockNumbers()
        self._everywhere = Chain(self._numbers)
        self._ends: dict[int, dict[int, range]] = {}
        self._names = UniqueNames()
        self._uncovered = self._repeated = 0
        notes.add("chained", lambda: self._everywhere.said() or said_of_content(self._repeated))
        notes.add("assumed", self._said_uncovered)

    def session(self, record: Record, session: _Session, start_s: float) -> list[Request]:
        """The requests of a session in order of arrival."""
        if session.hash_id_scope not in _SCOPES:
            allowed = " or ".join(_SCOPES)
            raise bad_field(record, "hash_id_scope", f"{session.hash_id_scope!r}, must be {allowed}")
        own, wanted = session.block_size, self._options.block_size
        if wanted and wanted % own:
            raise bad_field(record, "block_size", f"{own} tokens; --block-size {wanted} must be a multiple of it")
        self.scopes.add(session.hash_id_scope)
        name = self._names.of(str(session.id) if session.id is not None else record.file or record.where)
        chain = self._everywhere if session.hash_id_scope == "global" else Chain(self._numbers)
        made: list[Request] = []
        agents = count(1)

        def take(entries: list[_Entry], offset_s: float, agent: _Agent) -> None:
            calls = sorted((each for each in entries if each.requests is None), key=lambda each: each.t)
            for number, call in enumerate(calls):
                path, tokens = self._prompt(record, call, own, chain)
                before = calls[number - 1] if number else None
                made.append(_request(call, path, tokens, offset_s, agent, before))
            for entry in entries:
                if entry.requests:
                    within_s = _start(entry, offset_s)
                    take(entry.requests, within_s, _Agent(name, f"{name}/{next(agents)}", agent.conversation))

        take(session.requests, start_s, _Agent(name, f"{name}/0", None))
        if chain is not self._everywhere:
            self._repeated += chain.repeated
        return sorted(made, key=lambda request: request.arrival_s)

    def _prompt(self, record: Record, call: _Entry, own: int, chain: Chain) -> tuple[Path, int]:
        tokens = call.input_length if call.input_tokens is None else call.input_tokens
        if tokens is None:
            raise bad_field(record, "requests.in", "missing: the tokens of a call's input")
        full = tokens // own
        self._uncovered += not full <= len(call.hash_ids) <= full + 1
        units = chain.units(call.hash_ids[:full])
        block = self._options.block_size or own
        if block > own:
            units = units[block // own - 1 :: block // own]  # the id of a prefix names the larger block that it ends
        return block_path(units, block, self._ends.setdefault(block, {})), tokens

    def _said_uncovered(self) -> str:
        calls = f"{self._uncovered:,} calls have more or fewer ids than blocks"
        return f"{calls}: what no id covers is not cached" if self._uncovered else ""


def _start(subagent: _Entry, offset_s: float) -> float:
    """What times within a subagent count from: its own start, unless none of them lies before that."""
    inner = [each.t for each in subagent.requests or ()]
    lasted_s = max(inner) if subagent.duration_ms is None else subagent.duration_ms / 1000
    if subagent.status == _BACKGROUND:
        lasted_s = 0.0
    start_s = max(subagent.t - lasted_s, 0.0)
    return offset_s + start_s if min(inner) < start_s else offset_s


def _request(call: _Entry, path: Path, tokens: int, offset_s: float, agent: _Agent, before: _Entry | None) -> Request:
    stop = stop_reason(call.stop)
    return Request(
        offset_s + call.t,
        agent.conversation,
        path,
        path,
        tokens,
        (call.output_length if call.output_tokens is None else call.output_tokens) or 0,
        stop=stop,
        input=input_kind(call.input_types),
        session=agent.session,
        parent=agent.parent,
        model=call.model,
        answer_s=call.api_time,
        wait_s=_wait(call, before),
    )


def _wait(call: _Entry, before: _Entry | None) -> float | None:
    """Seconds from the end of the agent's last answer, as recorded or from the times of both calls."""
    if before is None or call.think_time is not None:
        return None if before is None else call.think_time
    return None if before.api_time is None else max(call.t - before.t - before.api_time, 0.0)


AGENT_SESSIONS = Reader(
    "agent-sessions",
    "a folder or JSON lines of sessions of kv-cache-tester: requests with t (s), in, out, hash_ids, stop; subagents",
    _detects,
    _read,
    texts=False,
    blocks=True,
)
