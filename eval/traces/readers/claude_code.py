"""Logs of Claude Code: ``~/.claude/projects/**/*.jsonl``, a file a session, files of subagents beside or below it.

A line is a message; an answer of the model comes in several lines with one ``message.id``, and its ``usage`` counts
the prompt: ``input_tokens`` and both ``cache_*_input_tokens``. Resumed sessions repeat lines of earlier ones, and so do
subagents that begin with the history of their session, as those that compact it: a call is read once. Some versions
give repeated lines the id of the new session; with others they keep the old one, and the first new line names one of
them as its parent. After a compaction the history is a summary. A user who edits an earlier message goes back to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from eval.traces.reading.agent_log import AgentLog, Logged, Piece, Repairs, State, piece
from eval.traces.reading.chats import Message
from eval.traces.reading.content import block_types, message_of, stop_reason
from eval.traces.reading.files import Source
from eval.traces.reading.names import first_time
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Count, Record, bad_field, decode
from eval.traces.reading.times import iso_seconds
from eval.traces.reading.tokenizer import TokenCount, counted, token_count
from eval.traces.request import Request, TraceError

_MAIN = "0"
_MESSAGES = ("user", "assistant")
_AGENT_FILE = "agent-"  # how names of files of subagents begin


class _Usage(msgspec.Struct):
    input_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None
    output_tokens: Count | None = None
    iterations: list[_Usage] | None = None
    type: str = "message"  # of an iteration

    def first(self) -> _Usage:
        """That of the prompt: the API adds those of all iterations of an answer, between which it runs tools itself.

        Some clients log iterations without what was cached.
        """
        rounds = [each for each in self.iterations or () if each.type == "message"]
        whole = bool(rounds) and (rounds[0].cache_read_input_tokens is not None or not self.cache_read_input_tokens)
        return rounds[0] if len(rounds) > 1 and whole else self


class _Message(msgspec.Struct):
    role: str = ""
    id: str | None = None
    model: str | None = None
    content: Any = None
    usage: _Usage | None = None
    stop_reason: str | None = None


class _Line(msgspec.Struct, rename="camel"):
    type: str = ""
    session_id: str | None = None
    uuid: str | None = None
    parent_uuid: str | msgspec.UnsetType | None = msgspec.UNSET
    agent_id: str | None = None
    is_sidechain: bool = False
    timestamp: str | None = None
    message: _Message | None = None
    is_compact_summary: bool = False
    is_api_error_message: bool = False


def _detects(record: Mapping[str, Any]) -> bool:
    return "sessionId" in record and "type" in record and ("uuid" in record or "message" in record)


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log = _Log(token_count(options), Repairs(notes))
    notes.add("real", "times, lengths of prompts and answers, messages, how answers ended, subagents, tool times")
    notes.add("rebuilt", f"lengths of single messages fit the counted prompts; {counted(options)}")
    notes.add("rebuilt", "system prompts and tools are not in the log: what the provider had cached of them is shared")
    for record in source.only(*_in_order(source)).records():
        try:
            line = decode(record, _Line)
            yield from log.add(record, line)
        except TraceError as error:
            notes.bad(error)
    yield from log.end()


def _in_order(source: Source) -> list[Path]:
    """The files of a source: a session before those that go on with it, and all before subagents that repeat its calls.

    Files are named by random ids. One that repeats all of another has the same first time, and may come before it.
    """
    first_s = {path: first_time(source.only(path), _time_of) for path in source.files}
    return sorted(source.files, key=lambda path: (path.name.startswith(_AGENT_FILE), first_s[path]))


def _time_of(record: Record) -> float:
    return _seconds(record, decode(record, _Line))


def _seconds(record: Record, line: _Line) -> float:
    """When a line was written.

    Raises:
        TraceError: it does not tell, or it is no time.
    """
    if line.timestamp is None:
        raise bad_field(record, "timestamp", "missing: when a message was said")
    return iso_seconds(record, "timestamp", line.timestamp)


class _Log:
    """All conversations of the files, line by line."""

    def __init__(self, count: TokenCount, repairs: Repairs) -> None:
        self._count, self._repairs = count, repairs
        self._agents: dict[tuple[str, str], _Agent] = {}
        self._answered: set[str] = set()  # ids of answers that were read, in this file or another
        self._chains: dict[str, str] = {}  # of side chains that name no agent: by line, which one it is
        self._file = ""
        self._of_file: dict[_Agent, None] = {}  # those with a line in the file that is read, in order

    def add(self, record: Record, line: _Line) -> Iterator[Request]:
        """The next line; an answer is complete when the next one begins, or the file ends."""
        if record.file != self._file:
            yield from self.end()
            self._file = record.file
        session = line.session_id or _nameless(record.file)
        agent = self._agent(session, self._number(line))
        if agent.has_read(line.uuid):
            return  # in a file before, or above: a resumed session repeats it
        if agent.is_new and not line.is_sidechain and line.parent_uuid and not agent.has_read(line.parent_uuid):
            other = next((each for each in self._agents.values() if each.has_read(line.parent_uuid)), None)
            if other is not None:
                yield from other.end()
                agent.go_on_with(other, line)
        self._of_file[agent] = None
        if line.message is not None and line.type in _MESSAGES and not line.is_api_error_message:
            at_s = _seconds(record, line)
            if line.type == "assistant":
                yield from agent.answer(line, line.message, at_s)
            else:
                yield from agent.say(line, line.message, at_s)
        elif line.type == "attachment" and line.timestamp is not None:
            agent.attach(_seconds(record, line))
        agent.seen(line)

    def end(self) -> Iterator[Request]:
        """The last answer of every conversation of the file."""
        for agent in self._of_file:
            yield from agent.end()
        self._of_file = {}

    def _number(self, line: _Line) -> str:
        if line.agent_id:
            return line.agent_id
        if not line.is_sidechain or line.uuid is None:
            return _MAIN
        chain = self._chains.get(line.parent_uuid or "", line.uuid)
        self._chains[line.uuid] = chain
        return chain

    def _agent(self, session: str, number: str) -> _Agent:
        found = self._agents.get((session, number))
        if found is None:
            parent = None if number == _MAIN else f"{session}/{_MAIN}"
            log = AgentLog(session, number, parent, self._repairs)
            found = self._agents[session, number] = _Agent(log, self._count, self._answered)
        return found


def _nameless(file: str) -> str:
    """A name for the session of a file whose lines name none; paths of projects hold names of people."""
    return blake2b(file.encode(errors="replace"), digest_size=6).hexdigest()


class _Agent:
    """One conversation: what was said since its last answer, and the answer that is being read."""

    def __init__(self, log: AgentLog, count: TokenCount, answered: set[str]) -> None:
        self._log, self._count, self._answered = log, count, answered
        self._added: list[Piece] = []
        self._added_s: float | None = None  # when the last of them was said, or attached
        self._anew = False
        self._answer: _Answer | None = None
        self._calls = 0
        self._states: list[State] = [log.state()]  # before the first call and after each
        self._place: dict[str, int] = {}  # by line, how many calls there were by then
        self._summed: dict[str, tuple[Piece, ...]] = {}  # by line before the next call, what begins with a summary

    @property
    def is_new(self) -> bool:
        """Whether no line with a message was read."""
        return not self._calls and self._added_s is None

    def has_read(self, uuid: str | msgspec.UnsetType | None) -> bool:
        """Whether a line is one of this conversation."""
        return uuid in self._place

    def go_on_with(self, other: _Agent, line: _Line) -> None:
        """Begin as another conversation was at the parent of a line: this one is that one, resumed or forked."""
        place = other._place_of(line)
        self._log.go_on_with(other._log, other._states[place])
        self._calls, self._states = place, other._states[: place + 1]
        self._place = {uuid: calls for uuid, calls in other._place.items() if calls <= place}
        if place == other._calls:
            self._added, self._anew = [*other._added], other._anew

    def say(self, line: _Line, message: _Message, at_s: float) -> Iterator[Request]:
        """A user's text, or a tool's result."""
        types = block_types(message.content)
        result = "tool_result" in types
        # Null is the parent of a first message, and another such message is that one edited. Absent is not known.
        place = 0 if line.parent_uuid is None else self._place_of(line)
        if not result and place < self._calls and not line.is_compact_summary:
            yield from self.end()
            self._log.back_to(self._states[place])
            self._added = [*self._summed.get(line.parent_uuid or "", ())]
            self._anew = bool(self._added)
        if line.is_compact_summary:
            self._anew, self._added = True, []
        said = message_of({"role": "user", "content": message.content}) or Message("user", "")
        self._added.append(piece(said, self._count, "tool" if result else "user"))
        self._added_s = at_s

    def attach(self, at_s: float) -> None:
        """What the client adds to a prompt, such as a text that was typed while an answer was written."""
        self._added_s = at_s

    def answer(self, line: _Line, message: _Message, at_s: float) -> Iterator[Request]:
        """A line of an answer."""
        if message.model == "<synthetic>":
            return  # an error that the client shows
        key = message.id or line.uuid or ""
        if self._answer is None or self._answer.key != key:
            yield from self.end()
            self._calls += 1
            start_s = at_s if self._added_s is None else min(self._added_s, at_s)
            self._answer = _Answer(key, tuple(self._added), start_s, self._anew)
            self._added, self._added_s, self._anew = [], None, False
        self._answer.add(message, at_s)

    def end(self) -> Iterator[Request]:
        """The call of the answer that was read, unless another file had it."""
        if self._answer is None:
            return
        answer, self._answer = self._answer, None
        request = self._log.call(answer.logged(self._count))
        self._states.append(self._log.state())
        if answer.key not in self._answered:
            self._answered.add(answer.key)
            yield request

    def seen(self, line: _Line) -> None:
        """Where a line stands: later lines name it as their parent."""
        if line.uuid is not None:
            self._place[line.uuid] = self._calls if line.type == "assistant" else self._place_of(line)
            if self._anew:
                self._summed[line.uuid] = tuple(self._added)

    def _place_of(self, line: _Line) -> int:
        """How many calls there were by the parent of a line; all of them where it is not known."""
        return self._place.get(line.parent_uuid or "", self._calls)


class _Answer:
    """The lines of one answer."""

    def __init__(self, key: str, added: tuple[Piece, ...], start_s: float, anew: bool) -> None:
        self.key = key
        self._added, self._start_s, self._end_s, self._anew = added, start_s, start_s, anew
        self._texts: list[str] = []
        self._usage = _Usage()
        self._stop: str | None = None
        self._model: str | None = None
        self._calls_tool = False

    def add(self, message: _Message, at_s: float) -> None:
        said = message_of({"role": "assistant", "content": message.content})
        if said is not None:
            self._texts.append(said.text)
            self._calls_tool |= said.calls_tool
        if message.usage is not None:
            # The first lines of a streamed answer count only some of its tokens.
            output = max(self._usage.output_tokens or 0, message.usage.output_tokens or 0)
            self._usage = message.usage
            self._usage.output_tokens = output
        self._stop = message.stop_reason or self._stop
        self._model = message.model or self._model
        self._end_s = max(self._end_s, at_s)

    def logged(self, count: TokenCount) -> Logged:
        usage = self._usage
        asked = usage.first()
        parts = (asked.input_tokens, asked.cache_creation_input_tokens, asked.cache_read_input_tokens)
        known = sum(part or 0 for part in parts)
        stop = stop_reason(self._stop) or ("tool_calls" if self._calls_tool else None)
        return Logged(
            self._added,
            piece(Message("assistant", "\n".join(self._texts)), count),
            known or None,
            usage.output_tokens or None,
            asked.cache_read_input_tokens or 0,
            self._start_s,
            self._end_s,
            stop,
            self._model,
            self._anew,
            self.key,
        )


CLAUDE_CODE = Reader(
    "claude-code",
    "logs of Claude Code (~/.claude/projects, a folder or a file): your own day, with subagents and tool times",
    _detects,
    _read,
)
