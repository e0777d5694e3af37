"""Sessions of local agents: the log has every message and, of every call, how many tokens its prompt had.

What the log does not have is the system prompt and the tools: they are what is left of the first prompt. Lengths of
messages are fitted so that every prompt has the tokens that were counted for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

from eval.traces.reading.chats import Message
from eval.traces.reading.notes import Notes
from eval.traces.reading.tokenizer import TokenCount
from eval.traces.request import InputKind, Path, Request, StopReason


@dataclass(frozen=True, slots=True)
class Piece:
    """A message of a log, without its text."""

    key: bytes  # its hash
    tokens: int  # as far as its length tells
    kind: InputKind | None = None


@dataclass(frozen=True, slots=True)
class Logged:
    """One call as it was logged. Tokens are None where none were counted."""

    added: Sequence[Piece]  # what its prompt has and the context before it has not
    answer: Piece
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int  # that the provider read from its own cache
    start_s: float
    end_s: float
    stop: StopReason | None
    model: str | None
    anew: bool = False  # the history was replaced by a summary, which is the first of what was added
    name: str = ""  # the same in every log that repeats the call; empty: no other does


class State(NamedTuple):
    """A conversation behind a call, or before the first one."""

    prompt: Path = Path((), ())  # of the call
    context: Path = Path((), ())
    end_s: float | None = None  # of its answer


class Repairs:
    """How often histories were not what the log lets expect; said in the notes of the trace."""

    def __init__(self, notes: Notes) -> None:
        self.dropped = self.cut = self.compacted = self.rewound = self.early = self.repeated = 0
        notes.add("rebuilt", self._said)

    def _said(self) -> str:
        found = {
            "last answers are shorter in the next prompt, as where thoughts are dropped": self.dropped,
            "prompts are shorter than their history with no word of why: taken to share the system prompt, and of the "
            "history what the provider had cached of it": self.cut,
            "histories were replaced by a summary": self.compacted,
            "conversations went back to an earlier message": self.rewound,
            "calls were logged before the end of the answer before them, as where a clock is set back: they start at "
            "that end": self.early,
            "calls are repeated in a fork of a session that is not in the trace: they are its history": self.repeated,
        }
        return "; ".join(f"{times:,} {what}" for what, times in found.items() if times)


def piece(message: Message, count: TokenCount, kind: InputKind | None = None) -> Piece:
    """A message as its hash and length."""
    digest = blake2b(message.role.encode() + b"\0", digest_size=8)
    digest.update(message.text.encode(errors="surrogatepass"))
    return Piece(digest.digest(), count(message.text), kind)


class AgentLog:
    """One conversation of an agent, call by call."""

    def __init__(self, session: str, agent: str, parent: str | None, repairs: Repairs) -> None:
        self.conversation = f"{session}/{agent}"
        self._session, self._parent = session, parent
        self._repairs = repairs
        self._own = ""  # stands for the part of the system prompt that other sessions do not share
        self._system = Path((), ())
        self._prompt = Path((), ())  # of the last call
        self._context = Path((), ())
        self._end_s: float | None = None
        self._free_s = -math.inf  # when its own last answer ended: before that it makes no call

    def state(self) -> State:
        """What ``back_to`` needs to go back to this moment."""
        return State(self._prompt, self._context, self._end_s)

    def back_to(self, state: State) -> None:
        """The user went back to an earlier message."""
        self._repairs.rewound += state.context is not self._context
        # Before the first message there was the system prompt.
        self._prompt = state.prompt if state.context.ids else self._system
        self._context = state.context if state.context.ids else self._system

    def go_on_with(self, other: AgentLog, state: State) -> None:
        """Begin as another conversation was at a moment."""
        self._own, self._system = other._own, other._system
        self._prompt, self._context, self._end_s = other._prompt, other._context, state.end_s
        if state.context is not self._context:
            self.back_to(state)

    def call(self, call: Logged) -> Request:
        """The request of the next call."""
        start_s = max(call.start_s, self._free_s)
        self._repairs.early += start_s > call.start_s
        total = call.prompt_tokens
        estimate = sum(each.tokens for each in call.added)
        if not self._context.ids:
            self._system = self._first(call, estimate)
            prompt = self._and(self._system, call.added, None if total is None else total - len(self._system))
        elif total is None:
            base = self._system if call.anew else self._context
            prompt = self._and(base, call.added, None)
        else:
            prompt = self._next(call, total, estimate)
        self._repairs.compacted += call.anew
        context = self._and(prompt, (call.answer,), max(call.output_tokens or call.answer.tokens, 1))
        waited_s = None if self._end_s is None else max(start_s - self._end_s, 0.0)
        self._prompt, self._context = prompt, context
        self._end_s = self._free_s = max(call.end_s, start_s)
        return Request(
            start_s,
            self.conversation,
            prompt,
            context,
            len(prompt),
            len(context) - len(prompt),
            stop=call.stop,
            input=call.added[-1].kind if call.added else None,
            session=self._session,
            parent=self._parent,
            model=call.model,
            answer_s=self._end_s - start_s,
            wait_s=waited_s,
        )

    def _first(self, call: Logged, estimate: int) -> Path:
        """The system prompt and the tools: what the provider had cached of them is shared with other sessions."""
        if call.prompt_tokens is None:
            return Path((), ())
        hidden = max(call.prompt_tokens - estimate, 0)
        shared = min(call.cached_tokens, hidden)
        path = self._and(Path((), ()), (Piece((call.model or "").encode(), 1),), shared) if shared else Path((), ())
        # A session that was resumed or forked repeats the calls of the one that it goes on with, prompts and all.
        self._own = self._own or call.name or self.conversation
        own = Piece(self._own.encode(), 1)
        return self._and(path, (own,), hidden - shared) if hidden > shared else path

    def _next(self, call: Logged, total: int, estimate: int) -> Path:
        """A later prompt of so many tokens: as much of the history as fits."""
        pieces = tuple(call.added)
        if not call.anew:
            if total - len(self._context) >= len(pieces):
                return self._and(self._context, pieces, total - len(self._context))
            room = total - len(self._prompt)
            if room > len(pieces):
                self._repairs.dropped += 1
                shorter = Piece(b"shorter" + call.answer.key, max(room - estimate, 1))
                return self._and(self._prompt, (shorter, *pieces), room)
            self._repairs.cut += 1
            cut = Piece(b"cut" + call.answer.key, 1)
            # What was cached of the prompt are its first tokens: it begins with so much of the history.
            kept = self._context.first(self._context.unit_at(call.cached_tokens))
            if len(kept) > len(self._system) and total - len(kept) > len(pieces):
                cut = replace(cut, tokens=max(total - len(kept) - estimate, 1))
                return self._and(kept, (cut, *pieces), total - len(kept))
            pieces = (replace(cut, tokens=max(total - len(self._system) - estimate, 1)), *pieces)
        # The system prompt and the tools, or of them what other sessions share, or nothing.
        heads = [self._system.first(units) for units in (len(self._system.ids), 1)]
        base = next((each for each in heads if total - len(each) >= len(pieces)), Path((), ()))
        return self._and(base, pieces, max(total - len(base), 1))

    @staticmethod
    def _and(path: Path, pieces: Sequence[Piece], tokens: int | None) -> Path:
        """A path, and units of so many tokens in all behind it. Equal ids have equal ends, as both are hashed."""
        ids, ends = tuple(path.ids), tuple(path.ends)
        if not pieces and tokens:
            pieces = (Piece(b"more", tokens),)
        lengths = [each.tokens for each in pieces] if tokens is None else _spread(tokens, pieces)
        for each, length in zip(pieces, lengths, strict=True):
            end = (ends[-1] if ends else 0) + length
            parent = ids[-1] if ids else 0
            digest = blake2b(parent.to_bytes(8) + end.to_bytes(8) + each.key, digest_size=8).digest()
            ids, ends = (*ids, int.from_bytes(digest)), (*ends, end)
        return Path(ids, ends)


def _spread(tokens: int, pieces: Sequence[Piece]) -> list[int]:
    """So many tokens over the pieces, in proportion to their lengths, at least one each."""
    left, weight, lengths = max(tokens, len(pieces)), sum(each.tokens for each in pieces), []
    for number, each in enumerate(pieces):
        behind = len(pieces) - number - 1
        length = min(max(round(left * each.tokens / max(weight, 1)), 1), left - behind) if behind else left
        lengths.append(length)
        left, weight = left - length, weight - each.tokens
    return lengths
