"""ShareGPT, LMSYS-Chat-1M and their kin: conversations without times; they are stamped by an arrival process.

Sources: ``anon8231489123/ShareGPT_Vicuna_unfiltered`` (``conversations`` of ``from``, ``value``), its variants with
roles for tools, a system prompt and descriptions of tools (LLaMA-Factory's ``sharegpt``), without an ``id``;
``lmsys/lmsys-chat-1m`` (``conversation`` of ``role``, ``content``). Messages of SGLang's ``custom`` benchmark need no
roles: the user and the assistant take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from eval.traces.arrivals import Stamper
from eval.traces.reading.chats import Chat, Message, Settled, by_arrival, requests, turns
from eval.traces.reading.content import ROLES_ALLOWED, role_of, text_of
from eval.traces.reading.files import Source
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Name, Record, bad_field, decode
from eval.traces.reading.tokenizer import counted, token_count
from eval.traces.request import Request, TraceError

# The cleaned release, which nearly all work with ShareGPT reads; its repository holds other files as well.
_DATA_FILES = {"anon8231489123/ShareGPT_Vicuna_unfiltered": "ShareGPT_V3_unfiltered_cleaned_split.json"}

_TURNS = ("user", "assistant")

_CALLS = ("function_call", "tool_call", "tool_calls")

_FIELDS = {"from", "role", "value", "content"}
"""Of a message: one of these tells a conversation from other lists."""


class _Said(msgspec.Struct):
    """A message, in the names of either of two dialects."""

    sender: str | None = msgspec.field(default=None, name="from")
    role: str | None = None
    value: Any = None
    content: Any = None

    @property
    def speaker(self) -> str:
        return self.sender or self.role or ""

    @property
    def said(self) -> Any:
        return self.content if self.value is None else self.value


class _ShareGpt(msgspec.Struct):
    conversations: list[_Said]
    id: Name | None = None
    system: str | None = None
    tools: Any = None
    model: str | None = None


class _Lmsys(msgspec.Struct):
    conversation: list[_Said]
    conversation_id: Name | None = None
    model: str | None = None


def _sharegpt(record: Record) -> Chat:
    row = decode(record, _ShareGpt)
    head = [Message("system", text) for text in (text_of(row.tools), row.system) if text]
    said = _messages(record, "conversations", "from", row.conversations)
    return _unstamped(record, row.id, [*head, *said], row.model)


def _lmsys(record: Record) -> Chat:
    row = decode(record, _Lmsys)
    said = _messages(record, "conversation", "role", row.conversation)
    return _unstamped(record, row.conversation_id, said, row.model)


def _messages(record: Record, field: str, role: str, said: Sequence[_Said]) -> list[Message]:
    take_turns = all(not each.speaker and each.said is not None for each in said)
    return [
        _message(record, f"{field}[{n}].{role}", _TURNS[n % 2] if take_turns else each.speaker, each.said)
        for n, each in enumerate(said)
    ]


def _message(record: Record, field: str, speaker: str, value: Any) -> Message:
    role = role_of(speaker)
    if not speaker:
        raise bad_field(record, field, "missing: who says it")
    if role is None:
        raise TraceError(f"{record.where}: {field}: Invalid enum value {speaker[:40]!r}, {ROLES_ALLOWED}")
    return Message(role, text_of(value), calls_tool=speaker in _CALLS)


def _unstamped(record: Record, name: Name | None, messages: list[Message], model: str | None) -> Chat:
    return Chat(record.where if name is None else str(name), turns(messages), (), model=model)


def _read_sharegpt(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    yield from by_arrival(_stamped(source, options, notes, _sharegpt, "conversations"))


def _read_lmsys(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    yield from by_arrival(_stamped(source, options, notes, _lmsys, "conversation"))


def _stamped(source: Source, options: Options, notes: Notes, read: Any, field: str) -> Iterator[Settled]:
    """Conversations are born in the order of the file."""
    count, stamper, names = token_count(options), Stamper(options.arrivals), UniqueNames()
    notes.add("real", f"conversations; {counted(options)}")
    notes.add("drawn", stamper.said("starts of conversations and the waits in them"))
    notes.add("assumed", names.said)
    for record in source.records(_DATA_FILES.get(source.name)):
        try:
            chat = read(record)
        except TraceError as error:
            notes.bad(error)
            continue
        if not chat.turns:
            notes.left_out(f"{record.where}: {field}: no message of a user")
            continue
        stamps = stamper.stamp(len(chat.turns))
        stamped = Chat(names.of(chat.name), chat.turns, stamps.times_s, stamps.return_rate, chat.model)
        made = requests(stamped, count, options.texts)
        yield Settled(made[0].arrival_s, made)


SHAREGPT = Reader(
    "sharegpt",
    "conversations (from, value, or role, content), with or without id, system, tools; no times",
    lambda record: isinstance(record.get("conversations"), list) and _is_said(record["conversations"]),
    _read_sharegpt,
    in_order=True,
)

LMSYS = Reader(
    "lmsys",
    "lmsys/lmsys-chat-1m: conversation_id, model, conversation (role, content); no times",
    lambda record: isinstance(record.get("conversation"), list) and "conversation_hash" not in record,
    _read_lmsys,
    in_order=True,
)


def _is_said(messages: list[Any]) -> bool:
    return not messages or (isinstance(messages[0], Mapping) and not messages[0].keys().isdisjoint(_FIELDS))
