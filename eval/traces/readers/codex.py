"""Logs of Codex: ``~/.codex/sessions/**/rollout-*.jsonl``, a file a session.

Source: openai/codex ``protocol`` (``RolloutItem``). A line has a ``timestamp``, a ``type`` and a ``payload``. A
``token_count`` follows each call and counts its prompt; what the model wrote since the one before is its answer. In
releases up to late 2025 (``try_run_turn``, ``process_items``) it comes before the answer: an answer was written when
its tools had run, each call of a tool with its result, and a ``turn_context`` was when the next call began. A fork
repeats the lines of the session that it goes on with, mostly with its ``session_meta`` behind its own: a call is read
once. A subagent that is forked (``keep_forked_rollout_item``) has of these lines messages, last answers and all counts:
they are its history, and no calls. Turns that a user takes back (``thread_rolled_back``) stay in the file. What another
agent says is an ``inter_agent_communication`` or an item ``agent_message``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from eval.traces.reading.agent_log import AgentLog, Logged, Piece, Repairs, State, piece
from eval.traces.reading.chats import Message
from eval.traces.reading.content import message_of
from eval.traces.reading.files import Source
from eval.traces.reading.names import first_time
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Record, bad_field, count_in, decode
from eval.traces.reading.times import iso_seconds
from eval.traces.reading.tokenizer import TokenCount, counted, token_count
from eval.traces.request import InputKind, Request, TraceError

_COUNTS = ("input_tokens", "output_tokens", "cached_input_tokens")

_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")

_OF_AGENTS = "inter_agent_communication"

_AT_ONCE_S = 0.05
"""A fork writes what it repeats anew, with the time of the fork: a call of it takes less. At half of it as at twice: no
model has answered then, and a line is written in less than a millisecond."""


class _Count(NamedTuple):
    """A count that came before the answer that it is of."""

    usage: Mapping[str, int | None]
    at_s: float  # when that answer ended
    totals: Any  # of the session


@dataclass(slots=True)
class _Known:
    """What the files before tell."""

    answered: set[str] = field(default_factory=set)  # names of calls that were read
    threads: dict[str, tuple[str, str]] = field(default_factory=dict)  # by subagent: its session and conversation
    # By session and totals of a count in its file: the session whose call it counts. Forks repeat it.
    counted: dict[str, dict[bytes, str]] = field(default_factory=dict)


class _Line(msgspec.Struct):
    type: str = ""
    timestamp: str | None = None
    payload: dict[str, Any] | None = None


def _detects(record: Mapping[str, Any]) -> bool:
    return "payload" in record and record.get("type") in _TYPES


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    count, repairs = token_count(options), Repairs(notes)
    notes.add("real", "times, lengths of prompts and answers, messages, calls of tools, tool times")
    notes.add("rebuilt", f"lengths of single messages fit the counted prompts; {counted(options)}")
    notes.add("rebuilt", "what the provider had cached of a first prompt is shared by sessions with as much of it")
    session: _Session | None = None
    known = _Known()
    # A fork may lie before the session that it repeats, as sessions that were archived do.
    first_s = {path: first_time(source.only(path), _time_of) for path in source.files}
    for record in source.only(*sorted(source.files, key=first_s.__getitem__)).records():
        try:
            line = decode(record, _Line)
            if session is None or session.file != record.file:
                yield from session.end() if session else ()
                session = _Session(record.file, count, repairs, known)
            yield from session.add(record, line)
        except TraceError as error:
            notes.bad(error)
    yield from session.end() if session else ()


def _time_of(record: Record) -> float:
    return iso_seconds(record, "timestamp", decode(record, _Line).timestamp or "")


class _Session:
    """One file, line by line."""

    def __init__(self, file: str, count: TokenCount, repairs: Repairs, known: _Known) -> None:
        self.file = file
        self._count, self._repairs, self._known = count, repairs, known
        self._name, self._parent = "", ""
        self._ancestors: dict[str, None] = {}  # sessions whose lines this one may repeat
        self._origin = ""  # the session whose lines this one repeats, if not its own
        self._model: str | None = None
        self._log: AgentLog | None = None
        self._added: list[Piece] = []  # to the prompt of the call whose answer is read
        self._later: list[Piece] = []  # to the next prompt, since that answer began
        self._answer: list[Message] = []
        self._digest = blake2b(digest_size=16)  # of the items of the answer, which have ids that are unique
        self._start_s = self._later_s = self._end_s = 0.0
        self._anew = False
        self._states = [State()]  # of the log, before the first call and after each
        self._turns: list[int] = []  # how many calls there were before each message of the user
        self._counted: Any = None  # the totals of the last count: events repeat them
        self._early: _Count | None = None  # of the answer that is read, or comes next
        self._is_early = False  # whether the last answer that was counted had its count before it

    def add(self, record: Record, line: _Line) -> Iterator[Request]:
        """The next line; the request of a call where its tokens are counted."""
        payload = line.payload or {}
        if line.type == "session_meta":
            self._meta(payload)
        elif line.type == "turn_context":
            if self._early is not None:
                yield from self.end()
                self._early = None
            model = payload.get("model")
            self._model = model if isinstance(model, str) else self._model
        elif line.type == "compacted":
            yield from self.end()
            self._compacted(payload)
            if line.timestamp is not None:
                self._start_s = iso_seconds(record, "timestamp", line.timestamp)
        elif line.type in ("response_item", _OF_AGENTS):
            if line.timestamp is None:
                raise bad_field(record, "timestamp", "missing: when an item was written")
            if line.type == _OF_AGENTS:
                self._begin_turn()
            yield from self._item(payload, iso_seconds(record, "timestamp", line.timestamp))
        elif line.type == "event_msg" and payload.get("type") == "user_message":
            self._begin_turn()
        elif line.type == "event_msg" and payload.get("type") == "thread_rolled_back":
            yield from self._roll_back(payload.get("num_turns"))
        elif line.type == "event_msg" and payload.get("type") == "token_count":
            info = payload.get("info")
            if isinstance(info, Mapping) and info.get("total_token_usage") != self._counted:
                at_s = self._end_s if line.timestamp is None else iso_seconds(record, "timestamp", line.timestamp)
                yield from self._count_of(_counts(record, info.get("last_token_usage")), at_s, info)

    def _begin_turn(self) -> None:
        self._turns.append(len(self._states) - 1 + bool(self._answer))

    def _count_of(self, usage: Mapping[str, int | None], at_s: float, info: Mapping[str, Any]) -> Iterator[Request]:
        """A count: of the answer before it, or of the next one where there is none, or its results are written.

        One without a prompt is of no call: Codex estimates the tokens of a history that it compacted, or that is full.
        """
        if usage["input_tokens"] == 0 and not usage["output_tokens"]:
            self._counted = info.get("total_token_usage")
            return
        totals = info.get("total_token_usage")
        if isinstance(totals, Mapping):
            counted = self._known.counted.setdefault(self._name, {})
            counted.setdefault(msgspec.json.encode(totals), self._inherited(totals) or self._own)
        if self._early is not None and self._inherited(self._early.totals) and not self._inherited(totals):
            self._early = None  # a fork begins with the last count of the session before it, which is of no call here
        is_next = not self._answer or self._early is not None or (self._is_early and bool(self._later))
        if is_next:
            yield from self.end()
        self._counted = totals
        if is_next:
            self._early = _Count(usage, at_s, self._counted)
        else:
            yield from self.end(usage)
        if self._knows_ancestors() and not self._inherited(totals):
            self._origin, self._ancestors = self._name, {}  # nothing is repeated behind a call of its own

    def end(self, usage: Mapping[str, int | None] | None = None) -> Iterator[Request]:
        """The call whose answer was read, with its tokens if they were counted."""
        if not self._answer:
            return
        totals = self._counted
        if self._early is not None:
            usage, self._end_s, totals = self._early
        inherited, unread = self._inherited(totals), self._repeats_unread()
        origin = inherited or self._own
        logged = self._logged(usage or {}, totals, origin)
        self._repairs.repeated += unread
        lacks_tools = bool(inherited) and usage is not None and logged.name not in self._known.answered
        if lacks_tools or (unread and self._parent):
            self._take_as_history()
            return
        if usage is not None:
            self._is_early = self._early is not None
        self._early = None
        if self._log is None:
            name = self._name or self.file
            session, agent, parent = name, "0", None
            if self._parent:
                session, parent = self._known.threads.get(self._parent, (self._parent, f"{self._parent}/0"))
                agent = name
            self._log = AgentLog(session, agent, parent, self._repairs)
            self._known.threads[name] = session, self._log.conversation
        request = self._log.call(logged)
        if not unread and (origin == self._name or logged.name not in self._known.answered):
            yield request
        self._known.answered.add(logged.name)
        self._states.append(self._log.state())
        self._anew = False
        self._begin_prompt(self._later)

    def _begin_prompt(self, added: list[Piece]) -> None:
        """The next prompt, with what the history does not have."""
        self._added, self._later, self._answer = added, [], []
        self._digest = blake2b(digest_size=16)
        self._start_s = self._later_s

    def _take_as_history(self) -> None:
        """The answer is one of another session, without the calls of tools before it: it is part of the next prompt."""
        self._early = None
        said = [piece(each, self._count) for each in self._answer]
        self._begin_prompt([*self._added, *said, *self._later])

    @property
    def _own(self) -> str:
        """The session of a call that is of none before: where the file of none was read, all may be repeated."""
        return self._name if self._knows_ancestors() else self._origin

    def _knows_ancestors(self) -> bool:
        return any(name in self._known.counted for name in self._ancestors)

    def _repeats_unread(self) -> bool:
        """Whether a call is one of a session whose file was not read: it came before, nobody knows when."""
        if not self._ancestors or not self._added or self._knows_ancestors():
            return False
        return self._end_s - self._start_s < _AT_ONCE_S

    def _inherited(self, totals: Any) -> str | None:
        """The session whose call a count is of, if its lines are repeated here."""
        if not isinstance(totals, Mapping):
            return None
        key = msgspec.json.encode(totals)
        found = (self._known.counted.get(name, {}).get(key) for name in self._ancestors)
        return next(filter(None, found), None)

    def _roll_back(self, turns: Any) -> Iterator[Request]:
        """The user takes back the last turns: the next prompt goes on with what was before them."""
        yield from self.end()
        self._added, self._early = [], None
        undone = self._turns[-turns:] if isinstance(turns, int) and turns > 0 else []
        if undone and self._log is not None:
            del self._turns[-len(undone) :]
            self._log.back_to(self._states[undone[0]])

    def _meta(self, payload: Mapping[str, Any]) -> None:
        name = payload.get("id")
        self._origin = name if isinstance(name, str) and name else self.file
        if not self._name:
            self._name, self._parent = self._origin, _parent_of(payload.get("source")) or _parent_of(payload)
        told = (payload.get("forked_from_id"), self._origin)
        self._ancestors |= {each: None for each in told if isinstance(each, str) and each not in ("", self._name)}

    def _item(self, payload: Mapping[str, Any], at_s: float) -> Iterator[Request]:
        message = _message(payload)
        if message is None:
            return
        if message.role == "assistant":
            if self._later and self._early is None:
                yield from self.end()  # nobody counted the tokens of the call before
            if not self._answer and not self._added:
                self._start_s = at_s
            self._answer.append(message)
            self._digest.update(msgspec.json.encode(payload))
            self._end_s = at_s
            return
        kind: InputKind = "tool" if message.role == "tool" else "user"
        said = piece(message, self._count, None if _is_of_agent(payload) else kind)
        if self._answer:
            self._later.append(said)
            self._later_s = at_s
        else:
            self._added.append(said)
            self._start_s = at_s
            self._early = None  # of a call whose answer is not in the log, such as one that wrote a summary

    def _compacted(self, payload: Mapping[str, Any]) -> None:
        history = payload.get("replacement_history")
        items = history if isinstance(history, list) else [{"role": "user", "content": payload.get("message")}]
        messages = [message_of(item) for item in items if isinstance(item, Mapping)]
        self._added = [piece(each, self._count, "user") for each in messages if each is not None]
        self._anew, self._early = True, None

    def _logged(self, usage: Mapping[str, int | None], totals: Any, origin: str) -> Logged:
        self._digest.update(msgspec.json.encode([origin, totals]))
        return Logged(
            tuple(self._added),
            piece(Message("assistant", "\n".join(each.text for each in self._answer)), self._count),
            usage.get("input_tokens") or None,
            usage.get("output_tokens"),
            usage.get("cached_input_tokens") or 0,
            self._start_s,
            self._end_s,
            "tool_calls" if any(each.calls_tool for each in self._answer) else "stop",
            self._model,
            self._anew,
            self._digest.hexdigest(),
        )


def _is_of_agent(payload: Mapping[str, Any]) -> bool:
    """Whether an item is what another agent says."""
    return payload.keys() >= {"author", "recipient"}


def _message(payload: Mapping[str, Any]) -> Message | None:
    """The message of an item; None if a model reads nothing of it."""
    if not _is_of_agent(payload):
        return message_of(payload)
    return message_of({"role": "user", "content": payload.get("content") or payload.get("encrypted_content")})


def _counts(record: Record, usage: Any) -> dict[str, int | None]:
    """The tokens of a call.

    Raises:
        TraceError: a number is no number of tokens, such as a negative one.
    """
    counts = usage if isinstance(usage, Mapping) else {}
    return {name: count_in(record, f"payload.info.last_token_usage.{name}", counts.get(name)) for name in _COUNTS}


def _parent_of(source: Any) -> str:
    """The session that started this one as a subagent, from its head or the ``source`` in it; "" if none did."""
    if not isinstance(source, Mapping):
        return ""
    parent = source.get("parent_thread_id")
    return parent if isinstance(parent, str) else next(filter(None, map(_parent_of, source.values())), "")


CODEX = Reader(
    "codex",
    "logs of Codex (~/.codex/sessions, a folder or rollout-*.jsonl): your own day, with tool times",
    _detects,
    _read,
)
