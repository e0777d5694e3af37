"""Request traces of NVIDIA Dynamo (``DYN_REQUEST_TRACE``): lengths, hashes of blocks, sessions and their parents.

Source: ai-dynamo/dynamo, records of ``dynamo.request.trace.v1``. A ``request_end`` is a request; ``event`` may wrap it.
Times are in ms since 1970. ``replay.input_sequence_hashes`` name prefixes, one for each block of the input, the last
one partly filled. Events of tools tell when they ran, and nothing of prompts. Releases before wrote
``dynamo.agent.trace.v1`` (``DYN_AGENT_TRACE``): a ``session_id`` has conversations there, each a ``trajectory_id``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from eval.traces.reading.blocks import Chain, block_path, full_blocks
from eval.traces.reading.content import stop_reason
from eval.traces.reading.files import Source
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, bad_field, decode, fields_of
from eval.traces.request import Path, Request, TraceError

_SCHEMAS = ("dynamo.request.trace.v1", "dynamo.agent.trace.v1")
_HASHES = "request.replay.input_sequence_hashes"


class _Replay(msgspec.Struct):
    trace_block_size: Annotated[int, msgspec.Meta(ge=1, le=2**20)]
    input_length: Count
    input_sequence_hashes: list[int | str]


class _Finish(msgspec.Struct):
    finish_reason: str | None = None


class _Asked(msgspec.Struct):
    request_received_ms: Number | None = None
    total_time_ms: Number | None = None
    output_tokens: Count | None = None
    model: str | None = None
    replay: _Replay | None = None
    finish_reason_metadata: _Finish | None = None


class _Agent(msgspec.Struct):
    session_id: Name | None = None
    parent_session_id: Name | None = None
    session_final: bool | None = None
    trajectory_id: Name | None = None
    parent_trajectory_id: Name | None = None

    @property
    def conversation(self) -> str | None:
        name = self.session_id if self.trajectory_id is None else self.trajectory_id
        return None if name is None else str(name)

    @property
    def parent(self) -> str | None:
        name = self.parent_session_id if self.trajectory_id is None else self.parent_trajectory_id
        return None if name is None else str(name)


class _Event(msgspec.Struct):
    event_type: str
    event_time_unix_ms: Number
    request: _Asked | None = None
    agent_context: _Agent | None = None


class _Envelope(msgspec.Struct):
    event: _Event


@dataclass(frozen=True, slots=True)
class _Served:
    """A request as it was logged."""

    start_s: float
    answer_s: float
    prompt: Path
    asked: _Asked
    agent: _Agent


def _detects(record: Mapping[str, Any]) -> bool:
    event = record.get("event")
    inner = event.get("schema") if isinstance(event, Mapping) else None
    return record.get("schema") in _SCHEMAS or inner in _SCHEMAS


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    served: list[_Served] = []
    others: Counter[str] = Counter()
    blocks = _Blocks(options.block_size)
    notes.add(
        "real", "times, lengths, which prompts begin alike, sessions, subagents; answers have no hashes: not cached"
    )
    notes.add("chained", blocks.chain.said)
    notes.add("left out", lambda: _said(others))
    for record in source.records():
        try:
            wrapped = "event" in fields_of(record)
            event = decode(record, _Envelope).event if wrapped else decode(record, _Event)
            if event.event_type == "request_end":
                served.append(_served(record, event, blocks))
            else:
                others[event.event_type[:40]] += 1
        except TraceError as error:
            notes.bad(error)
    unknown = sum(each.asked.output_tokens is None for each in served)
    if unknown:
        notes.add("assumed", f"{unknown:,} answers have no length in the trace: they count as empty")
    served.sort(key=lambda each: each.start_s)
    yield from _requests(served)


def _said(others: Counter[str]) -> str:
    counts = ", ".join(f"{times:,} {name}" for name, times in others.items())
    return f"events that are no request: {counts}" if counts else ""


class _Blocks:
    """Blocks of one size, as the first request has it or as it is given."""

    def __init__(self, size: int | None) -> None:
        self.chain = Chain()
        self._size, self._ends = size, dict[int, range]()

    def path(self, record: Record, replay: _Replay) -> Path:
        """The full blocks of a prompt.

        Raises:
            TraceError: it has blocks of another size, or more or fewer hashes than blocks.
        """
        self._size = self._size or replay.trace_block_size
        if replay.trace_block_size != self._size:
            reason = f"{replay.trace_block_size}, must be that of the trace, {self._size} tokens"
            raise bad_field(record, "request.replay.trace_block_size", reason)
        ids = full_blocks(record, replay.input_length, replay.input_sequence_hashes, self._size, _HASHES)
        return block_path(self.chain.units(ids), self._size, self._ends)


def _served(record: Record, event: _Event, blocks: _Blocks) -> _Served:
    asked = event.request
    if asked is None or asked.replay is None:
        raise bad_field(
            record, "request.replay", "missing: it has the length of the prompt and the hashes of its blocks"
        )
    start_ms = asked.request_received_ms
    if start_ms is None:
        if asked.total_time_ms is None:
            raise bad_field(record, "request.request_received_ms", "missing, and so is total_time_ms: one of them")
        start_ms = max(event.event_time_unix_ms - asked.total_time_ms, 0.0)
    lasted_ms = event.event_time_unix_ms - start_ms if asked.total_time_ms is None else asked.total_time_ms
    agent = event.agent_context or _Agent()
    return _Served(start_ms / 1e3, max(lasted_ms, 0.0) / 1e3, blocks.path(record, asked.replay), asked, agent)


def _requests(served: Sequence[_Served]) -> Iterator[Request]:
    """In order of arrival; the session of a subagent is that of the agent that started it."""
    agents = [each.agent for each in served]
    parents = {agent.conversation: agent.parent for agent in agents if agent.parent is not None}  # if told once
    told = {
        agent.conversation: agent.session_id for agent in agents if None not in (agent.trajectory_id, agent.session_id)
    }
    ended_s: dict[str, float] = {}
    for each in served:
        finish = each.asked.finish_reason_metadata
        name, parent = each.agent.conversation, each.agent.parent
        wait_s = None if name is None or name not in ended_s else max(each.start_s - ended_s[name], 0.0)
        if name is not None:
            ended_s[name] = each.start_s + each.answer_s
        yield Request(
            each.start_s,
            name,
            each.prompt,
            each.prompt,
            each.asked.replay.input_length if each.asked.replay else len(each.prompt),
            each.asked.output_tokens or 0,
            closes=bool(each.agent.session_final),
            stop=stop_reason(finish.finish_reason if finish else None),
            session=None if name is None else _session(name, parents, told),
            parent=None if name is None else parent,
            model=each.asked.model,
            answer_s=each.answer_s,
            wait_s=wait_s,
        )


def _session(name: str, parents: Mapping[str | None, str], told: Mapping[str | None, object]) -> str:
    """The session of a conversation: that of the one that began all, over all of its parents.

    Args:
        told: by conversation, the session where it has a name of its own.
    """
    met, session = {name}, told.get(name)
    while (parent := parents.get(name)) is not None and parent not in met:
        name = parent
        met.add(name)
        session = told.get(name, session)
    return name if session is None else str(session)


DYNAMO = Reader(
    "dynamo",
    "request traces of NVIDIA Dynamo (DYN_REQUEST_TRACE, DYN_AGENT_TRACE): hashes of blocks, sessions, parents",
    _detects,
    _read,
    texts=False,
    blocks=True,
)
