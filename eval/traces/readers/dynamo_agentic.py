"""Agentic Mooncake, which NVIDIA Dynamo replays: requests of plays, and which of them wait for which.

Source: ai-dynamo/dynamo ``lib/data-gen`` (``AgenticMooncakeHeader``, ``AgenticMooncakeRow``), version 2. The first line
of a file is a head with the size of a block; ``hash_ids`` name blocks within a play (``hash_id_scope: local``). A play
is a task: its sessions are an agent and its subagents. ``not_before_ms`` is when a request came, from the start of its
play or of the log. A dependency says what it waited for: the request before it in its session (``sequence``), or the
one that started its agent (``spawn``). Version 1 had no head, and is read with aiperf's rows (``aiperf_rows.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from eval.traces.arrivals import Stamper
from eval.traces.readers.agent_sessions import SESSION_BIRTHS
from eval.traces.reading.blocks import BlockNumbers, Chain, block_path, full_blocks, said_of_content
from eval.traces.reading.files import Source
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, Size, bad_field, decode, fields_of
from eval.traces.request import Path, Request, TraceError

_SCHEMA, _VERSION, _SCOPE = "dynamo.agentic_mooncake", 2, "local"

_NEXT = ("sequence", "completion")
"""Relation and trigger of a request that waits for the end of the one before it in its session."""


class _Head(msgspec.Struct):
    schema: str
    version: int
    block_size: Size
    hash_id_scope: str = _SCOPE


class _Dependency(msgspec.Struct):
    request_id: Name
    trigger: str = ""
    delay_ms: Number = 0.0
    relation: str = ""


class _Row(msgspec.Struct):
    request_id: Name
    play_id: Name
    session_id: Name
    input_length: Count
    hash_ids: list[int | str]
    not_before_ms: Number
    output_length: Count | None = None
    model: str | None = None
    dependencies: list[_Dependency] = []


@dataclass(slots=True)
class _Play:
    """The requests of a play, in the order of the file."""

    name: str
    chain: Chain
    rows: list[tuple[_Row, Path]] = field(default_factory=list)

    def begin_s(self) -> float:
        """When its first request came."""
        return min(row.not_before_ms for row, _ in self.rows) / 1000


def _detects(record: Mapping[str, Any]) -> bool:
    return record.get("schema") == _SCHEMA or record.keys() >= {"play_id", "not_before_ms"}


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    reading, stamper = _Reading(), Stamper(options.arrivals, SESSION_BIRTHS)
    notes.add("real", "times within a play, lengths, which prompts begin alike, subagents; answers are not cached")
    for record in source.records():
        try:
            reading.add(record)
        except TraceError as error:
            notes.bad(error)
    plays = list(reading.plays.values())
    notes.add("chained", said_of_content(sum(play.chain.repeated for play in plays)))
    drawn = len(plays) > 1 and not any(play.begin_s() for play in plays)
    if drawn:
        notes.add("drawn", stamper.said(f"starts of {len(plays):,} plays, which all count from 0"))
    if len(plays) > 1:
        notes.add("assumed", "plays share nothing: the ids of each are its own, though system prompts may be alike")
    unknown = sum(row.output_length is None for play in plays for row, _ in play.rows)
    if unknown:
        notes.add("assumed", f"{unknown:,} answers have no length in the trace: they count as empty")
    for play in plays:
        yield from _requests(play, stamper.birth() if drawn else 0.0)


class _Reading:
    """What one reading knows: plays by file and id."""

    def __init__(self) -> None:
        self.plays: dict[tuple[str, Name], _Play] = {}
        self._names, self._numbers = UniqueNames(), BlockNumbers()
        self._ends: dict[int, range] = {}
        self._block: int | None = None
        self._headed: set[str] = set()  # files whose head was read

    def add(self, record: Record) -> None:
        """The next line.

        Raises:
            TraceError: it is no such row, no head is before it, or a head has another size than one before.
        """
        if "schema" in fields_of(record):
            self._head(record, decode(record, _Head))
            return
        row = decode(record, _Row)
        if self._block is None or record.file not in self._headed:
            raise bad_field(record, "block_size", f"missing: the first line of a file has it, with schema {_SCHEMA!r}")
        play = self.plays.get((record.file, row.play_id))
        if play is None:
            play = _Play(self._names.of(str(row.play_id)), Chain(self._numbers))
        ids = full_blocks(record, row.input_length, row.hash_ids, self._block)
        play.rows.append((row, block_path(play.chain.units(ids), self._block, self._ends)))
        row.hash_ids = []  # the path has them
        self.plays[record.file, row.play_id] = play

    def _head(self, record: Record, head: _Head) -> None:
        told = {"schema": (head.schema, _SCHEMA), "version": (head.version, _VERSION)}
        told |= {"hash_id_scope": (head.hash_id_scope, _SCOPE), "block_size": (head.block_size, self._block)}
        for name, (value, must) in told.items():
            if must not in (None, value):
                raise bad_field(record, name, f"{value!r}, must be {must!r}")
        self._block = head.block_size
        self._headed.add(record.file)


def _requests(play: _Play, start_s: float) -> Iterator[Request]:
    conversations = {row.request_id: f"{play.name}/{row.session_id}" for row, _ in play.rows}
    parents: dict[str, str] = {}
    for row, _ in play.rows:
        for each in row.dependencies:
            if each.relation == "spawn" and each.request_id in conversations:
                parents.setdefault(conversations[row.request_id], conversations[each.request_id])
    for row, path in play.rows:
        name = f"{play.name}/{row.session_id}"
        waits_ms = [each.delay_ms for each in row.dependencies if (each.relation, each.trigger) == _NEXT]
        yield Request(
            start_s + row.not_before_ms / 1000,
            name,
            path,
            path,
            row.input_length,
            row.output_length or 0,
            session=play.name,
            parent=parents.get(name) if parents.get(name) != name else None,
            model=row.model,
            wait_s=waits_ms[0] / 1000 if waits_ms else None,
        )


DYNAMO_AGENTIC = Reader(
    "dynamo-agentic",
    "agentic Mooncake of NVIDIA Dynamo: a head with block_size, then play_id, session_id, not_before_ms, hash_ids",
    _detects,
    _read,
    texts=False,
)
