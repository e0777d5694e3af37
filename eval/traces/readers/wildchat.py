"""WildChat (``allenai/WildChat``, ``-1M``, ``-4.8M``): conversations of real users with ChatGPT, with their times.

A row is a conversation; its ``timestamp`` is that of its last turn, and rows come in that order. Each answer has a
``timestamp`` of its own, which is taken for the arrival of its turn; messages of users have none. Conversations with
the same content have the same ``conversation_hash``, and are conversations of their own. The first release has a
``conversation_id`` instead, and no times of answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from eval.traces.reading.chats import Chat, Message, Settled, Turn, by_arrival, requests, turns
from eval.traces.reading.files import Source
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Name, Number, Record, bad_field, decode
from eval.traces.reading.times import any_seconds
from eval.traces.reading.tokenizer import TokenCount, counted, token_count
from eval.traces.request import Request, TraceError

WAIT_S = 120.0
"""Assumed between two turns where the first has no time of its own: about the median of the Mooncake trace (123 s)."""

LONGEST_S = 86_400.0
"""With a limit, how long before the last one the turns of a conversation are waited for, so that reading can stop."""

_Time = datetime | Number
"""A datetime or its ISO text, UTC where it names no zone; a number since 1970 in any unit: pandas writes ms."""


class _Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | None
    timestamp: _Time | None = None


class _Row(msgspec.Struct):
    timestamp: _Time
    conversation: list[_Message]
    conversation_hash: str | None = None
    conversation_id: Name | None = None
    model: str | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    if "conversation_hash" in record:
        return "conversation" in record
    return record.keys() >= {"conversation_id", "timestamp"} and isinstance(record.get("conversation"), list)


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    """Requests in order of arrival.

    Without a limit the whole file is read and sorted. With one, rows must come in order of ``timestamp``, give or take
    ``LONGEST_S``; a conversation that reaches further back than that is left out, and counted.
    """
    notes.add("real", f"conversations and times; {counted(options)}")
    yield from by_arrival(_conversations(source, options, notes))


def _conversations(source: Source, options: Options, notes: Notes) -> Iterator[Settled]:
    count, names = token_count(options), UniqueNames()
    notes.add("assumed", names.said)
    settled_s = -math.inf
    for record in source.records():
        try:
            row = decode(record, _Row)
            end_s = any_seconds(record, "timestamp", row.timestamp)
            if end_s < settled_s:
                raise TraceError(
                    f"{record.where}: timestamp: rows are out of order by more than a day; "
                    "sort them, or read them all (no limit)"
                )
            made = _requests(record, row, end_s, count, options.texts, names)
        except TraceError as error:
            notes.bad(error)
            continue
        if not made:
            notes.left_out(f"{record.where}: conversation: no message of a user")
            continue
        if options.limit is not None:
            settled_s = max(settled_s, end_s - LONGEST_S)
        if made[0].arrival_s < settled_s:
            notes.left_out(f"{record.where}: conversation: lasts more than a day, which a limit does not allow")
            continue
        yield Settled(settled_s, made)


def _requests(
    record: Record, row: _Row, end_s: float, count: TokenCount, texts: bool, names: UniqueNames
) -> list[Request]:
    def time_s(each: _Message) -> float | None:
        return None if each.timestamp is None else any_seconds(record, "conversation.timestamp", each.timestamp)

    messages = (Message(each.role, each.content or "", time_s(each)) for each in row.conversation)
    taken = turns(messages)
    arrivals_s = _arrivals(taken, end_s)
    for number in range(1, len(arrivals_s)):
        if arrivals_s[number] < arrivals_s[number - 1]:
            raise TraceError(f"{record.where}: conversation: turn {number + 1} was answered before turn {number}")
    own = row.conversation_id if row.conversation_hash is None else row.conversation_hash
    if own is None:
        raise bad_field(record, "conversation_hash", "missing, and so is conversation_id: one of them")
    name = names.of(str(own)) if taken else ""
    return requests(Chat(name, taken, arrivals_s, model=row.model), count, texts)


def _arrivals(taken: Sequence[Turn], end_s: float) -> list[float]:
    """When each turn arrived: the time of its answer.

    Where that is missing, the last turn has the time of the conversation, and another one comes WAIT_S before the turn
    after it, but not before a turn that has a time.
    """
    known = [turn.answer[0].time_s if turn.answer else None for turn in taken]
    arrivals: list[float] = []
    after_s = end_s
    for number in reversed(range(len(known))):
        own_s = known[number]
        if own_s is None:
            own_s = after_s - (WAIT_S if arrivals else 0.0)
            before_s = next((each for each in reversed(known[:number]) if each is not None), own_s)
            own_s = max(own_s, min(before_s, after_s))
        arrivals.append(own_s)
        after_s = own_s
    arrivals.reverse()
    return arrivals


WILDCHAT = Reader(
    "wildchat",
    "allenai/WildChat, -1M or -4.8M: conversation_hash or _id, timestamp, conversation (role, content, timestamp)",
    _detects,
    _read,
    in_order=True,
)
