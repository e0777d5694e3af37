"""aiperf's own data sets of texts: ``single_turn``, a prompt a row, and ``multi_turn``, a session of turns a row.

Source: ai-dynamo/aiperf ``dataset/loader/models.py`` (``SingleTurn``, ``MultiTurn``). A turn adds its texts and images
to the history; a single turn is a whole prompt. ``timestamp`` and ``delay`` are in ms. Answers are those of the server
that is asked: they are in no file, so one is as long as ``output_length`` says, or empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.chats import Message
from eval.traces.reading.content import ROLES_ALLOWED, role_of, text_of
from eval.traces.reading.files import Source
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Record, bad_field, decode, fields_of
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Request, TraceError

_TEXTS = ("text", "texts")
_OTHERS = {"image": "image", "images": "image", "audio": "audio", "audios": "audio", "video": "video_url"}
_OTHERS |= {"videos": "video_url"}
_AROUND = ("type", "timestamp", "delay", "role", "session_id", "output_length", "extra", "image_uuids")


class _Turn(msgspec.Struct):
    text: str | None = None
    texts: list[Any] | None = None
    image: str | None = None
    images: list[Any] | None = None
    audio: str | None = None
    audios: list[Any] | None = None
    video: str | None = None
    videos: list[Any] | None = None
    timestamp: Number | None = None  # ms
    delay: Number | None = None  # ms
    role: str | None = None
    session_id: Name | None = None
    output_length: Count | None = None


class _Session(msgspec.Struct):
    turns: list[_Turn]
    session_id: Name | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    turns = record.get("turns")
    turn = turns[0] if isinstance(turns, list) and turns else record
    if not isinstance(turn, Mapping) or not any(turn.get(name) for name in (*_TEXTS, *_OTHERS)):
        return False
    return turn is not record or record.keys() <= {*_TEXTS, *_OTHERS, *_AROUND}


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log, names = CallLog(options, notes), UniqueNames()
    notes.add("real", f"texts of turns; {counted(options)}")
    notes.add("assumed", names.said)
    for record in source.records():
        try:
            for call in _calls(record, names):
                log.add(call)
        except TraceError as error:
            notes.bad(error)
    yield from log.requests()


def _calls(record: Record, names: UniqueNames) -> list[TextCall]:
    """The calls of a row.

    Raises:
        TraceError: a turn has neither texts nor images, or a role of no known format.
    """
    if "turns" not in fields_of(record):
        turn = decode(record, _Turn)
        return [_call(record, "", turn, None if turn.session_id is None else str(turn.session_id), adds=False)]
    row = decode(record, _Session)
    if not row.turns:
        raise bad_field(record, "turns", "0 turns, must be 1 or more")
    name = names.of(record.where if row.session_id is None else str(row.session_id))
    return [_call(record, f"turns[{number}].", turn, name, adds=True) for number, turn in enumerate(row.turns)]


def _call(record: Record, place: str, turn: _Turn, session: str | None, *, adds: bool) -> TextCall:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": each} for each in _all(turn, _TEXTS)]
    for name, kind in _OTHERS.items():
        blocks += [{"type": kind, "source": each} for each in _all(turn, (name,))]
    role = role_of(turn.role or "user")
    if role is None:
        raise bad_field(record, f"{place}role", f"{str(turn.role)[:40]!r} is no role of a message, {ROLES_ALLOWED}")
    if not blocks:
        raise bad_field(record, f"{place}text", "missing, and so are texts, images and all else: one of them")
    return TextCall(
        (Message(role, text_of(blocks)),),
        adds=adds,
        session=session,
        start_s=None if turn.timestamp is None else turn.timestamp / 1000,
        delay_s=None if turn.delay is None else turn.delay / 1000,
        output_tokens=turn.output_length,
        where=record.where,
    )


def _all(turn: _Turn, names: tuple[str, ...]) -> list[Any]:
    """What these fields hold, a list or one; aiperf's ``Text`` and ``Image`` have theirs in ``contents``."""
    found: list[Any] = []
    for name in names:
        value = getattr(turn, name)
        for each in value if isinstance(value, list) else [value]:
            inner = each.get("contents") if isinstance(each, Mapping) else each
            found += inner if isinstance(inner, list) else [inner]
    return [each for each in found if each not in (None, "")]


AIPERF_TURNS = Reader(
    "aiperf-turns",
    "JSONL of aiperf's single_turn (text, images, timestamp in ms) and multi_turn (session_id, turns with delay in ms)",
    _detects,
    _read,
)
