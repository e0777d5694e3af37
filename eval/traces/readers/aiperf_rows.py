"""Rows of aiperf's ``mooncake_trace``: lengths with or without ``hash_ids``, or texts; many of them turns of sessions.

Source: ai-dynamo/aiperf ``dataset/loader/models.py`` (``MooncakeTrace``). A session's first row may have a
``timestamp`` (ms); a later one has a ``delay`` (ms) after the answer before it. Rows give a whole prompt, or what a
turn adds to the history: the blocks of a file tell which, or ``context_mode``. Rows that Dynamo made of its request
traces (``wait_for``, ``prefix_reset``) have a ``timestamp`` each, and are whole prompts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import msgspec

from eval.traces.arrivals import Stamper
from eval.traces.reading.blocks import Chain, block_lengths, block_path, block_size, check_size, full_blocks, named_size
from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, holds_history, rebuilt
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.prompts import TextPrompts
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Name, Number, Size, bad_field, decode
from eval.traces.reading.times import TOKEN_S, count_late, per_second_of, sorted_note
from eval.traces.reading.tokenizer import counted
from eval.traces.request import Path, Request, TraceError

_WHOLE = "message_array_with_responses"  # of `context_mode`: a row has the history in it
_OTHERS = {"messages", "input", "payload"}
"""Fields of rows that other readers know."""


class _Row(msgspec.Struct):
    session_id: Name | None = None
    timestamp: Number | None = None  # ms
    delay: Number | None = None  # ms
    delay_ms: Number | None = None  # Dynamo's name of it
    input_length: Count | None = None
    output_length: Count | None = None
    hash_ids: list[int | str] | None = None
    text_input: str | None = None
    context_mode: str | None = None
    block_size: Size | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A row without what takes space."""

    timestamp_s: float | None
    delay_s: float | None
    tokens: int
    answer: int
    path: Path | None  # None: only lengths are known
    whole: bool | None


def _detects(record: Mapping[str, Any]) -> bool:
    # aiperf writes the fields that a row has not as null.
    told = {name for name in ("input_length", "text_input", *_OTHERS) if record.get(name) is not None}
    return bool(told) and not told & _OTHERS


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    sessions = _sessions(source, options, notes)
    stamper, units = Stamper(options.arrivals), count(1 << 40)
    drawn = sum(turns[0].timestamp_s is None for turns in sessions.values())
    if drawn:
        notes.add("drawn", stamper.said(f"starts of {drawn:,} sessions without a timestamp"))
    waits = sum(turn.timestamp_s is turn.delay_s is None for turns in sessions.values() for turn in turns[1:])
    if waits:
        notes.add("drawn", stamper.said(f"waits before {waits:,} turns with neither a timestamp nor a delay"))
    if any(turn.timestamp_s is None and turn.delay_s is not None for turns in sessions.values() for turn in turns):
        notes.add("assumed", f"an answer takes {TOKEN_S * 1000:g} ms a token; the next turn comes its delay later")
    added = 0
    # Of all sessions, as the history of one may have been replaced by a summary: then its blocks do not go on.
    goes_on = any(_goes_on(turns) for turns in sessions.values())
    for name, turns in sessions.items():
        calls = _calls(turns, stamper)
        whole = _whole(turns, goes_on)
        added += not whole and len(turns) > 1
        conversation = None if isinstance(name, _Nameless) else str(name)
        if whole and all(turn.path is not None for turn in turns):
            yield from _of_blocks(conversation, turns, calls)
        elif whole or turns[0].path is None:
            yield from rebuilt(conversation, calls, units, whole)
        else:
            yield from _of_deltas(conversation, turns, calls, units)
    if added:
        notes.add("rebuilt", f"contexts of {added:,} sessions: their rows give what a turn adds to the history")


class _Nameless(int):
    """Stands for the session of a row that names none."""


def _sessions(source: Source, options: Options, notes: Notes) -> dict[Name, list[_Turn]]:
    """Turns by session, in the order of the file; a row that names none is a session of its own."""
    found: dict[Name, list[_Turn]] = {}
    chain, ends = Chain(), dict[int, range]()
    named = options.block_size or named_size(source.records())
    block = named or block_size(block_lengths(source.records())) or 512
    prompts: TextPrompts | None = None
    timed: bool | None = None  # whether first rows have times: drawn times and real ones may be years apart
    per_second: int | None = None
    kinds = set()
    for number, record in enumerate(source.records()):
        try:
            row = decode(record, _Row)
            path, tokens = None, row.input_length
            if row.text_input is not None:
                prompts = prompts or TextPrompts(options)
                made = prompts.blocks(row.text_input)
                path, tokens = made.path, made.tokens
            elif tokens is None:
                raise bad_field(record, "input_length", "missing; or text_input")
            elif row.hash_ids is not None:
                check_size(record, row.block_size, block)
                path = block_path(chain.units(full_blocks(record, tokens, row.hash_ids, block)), block, ends)
            has_time, begins = row.timestamp is not None, row.session_id is None or row.session_id not in found
            timed = has_time if timed is None else timed
            if timed != has_time and (begins or has_time):  # a later row may have a delay instead
                raise bad_field(record, "timestamp", "some rows have one (ms) and some have none: all or none")
        except TraceError as error:
            notes.bad(error)
            continue
        kinds.add("texts" if row.text_input is not None else "blocks" if path is not None else "lengths")
        whole = None if row.context_mode is None else row.context_mode == _WHOLE
        if per_second is None and row.timestamp is not None:
            per_second = per_second_of(row.timestamp, notes)
        start_s = None if row.timestamp is None else row.timestamp / (per_second or 1_000)
        delay_ms = row.delay_ms if row.delay is None else row.delay
        delay_s = None if delay_ms is None else delay_ms / 1_000
        turn = _Turn(start_s, delay_s, tokens, row.output_length or 0, path, whole)
        found.setdefault(_Nameless(number) if row.session_id is None else row.session_id, []).append(turn)
    _say(notes, options, kinds, block, found)
    notes.add("chained", chain.said)
    late = sum(map(_put_in_order, found.values()))
    notes.add("sorted", sorted_note(late, sum(map(len, found.values()))))
    return found


def _put_in_order(turns: list[_Turn]) -> int:
    """Put the turns of a session in order of their times, if all have one; how many came before the one above them."""
    times_s = [turn.timestamp_s for turn in turns if turn.timestamp_s is not None]
    if len(times_s) < len(turns):
        return 0
    turns.sort(key=lambda turn: turn.timestamp_s or 0.0)
    return count_late(times_s)


def _say(notes: Notes, options: Options, kinds: set[str], block: int, found: Mapping[Name, Sequence[_Turn]]) -> None:
    if "blocks" in kinds:
        notes.add("real", "lengths and which prompts begin alike")
        notes.add("assumed", f"blocks of {block} tokens (--block-size)")
    if "texts" in kinds:
        notes.add("real", counted(options))
    if "lengths" in kinds:
        notes.add("real", "lengths")
        nameless = sum(isinstance(name, _Nameless) for name in found)
        if nameless:
            notes.add("rebuilt", f"{nameless:,} rows have neither ids nor a session: nothing in them can be reused")


def _calls(turns: Sequence[_Turn], stamper: Stamper) -> list[Call]:
    """When each turn comes: by its time, else by its delay, else as drawn."""
    stamps = None
    if turns[0].timestamp_s is None or any(turn.timestamp_s is turn.delay_s is None for turn in turns[1:]):
        stamps = stamper.stamp(len(turns))
    calls: list[Call] = []
    at_s = end_s = 0.0
    for number, turn in enumerate(turns):
        wait_s = None
        if turn.timestamp_s is not None:
            at_s = turn.timestamp_s
        elif number and turn.delay_s is not None:
            at_s, wait_s = end_s + turn.delay_s, turn.delay_s
        elif stamps is not None:
            at_s = stamps.times_s[0] if not number else at_s + stamps.times_s[number] - stamps.times_s[number - 1]
        calls.append(Call(at_s, turn.tokens, turn.answer, wait_s=wait_s))
        end_s = at_s + turn.answer * TOKEN_S
    return calls


def _blocks(turns: Sequence[_Turn]) -> list[tuple[Path, Path]]:
    """The blocks of each turn and of the next one, where both are known."""
    return [(one.path, other.path) for one, other in pairwise(turns) if one.path and other.path and len(one.path)]


def _goes_on(turns: Sequence[_Turn]) -> bool:
    """Whether the blocks of a turn begin with all of the turn before it."""
    return any(other.common(one) == len(one) for one, other in _blocks(turns))


def _whole(turns: Sequence[_Turn], goes_on: bool) -> bool:
    """Whether rows have the history in them: as they say, or as their blocks or lengths show.

    Args:
        turns: of a session.
        goes_on: of some session the blocks do.
    """
    if turns[0].whole is not None:
        return turns[0].whole
    if _blocks(turns):
        return goes_on
    if any(turn.delay_s is not None for turn in turns):
        return len(turns) == 1
    return holds_history([[Call(0.0, turn.tokens, turn.answer) for turn in turns]])


def _of_blocks(conversation: str | None, turns: Sequence[_Turn], calls: Sequence[Call]) -> Iterator[Request]:
    """Prompts as their blocks have them; answers are not cached, as their tokens are unknown."""
    for turn, call in zip(turns, calls, strict=True):
        path = turn.path or Path((), ())
        yield Request(
            call.arrival_s,
            conversation,
            path,
            path,
            turn.tokens,
            turn.answer,
            session=conversation,
            wait_s=call.wait_s,
        )


def _of_deltas(
    conversation: str | None, turns: Sequence[_Turn], calls: Sequence[Call], units: count[int]
) -> Iterator[Request]:
    """Each turn adds its tokens to the history; the first one's blocks may be shared."""
    context = turns[0].path or Path((), ())
    known = 0
    for turn, call in zip(turns, calls, strict=True):
        prompt = _up_to(context, known + turn.tokens, units)
        context = _up_to(prompt, len(prompt) + turn.answer, units)
        known = len(context)
        sent = call.arrival_s, conversation, prompt, context, len(prompt), turn.answer
        yield Request(*sent, session=conversation, wait_s=call.wait_s)


def _up_to(path: Path, end: int, units: count[int]) -> Path:
    """A path, and a unit of its own up to a later end."""
    return path if end <= len(path) else path.plus(end - len(path), next(units))


AIPERF_ROWS = Reader(
    "aiperf",
    "JSONL of aiperf's mooncake_trace: session_id, delay (ms), input_length or text_input, with or without hash_ids",
    _detects,
    _read,
    blocks=True,
)
