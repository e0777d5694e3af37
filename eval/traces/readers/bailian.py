"""Traces of Alibaba's Bailian ("KVCache in the Wild"): like Mooncake's, with chats, kinds of requests and small blocks.

Source: alibaba-edu/qwen-bailian-usagetraces-anon. ``timestamp`` is in seconds. ``hash_ids`` are salted hashes of the
content of blocks of 16 tokens, not of prefixes. ``parent_chat_id`` names the request that a request continues, or -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from eval.traces.reading.blocks import Chain, block_lengths, block_path, block_size, fits
from eval.traces.reading.files import Source
from eval.traces.reading.names import Logs, UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, decode
from eval.traces.reading.times import count_late, per_second_of, sorted_note
from eval.traces.request import Path, Request, TraceError

_BLOCK = 16

_NO_PARENT = (-1, "-1", None, "")


class _Row(msgspec.Struct):
    chat_id: Name
    timestamp: Number  # s
    input_length: Count
    output_length: Count
    hash_ids: list[int | str] = []
    parent_chat_id: Name | None = None
    type: str | None = None  # text, search, image, file, …
    turn: int | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    return "chat_id" in record and bool(record.keys() & {"hash_ids", "parent_chat_id"})


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    chain, ends, block = Chain(), dict[int, range](), options.block_size or _told(source)
    rows: list[tuple[_Row, Path]] = []
    uncovered = 0
    notes.add("real", "times (in seconds), lengths, chats, kinds of requests; answers are not cached: no ids name them")
    told = "as published" if block == _BLOCK else "as asked for" if options.block_size else "told from the lengths"
    notes.add("assumed", f"blocks of {block} tokens, {told} (--block-size)")
    notes.add("chained", chain.said)
    # Each trace that was published counts its seconds, chats and blocks from 0; parts of one go on with all.
    logs = Logs(source, lambda record: decode(record, _Row).timestamp, "chats")
    notes.add("assumed", logs.said)
    notes.add("assumed", logs.said_of_blocks)
    per_second = per_second_of(logs.begins, notes, 1)
    for record in logs.records():
        try:
            row = decode(record, _Row)
        except TraceError as error:
            notes.bad(error)
            continue
        full = row.input_length // block
        uncovered += not full <= len(row.hash_ids) <= full + 1
        row.chat_id = logs.name(row.chat_id, row.timestamp) or ""
        path = block_path(chain.units(logs.blocks(row.hash_ids[:full])), block, ends)
        parent = None if row.parent_chat_id in _NO_PARENT else row.parent_chat_id
        row.parent_chat_id = logs.name(parent, row.timestamp)
        row.hash_ids = []  # the path has them, in a tenth of the space
        row.timestamp /= per_second
        rows.append((row, path))
    if uncovered:
        notes.add("assumed", f"{uncovered:,} rows have more or fewer ids than blocks: what no id covers is not cached")
    late = count_late([row.timestamp for row, _ in rows])
    notes.add("sorted", sorted_note(late, len(rows)))
    rows.sort(key=lambda each: (each[0].timestamp, each[0].turn or 0))
    chats = _Chats()
    notes.add("assumed", chats.said)
    for row, path in rows:
        name = chats.conversation(row)
        yield Request(
            row.timestamp,
            name,
            path,
            path,
            row.input_length,
            row.output_length,
            input="user",
            session=name,
            category=row.type,
        )


def _told(source: Source) -> int:
    """The size of a block: as published, unless the lengths of most of the first rows tell another."""
    pairs = block_lengths(source.records())
    published = sum(fits(tokens, ids, _BLOCK) for tokens, ids in pairs)
    return _BLOCK if 2 * published >= len(pairs) else block_size(pairs) or _BLOCK


class _Chats:
    """Which conversation a request belongs to: that of its parent, unless another request has continued that.

    A later turn that names no parent and has the id of an earlier one continues that.
    """

    def __init__(self) -> None:
        self._last: dict[Name, str] = {}  # conversations by the request that comes last in each
        self._branches = self._missing = 0
        self._seen: set[Name] = set()
        self._names = UniqueNames()

    def conversation(self, row: _Row) -> str:
        name: str | None = None
        if row.parent_chat_id not in _NO_PARENT:
            parent: Any = row.parent_chat_id
            self._missing += parent not in self._seen
            self._branches += parent in self._seen and parent not in self._last
            name = self._last.pop(parent, None)
        elif (row.turn or 1) > 1:
            name = self._last.pop(row.chat_id, None)
        name = name or self._names.of(str(row.chat_id))
        self._seen.add(row.chat_id)
        self._last[row.chat_id] = name
        return name

    def said(self) -> str:
        """What is noted of requests that do not simply follow each other."""
        found = {
            "continue a request that is not in the file: each starts a conversation": self._missing,
            "branch off from one that another has continued: each is a conversation": self._branches,
        }
        said = [f"{times:,} requests {what}" for what, times in found.items() if times]
        return "; ".join([*said, *filter(None, [self._names.said()])])


BAILIAN = Reader(
    "bailian",
    "JSONL of chat_id, parent_chat_id, timestamp (s), type, turn, input_length, output_length, hash_ids of 16 tokens",
    _detects,
    _read,
    texts=False,
    blocks=True,
)
