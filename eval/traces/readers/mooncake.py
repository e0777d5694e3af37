"""Mooncake JSONL, the exchange format of KV-cache traces: lengths, and one id for each block of the input.

Sources: kvcache-ai/Mooncake ``FAST25-release/traces`` (conversation, toolagent, synthetic), and all who write its
fields. The session, the agent, how the answer ended and what the input is are read where they are told. Only full
blocks of the input can be cached. The answer cannot: which tokens it holds is not in the trace.

Rows of sessions (``session_id``, ``delay``), texts in place of lengths and rows without ids are aiperf's:
see ``aiperf_rows.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from eval.traces.reading.blocks import Chain, block_lengths, block_path, block_size, check_size, full_blocks, named_size
from eval.traces.reading.content import input_kind, stop_reason
from eval.traces.reading.files import Source
from eval.traces.reading.names import Logs
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, Size, decode
from eval.traces.reading.times import number_of, per_second_of
from eval.traces.request import Request, TraceError

_DEFAULT_BLOCK = 512


class _Row(msgspec.Struct):
    timestamp: Number | str  # ms
    input_length: Count
    output_length: Count
    hash_ids: list[int | str]  # of all blocks of the input, the last one partly filled or left out
    session: Name | None = None
    agent: Name | None = None  # "0" or 0: the main one
    stop: str | None = None
    input_types: list[str] | None = None
    model: str | None = None
    type: str | None = None
    block_size: Size | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    return "hash_ids" in record and "timestamp" in record and "session_id" not in record


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    block = options.block_size or _told(source, notes)
    # Traces count their sessions, blocks and times from 0 each; a log that was split by hour goes on with all.
    logs = Logs(source, lambda record: _time(record, decode(record, _Row)), "sessions")
    per_second = per_second_of(logs.begins, notes)
    chain, ends, names = Chain(), dict[int, range](), _Names()
    notes.add("real", "times, lengths, which prompts begin alike; answers are not cached: the trace has no ids of them")
    notes.add("real", names.said)
    notes.add("chained", chain.said)
    notes.add("assumed", logs.said)
    notes.add("assumed", logs.said_of_blocks)
    for record in logs.records():
        try:
            row = decode(record, _Row)
            time = _time(record, row)
            check_size(record, row.block_size, block)
            row.session = logs.name(row.session, time)
            row.hash_ids = logs.blocks(row.hash_ids)
            yield _request(record, row, time / per_second, block, chain, ends, names)
        except TraceError as error:
            notes.bad(error)


def _time(record: Record, row: _Row) -> float:
    return number_of(record, "timestamp", row.timestamp)


def _request(
    record: Record, row: _Row, at_s: float, block: int, chain: Chain, ends: dict[int, range], names: _Names
) -> Request:
    units = chain.units(full_blocks(record, row.input_length, row.hash_ids, block))
    prompt = block_path(units, block, ends)
    stop = stop_reason(row.stop)
    session, conversation, parent = names.of(row.session, row.agent)
    return Request(
        at_s,
        conversation,
        prompt,
        prompt,
        row.input_length,
        row.output_length,
        stop=stop,
        input=input_kind(row.input_types),
        session=session,
        parent=parent,
        model=row.model,
        category=row.type,
    )


class _Names:
    """Names of sessions and conversations, one object each however many requests have them."""

    def __init__(self) -> None:
        self._known: dict[tuple[Name, Name | None], tuple[str, str, str | None]] = {}

    def said(self) -> str:
        """What is noted of files that name sessions."""
        return "sessions, subagents, how answers ended, what inputs are" if self._known else ""

    def of(self, session: Name | None, agent: Name | None) -> tuple[str | None, str | None, str | None]:
        """(session, conversation, parent); the main agent is number 0."""
        if session is None:
            return None, None, None
        found = self._known.get((session, agent))
        if found is None:
            name, number = str(session), str(agent or 0)
            parent = f"{name}/0" if number != "0" else None
            found = self._known[session, agent] = (name, f"{name}/{number}", parent)
        return found


def _told(source: Source, notes: Notes) -> int:
    """The size of a block as the first row names it, or the lengths of the first rows tell it."""
    if named := named_size(source.records()):
        notes.add("real", f"blocks of {named} tokens")
        return named
    block = block_size(block_lengths(source.records())) or _DEFAULT_BLOCK
    told = "told from the lengths" if block != _DEFAULT_BLOCK else "as is usual"
    notes.add("assumed", f"blocks of {block} tokens, {told} (--block-size)")
    return block


MOONCAKE = Reader(
    "mooncake",
    "JSONL of timestamp (ms), input_length, output_length, hash_ids; also with session, agent, stop, input_types",
    _detects,
    _read,
    texts=False,
    blocks=True,
    in_order=True,
)
