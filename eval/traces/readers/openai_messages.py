"""Messages as the APIs of OpenAI and Anthropic have them: bodies of requests, batches, responses, whole conversations.

A row is one of:
- a conversation: ``messages`` that end with an answer; each answer in it is a call;
- a call: ``messages`` (or ``prompt``, or ``input`` with ``instructions``) that end with a user or a tool, alone or
  beside its ``response`` (the ``output`` of Langfuse); in ``body`` (batches), ``request`` or ``payload`` (logs). What a
  prompt of the Responses API names, and does not have, is put before it;
- a call of the Completions API whose ``prompt`` is token ids, or several prompts: a request each;
- a response alone: its ``usage`` tells lengths; texts, and so what prompts share, are not in it;
- a list of messages; or a single message or item of the Responses API: all of a file are one conversation then, as in
  old logs of Codex, whose first line has the instructions;
- a run of an agent: a ``.traj`` of SWE-agent, or a row of SWE-Gym/OpenHands-Sampled-Trajectories, of
  nebius/SWE-agent-trajectories or their kin: ``messages``, ``trajectory`` or ``history``, with an ``instance_id``.
One JSON document may hold them in ``data``, ``requests`` or ``conversations`` (SGLang's ``agentic-trace``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from eval.traces.arrivals import Stamper
from eval.traces.reading.api import (
    CONTAINERS,
    answer_of,
    call_of,
    each_prompt,
    is_call,
    response_of,
    rows_of,
    unserved,
)
from eval.traces.reading.bodies import Histories
from eval.traces.reading.calls import CallLog, TextCall
from eval.traces.reading.chats import Chat, Turn, requests, turns
from eval.traces.reading.clock import Piece, is_since_1970, on_one_clock
from eval.traces.reading.content import is_item
from eval.traces.reading.files import Source
from eval.traces.reading.lengths import Call, rebuilt
from eval.traces.reading.names import UniqueNames
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.prompts import token_prompt
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Record, bad_field, fields_of
from eval.traces.reading.runs import RUNS, calls_of, is_run
from eval.traces.reading.tokenizer import counted, token_count
from eval.traces.request import Request, TraceError

_HEAD = ("id", "instructions", "timestamp")  # of the first line of an old log of Codex


def _detects(record: Mapping[str, Any]) -> bool:
    if is_call(record) or response_of(record) or is_run(record) or record.keys() >= {"role", "content"}:
        return True
    return any(
        isinstance(record.get(name), list) and any(isinstance(row, Mapping) and is_call(row) for row in rows_of(record))
        for name in CONTAINERS
    )


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log, chats, batches = CallLog(options, notes), _Chats(options, notes, source.folder is not None), _Batches()
    alone: dict[str, _Alone] = {}  # by file, single messages
    answers: list[TextCall] = []
    of_tokens: list[TextCall] = []
    pieces: list[Piece] = []
    histories = Histories()
    notes.add("real", f"messages; {counted(options)}")
    notes.add("rebuilt", lambda: _said(histories))

    def take_call(record: Record, row: Mapping[str, Any], call: TextCall) -> None:
        if call.tokens:
            of_tokens.append(call)
        elif not call.messages:
            notes.left_out(f"{record.where}: the prompt is empty")
        elif not call.answer and not call.adds and _is_conversation(row, call):
            pieces.extend(chats.pieces(record, row, call))
        else:
            log.add(call)

    def take(record: Record, row: Mapping[str, Any]) -> None:
        try:
            if batches.pairs and is_call(row) and "custom_id" in row and not response_of(row):
                notes.left_out(f"{record.where}: the results of the batch hold no response to it")
            elif why := unserved(row):
                notes.left_out(f"{record.where}: {why}")
            elif is_call(row):
                for one in each_prompt(row):
                    take_call(record, one, call_of(record, one, histories))
            elif response_of(row):
                answers.append(answer_of(record, row))
            else:
                notes.left_out(f"{record.where}: neither messages nor a response")
        except TraceError as error:
            notes.bad(error)

    for record, row in _rows(source, notes):
        if "role" in row or is_item(row) or _is_head(row):
            alone.setdefault(record.file, _Alone()).add(record, row)
        elif "type" in row and not is_call(row) and not response_of(row):
            alone.setdefault(record.file, _Alone()).unknown.append((record, row))
        elif (joined := batches.joined(record, row)) is not None:
            take(record, joined)
    for record, row in batches.unjoined():
        take(record, row)
    for single in alone.values():
        single.check(notes)
        # Responses of Anthropic are messages too, and kept with those of the user a conversation.
        if all(response_of(row) for _, row in single.rows):
            for record, row in single.rows:
                take(record, row)
        else:
            head = {name: single.head[name] for name in _HEAD if name in single.head}
            take(Record(source.title, single), head | {"messages": [row for _, row in single.rows]})
    stamper = Stamper(options.arrivals)
    pieces += [*log.pieces(), *_of_lengths(answers, stamper, notes), *_of_tokens(of_tokens, stamper, options, notes)]
    told_s = [each for piece in pieces for each in piece.told_s]
    if told_s and not any(map(is_since_1970, told_s)):
        notes.add(
            "assumed",
            "times count from a start, not from 1970: timestamp beside messages or payload read as ms, any other as s",
        )
    yield from on_one_clock(pieces, notes, stamper.said)


def _is_head(row: Mapping[str, Any]) -> bool:
    """Whether a row is the first line of an old log of Codex."""
    others = {"type", "role", "input", "messages", "prompt", "output"}
    return row.keys() >= {"id", "instructions"} and not row.keys() & others


class _Alone:
    """Messages and items of one file, a row each."""

    def __init__(self) -> None:
        self.rows: list[tuple[Record, Mapping[str, Any]]] = []
        self.unknown: list[tuple[Record, Mapping[str, Any]]] = []  # with a type that is none of an item
        self.head: Mapping[str, Any] = {}
        self.head_at = ""

    def add(self, record: Record, row: Mapping[str, Any]) -> None:
        """The next row of the file that is a message, an item or a head."""
        if not _is_head(row):
            self.rows.append((record, row))
        elif not self.head and not self.rows:
            self.head, self.head_at = row, record.where
        else:
            self.unknown.append((record, {"type": "session"}))

    def check(self, notes: Notes) -> None:
        """Rows that cannot be read are nothing, but among messages they are bad: a conversation would lack them."""
        for record, row in self.unknown:
            if self.rows:
                notes.bad(bad_field(record, "type", f"{str(row['type'])[:40]!r} is no item that can be read"))
            else:
                notes.left_out(f"{record.where}: neither messages nor a response")
        if self.head and not self.rows:
            notes.left_out(f"{self.head_at}: a session without messages")


def _said(histories: Histories) -> str:
    """What is noted of prompts that name what came before them."""
    found = {
        "prompts name an earlier response or a conversation, whose messages were put before theirs": histories.found,
        "prompts name a response that is not in the log: what came before them is missing": histories.missing,
    }
    return "; ".join(f"{times:,} {what}" for what, times in found.items() if times)


def _of_lengths(answers: Sequence[TextCall], stamper: Stamper, notes: Notes) -> Iterator[Piece]:
    """Responses alone: a request each, that shares nothing."""
    if answers:
        notes.add("rebuilt", f"{len(answers):,} responses have no prompt beside them: nothing in them can be reused")
    units = count(1 << 66)
    for each in answers:
        told_s = [] if each.start_s is None else [each.start_s]
        start_s = told_s[0] if told_s else stamper.birth()
        lasted_s = None if each.end_s is None else max(each.end_s - start_s, 0.0)
        tokens = each.prompt_tokens or 0, each.output_tokens or 0
        made = rebuilt(None, [Call(start_s, *tokens, each.stop, each.model, answer_s=lasted_s)], units, True)
        yield Piece([each.where], told_s, made, not told_s)


def _of_tokens(calls: Sequence[TextCall], stamper: Stamper, options: Options, notes: Notes) -> Iterator[Piece]:
    """Prompts of token ids: a request each, that shares the blocks that it begins with."""
    if calls:
        notes.add("assumed", f"answers to {len(calls):,} prompts of token ids are not cached: their ids are not told")
    count_text = token_count(options)
    for call in calls:
        start_s = stamper.birth() if call.start_s is None else call.start_s
        blocks = token_prompt(call.tokens)
        output = (
            sum(count_text(each.text) for each in call.answer) if call.output_tokens is None else call.output_tokens
        )
        lasted_s = None if call.end_s is None else max(call.end_s - start_s, 0.0)
        sent = start_s, call.session, blocks.path, blocks.path, blocks.tokens, output
        request = Request(
            *sent,
            stop=call.stop,
            session=call.session,
            model=call.model,
            answer_s=lasted_s,
        )
        yield Piece([call.where], [] if call.start_s is None else [call.start_s], [request], call.start_s is None)


class _Batches:
    """Requests of batches and their results, which lie in two files, in any order."""

    def __init__(self) -> None:
        self.pairs = 0  # joined so far
        self._waiting: dict[str, tuple[Record, Mapping[str, Any]]] = {}

    def joined(self, record: Record, row: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """A row with its other half, or as it is if it has no other; None: the other half is still to come."""
        name = row.get("custom_id")
        if not isinstance(name, str) or (is_call(row) and response_of(row)):
            return row
        _, other = self._waiting.pop(name, (record, None))
        if other is None or is_call(other) == is_call(row):
            self._waiting[name] = record, row
            return other
        self.pairs += 1
        asked, answered = (row, other) if is_call(row) else (other, row)
        return dict(asked) | {"response": response_of(answered)}

    def unjoined(self) -> list[tuple[Record, Mapping[str, Any]]]:
        """What has no other half."""
        return list(self._waiting.values())


def _rows(source: Source, notes: Notes) -> Iterator[tuple[Record, Mapping[str, Any]]]:
    names = UniqueNames()
    for record in source.records():
        try:
            fields = dict(fields_of(record))
            rows = calls_of(fields, names.of(record.file or record.where)) if is_run(fields) else rows_of(fields)
            for row in rows:
                yield record, row
        except TraceError as error:
            notes.bad(error)


class _Chats:
    """Rows that are whole conversations.

    One without an id that begins with all of an earlier one goes on with it: only its later turns are new. Of rows with
    one id, or of one session, a turn that an earlier row has is counted once. Rows with one id and no turn in common
    are conversations of their own.
    """

    def __init__(self, options: Options, notes: Notes, folder: bool) -> None:
        self._folder = folder
        self._count, self._texts = token_count(options), options.texts
        self._stamper, self._notes = Stamper(options.arrivals), notes
        self._ends: dict[int, tuple[str, float]] = {}  # names and last times of conversations, by their last unit
        self._turns: dict[str, dict[int, tuple[str, float]]] = {}  # by id: the same of all turns, by their last unit
        self._names, self._repeated = UniqueNames(), 0
        self._drawn = False
        notes.add("assumed", self._names.said)
        notes.add("assumed", self._said)

    def pieces(self, record: Record, row: Mapping[str, Any], call: TextCall) -> Iterator[Piece]:
        """The turns of one row, if it has any."""
        taken = [turn for turn in turns(call.messages) if turn.answer]
        if not taken:
            self._notes.left_out(f"{record.where}: messages: none of a user that is answered")
            return
        written = _written(taken)
        if written is None and not self._drawn:
            self._drawn = True
            self._notes.add("drawn", self._stamper.said("starts of conversations without times, and the waits in them"))
        own = next((row[name] for name in ("id", "conversation_id", "prompt_id") if row.get(name) is not None), None)
        # Ids count rows, in each file of a folder anew; sessions may go on in another file.
        place = f"{record.file}/" if self._folder else ""
        name = call.session or (record.where if own is None else f"{place}{own}")
        told_s = [] if call.start_s is None else [call.start_s]
        if written is None:
            stamps = self._stamper.stamp(len(taken))
            shift_s = told_s[0] - stamps.times_s[0] if told_s else 0.0
            chat = Chat(name, taken, [each + shift_s for each in stamps.times_s], stamps.return_rate, call.model)
            made = requests(chat, self._count, self._texts)
        else:
            told_s = [asked_s for asked_s, _ in written]
            self._notes.add("real", "times of messages")
            made = _timed(requests(Chat(name, taken, told_s, model=call.model), self._count, self._texts), written)
        if own is None and call.session is None:
            made = self._new(made)
        else:
            made = self._not_repeated(made, name, call.session is not None)
        yield Piece([record.where], told_s, made)

    def _said(self) -> str:
        """What is noted of turns that several rows have; nothing if none are."""
        rows = f"{self._repeated:,} turns are repeated in a later row with the same id"
        return f"{rows}: counted once" if self._repeated else ""

    def _not_repeated(self, made: list[Request], name: str, is_session: bool) -> list[Request]:
        """Of a row with an id, or of a session, the turns that no earlier row of that name had."""
        known = self._turns.setdefault(name, {})
        repeated = next((n for n in range(len(made), 0, -1) if made[n - 1].context.ids[-1] in known), 0)
        shift_s = 0.0
        if repeated:
            last = made[repeated - 1]
            name, answered_s = known[last.context.ids[-1]]
            shift_s = max(answered_s - last.arrival_s, 0.0)
        elif not is_session:
            name = self._names.of(name)
        self._repeated += repeated
        made = [replace(each, conversation=name, arrival_s=each.arrival_s + shift_s) for each in made[repeated:]]
        known.update((each.context.ids[-1], (name, each.arrival_s)) for each in made)
        return made

    def _new(self, made: list[Request]) -> list[Request]:
        """Of a row without an id, the turns that no earlier row had."""
        for number in range(len(made) - 2, -1, -1):
            found = self._ends.pop(made[number].context.ids[-1], None)
            if found is not None:
                name, ended_s = found
                shift_s = max(ended_s - made[number].arrival_s, 0.0)
                later = made[number + 1 :]
                made = [replace(each, conversation=name, arrival_s=each.arrival_s + shift_s) for each in later]
                break
        last = made[-1]
        self._ends[last.context.ids[-1]] = last.conversation or "", last.arrival_s
        return made


def _is_conversation(row: Mapping[str, Any], call: TextCall) -> bool:
    """Whether a row is what was said, and no prompt. A run of mini-swe-agent may end at a limit, behind a result."""
    return not RUNS.isdisjoint(row) or call.messages[-1].role == "assistant"


def _written(taken: Sequence[Turn]) -> list[tuple[float, float]] | None:
    """When each turn was asked and answered, s; None unless all messages behind the first prompt tell, in order.

    A first prompt without a time is taken to be asked when it was answered: mini-swe-agent notes none.
    """
    times_s: list[tuple[float, float]] = []
    for turn in taken:
        answered_s = turn.answer[-1].time_s if turn.answer else turn.prompt[-1].time_s
        asked_s = turn.prompt[-1].time_s
        asked_s = answered_s if asked_s is None and not times_s else asked_s
        if asked_s is None or answered_s is None:
            return None
        times_s.append((asked_s, answered_s))
    told = [time_s for pair in times_s for time_s in pair]
    return times_s if told == sorted(told) else None


def _timed(made: Sequence[Request], written: Sequence[tuple[float, float]]) -> list[Request]:
    """The requests with how long each answer took, and what each waited after the answer before it."""
    before_s = [None, *(answered_s for _, answered_s in written)]
    return [
        replace(each, answer_s=(answered_s - asked_s) or None, wait_s=None if ended_s is None else asked_s - ended_s)
        for each, (asked_s, answered_s), ended_s in zip(made, written, before_s, strict=False)
    ]


OPENAI_MESSAGES = Reader(
    "openai",
    "JSON or JSONL of messages: request bodies, batches, responses, logs, conversations; runs of agents (.traj)",
    _detects,
    _read,
)
