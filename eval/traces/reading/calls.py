"""Logs of single calls with their texts: which call continues which, and answers that only a later prompt shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import blake2b
from itertools import takewhile

from eval.traces.arrivals import Stamper
from eval.traces.reading.chats import Message, Role, extended
from eval.traces.reading.clock import Piece, on_one_clock
from eval.traces.reading.fitted import Fitted
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.times import TOKEN_S, count_late, sorted_note
from eval.traces.reading.tokenizer import compared, token_count
from eval.traces.request import InputKind, Path, Request, StopReason


@dataclass(frozen=True, slots=True)
class TextCall:
    """One call. What the log does not tell is None."""

    messages: Sequence[Message]  # the whole prompt, or what it adds to the session's history
    tokens: Sequence[int] = ()  # the whole prompt, where token ids are all that is known of it
    answer: Sequence[Message] = ()  # empty where it is not in the log
    adds: bool = False  # the messages are what the prompt adds
    session: str | None = None
    of_agents: bool = False  # the session may be a task of several agents, whose calls run beside each other
    start_s: float | None = None
    end_s: float | None = None
    delay_s: float | None = None  # from the end of the answer before
    prompt_tokens: int | None = None  # as the server counted them, cached ones included
    output_tokens: int | None = None
    thought_tokens: int = 0  # of the output: in no text of the log
    stop: StopReason | None = None
    model: str | None = None
    where: str = ""  # its row, for errors


@dataclass(slots=True)
class _Draft:
    """A call while its answer may still turn up in a later prompt."""

    call: TextCall
    conversation: str
    prompt: Path
    context: Path
    stop: StopReason | None
    number: int
    messages: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, slots=True)
class _Read:
    """A call as it was read: its prompt as a path, and of its messages what is asked for later."""

    call: TextCall
    prompt: Path | None  # None: it goes on with a history that is not known yet
    context: Path | None


class CallLog:
    """Calls in order of arrival, or of the log where they have no times, as conversations.

    A call continues the one whose prompt, and answer where it is known, its own prompt begins with; or the last one of
    its session, where calls name sessions. In a task of several agents, one that has nothing of an agent's history, or
    that comes while that agent is answered, is another agent's, unless it goes on with that answer.
    """

    def __init__(self, options: Options, notes: Notes) -> None:
        self._count, self._texts = token_count(options), options.texts
        self._stamper = Stamper(options.arrivals)
        self._read: list[_Read] = []
        self._drafts: list[_Draft] = []
        self._latest: dict[str, _Draft] = {}  # by conversation
        self._agents: dict[str, list[str]] = {}  # conversations of a task, by session
        self._tails: dict[int, _Draft] = {}  # by the last unit of a prompt or a context
        # Without an answer, by the last unit of the prompt and by session: sessions may ask the same.
        self._open: dict[int, dict[str | None, _Draft]] = {}
        self._unknown = 0  # answers whose text nobody knows
        self._fitted = Fitted()
        self._told: list[tuple[int, int]] = []  # tokens of prompts as read, and as counted by their servers
        self._notes = notes

    def add(self, call: TextCall) -> None:
        """The next call of the log; one without messages is nothing."""
        if not call.messages:
            return
        if call.adds:
            self._read.append(_Read(call, None, None))
            return
        prompt = extended(Path((), ()), call.messages, self._count)
        context = extended(prompt, call.answer, self._count)
        if not self._texts:  # a log may be larger than memory
            call = replace(call, messages=_without_texts(call.messages), answer=_without_texts(call.answer))
        self._read.append(_Read(call, prompt, context))

    def _link(self) -> None:
        """Find out which call continues which."""
        times_s = [each.call.start_s for each in self._read if each.call.start_s is not None and not each.call.adds]
        if len(times_s) == len(self._read):  # exports of observations have the newest first
            self._read.sort(key=lambda each: each.call.start_s or 0.0)
            self._notes.add("sorted", sorted_note(count_late(times_s), len(times_s)))
        for each in self._read:
            self._draft(each)
        self._read = []

    def _draft(self, read: _Read) -> None:
        call, fitted = read.call, self._fitted
        before = self._latest.get(call.session) if call.session else None
        if read.prompt is None:
            prompt = extended(self._history(before) if before else Path((), ()), call.messages, self._count)
            context = extended(prompt, call.answer, self._count)
        else:
            prompt, context = read.prompt, read.context or read.prompt
        if call.prompt_tokens:
            self._told.append((len(prompt), call.prompt_tokens))
        prompt, said = fitted.prompt(prompt, len(prompt), call.prompt_tokens or None), len(context) - len(prompt)
        context = fitted.context(context, len(context), len(prompt) + _said_tokens(call, said))
        if read.prompt is not None:
            self._answers(call, prompt)
        conversation, known = self._conversation(call, prompt, before)
        draft = _Draft(call, conversation, prompt, prompt, call.stop, len(self._drafts))
        if self._texts:
            # Of a whole prompt, the messages behind the context before it.
            new = call.messages if call.adds else call.messages[known:]
            draft.messages = tuple((each.role, each.text) for each in new if each.role != "assistant")
        if call.answer:
            _answer(draft, call.answer, context)
        else:
            self._open.setdefault(prompt.ids[-1], {})[call.session] = draft
        self._drafts.append(draft)
        self._latest[conversation] = self._tails[prompt.ids[-1]] = self._tails[draft.context.ids[-1]] = draft

    def requests(self) -> Iterator[Request]:
        """All of them, once the log is read.

        Raises:
            TraceError: some conversations have times and some have none.
        """
        yield from on_one_clock(self.pieces(), self._notes, self._stamper.said)

    def pieces(self) -> Iterator[Piece]:
        """The same by conversation, for a log that holds more than calls."""
        self._link()
        unknown = sum(draft.context is draft.prompt and draft.call.output_tokens is None for draft in self._drafts)
        if unknown:
            self._notes.add("assumed", f"{unknown:,} answers are not in the log: they count as empty")
        self._notes.add("rebuilt", self._fitted.said())
        self._notes.add("assumed", compared(self._told))
        conversations: dict[str, list[_Draft]] = {}
        for draft in self._drafts:
            conversations.setdefault(draft.conversation, []).append(draft)
        for name, drafts in conversations.items():
            told = [draft.call.start_s for draft in drafts if draft.call.start_s is not None]
            timed = len(told) == len(drafts)
            if drafts[0].call.start_s is None:
                told = []  # all of its times are drawn: later ones cannot place it
            rows = [draft.call.where or f"call {draft.number + 1}" for draft in drafts]
            made = list(_requests(name, drafts, self._starts(drafts, timed)))
            drawn = not timed and (not told or any(draft.call.delay_s is None for draft in drafts[1:]))
            yield Piece(rows, told, made, drawn)

    def _history(self, before: _Draft) -> Path:
        """What the next prompt of a session begins with; an unknown answer is a unit of its own."""
        if before.context is not before.prompt or not before.call.output_tokens:
            return before.context
        self._unknown += 1
        digest = blake2b(b"unknown answer" + self._unknown.to_bytes(8), digest_size=8).digest()
        before.context = before.prompt.plus(before.call.output_tokens, int.from_bytes(digest))
        self._fitted.keep(before.context)
        return before.context

    def _answers(self, call: TextCall, prompt: Path) -> None:
        """Find answers of earlier calls within a whole prompt: of its session, or else of the last one that asked."""
        messages = call.messages
        for number in range(1, len(messages)):
            asked = self._open.get(prompt.ids[number - 1])
            said = tuple(takewhile(lambda each: each.role == "assistant", messages[number:]))
            if asked and said:
                draft = asked.pop(call.session) if call.session in asked else asked.popitem()[1]
                end = number + len(said)
                _answer(draft, said, prompt.first(end))
                self._tails[draft.context.ids[-1]] = draft

    def _conversation(self, call: TextCall, prompt: Path, before: _Draft | None) -> tuple[str, int]:
        """Whose turn a call is, and how many messages of its prompt that conversation has already."""
        if call.session and call.of_agents and call.start_s is not None and call.delay_s is None:
            return self._of_agent(call, call.session, prompt)
        if call.session:
            known = prompt.common(before.context) if before else 0
            return call.session, prompt.unit_at(known)
        for number in range(len(prompt.ids), 0, -1):
            draft = self._tails.get(prompt.ids[number - 1])
            if draft is None or number == len(prompt.ids) == len(draft.prompt.ids):
                continue  # an equal prompt is another user's, or a second attempt
            if self._latest[draft.conversation] is draft:
                return draft.conversation, number
            break
        return f"#{len(self._drafts)}", 0

    def _of_agent(self, call: TextCall, session: str, prompt: Path) -> tuple[str, int]:
        """Which agent of a task calls, the one whose history the prompt has most of before all others.

        A prompt may go on with messages of it alone: behind a system prompt with the time in it, or without the oldest.
        """
        agents = self._agents.setdefault(session, [])
        shared = [prompt.common(self._latest[name].context) for name in agents]
        said = {(each.role, each.text) for each in call.messages}
        for known, number in sorted(((known, number) for number, known in enumerate(shared)), reverse=True):
            name = agents[number]
            latest = self._latest[name]
            is_free = (latest.call.end_s or 0.0) <= (call.start_s or 0.0)
            goes_on = known or any((each.role, each.text) in said for each in latest.call.messages)
            if known == len(latest.context) or (is_free and goes_on):
                return name, prompt.unit_at(known)
        agents.append(f"{session}#{len(agents) + 1}" if agents else session)
        return agents[-1], 0

    def _starts(self, drafts: Sequence[_Draft], timed: bool) -> list[float]:
        if timed:
            return [draft.call.start_s or 0.0 for draft in drafts]
        stamps = self._stamper.stamp(len(drafts)).times_s
        starts: list[float] = []
        for number, draft in enumerate(drafts):
            at_s = stamps[number]
            if starts:
                last = drafts[number - 1]
                waited_s = stamps[number] - stamps[number - 1]
                if draft.call.delay_s is not None:
                    waited_s = draft.call.delay_s + TOKEN_S * _output(last)
                at_s = starts[-1] + waited_s
            elif draft.call.start_s is not None:
                at_s = draft.call.start_s
            starts.append(at_s)
        return starts


def _said_tokens(call: TextCall, estimate: int) -> int:
    """Tokens of the text of an answer: as counted, if the prompt was counted too, or as estimated."""
    if call.prompt_tokens and call.output_tokens and call.output_tokens > call.thought_tokens:
        return call.output_tokens - call.thought_tokens
    return estimate


@cache
def _said(role: Role, calls_tool: bool) -> Message:
    return Message(role, "", None, calls_tool)


def _without_texts(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(_said(each.role, each.calls_tool) for each in messages)


def _answer(draft: _Draft, said: Sequence[Message], context: Path) -> None:
    draft.context = context
    if draft.stop is None:
        draft.stop = "tool_calls" if said[-1].calls_tool else "stop"


def _requests(name: str, drafts: Sequence[_Draft], starts_s: Sequence[float]) -> Iterator[Request]:
    ended_s: float | None = None
    for draft, start_s in zip(drafts, starts_s, strict=True):
        call = draft.call
        wait_s = call.delay_s
        if wait_s is None and ended_s is not None:
            wait_s = max(start_s - ended_s, 0.0)
        ended_s = call.end_s
        yield Request(
            start_s,
            name,
            draft.prompt,
            draft.context,
            len(draft.prompt),
            _output(draft),
            messages=draft.messages,
            stop=draft.stop,
            input=_input(call.messages),
            session=call.session,
            model=call.model,
            answer_s=None if call.end_s is None else max(call.end_s - start_s, 0.0),
            wait_s=wait_s,
        )


def _output(draft: _Draft) -> int:
    measured = len(draft.context) - len(draft.prompt)
    return measured if draft.call.output_tokens is None else draft.call.output_tokens


def _input(messages: Sequence[Message]) -> InputKind | None:
    last = messages[-1].role
    return "tool" if last == "tool" else "user" if last == "user" else None
