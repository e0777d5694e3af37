"""Logs of a SGLang server with ``--log-requests``, as text or JSON, and files of ``--export-metrics-to-file-dir``.

Source: sglang 0.5.23, ``srt/utils/request_logger.py`` and ``srt/observability/request_metrics_exporter.py``. With
``--log-requests-level 3`` a finished request has its token ids and those of the answer: all is real. At lower levels
there are lengths alone, and what prompts share is known of named sessions only. A request with ``session_params`` has
what it adds to its session. An answer that is streamed in increments is in the log with its last one alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count
from typing import Any

from eval.traces.reading.collected import line_of, whole_lines
from eval.traces.reading.content import stop_reason
from eval.traces.reading.files import Source
from eval.traces.reading.fitted import Fitted
from eval.traces.reading.lengths import Call, holds_history, rebuilt
from eval.traces.reading.log_line import LogLine, is_of_vllm, line_seconds, logged_line
from eval.traces.reading.names import first_time
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.reading.prompts import BLOCK_TOKENS, Blocks, TextPrompts, token_prompt
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Record, bad_field, count_in, fields_of
from eval.traces.reading.times import iso_seconds
from eval.traces.reading.tokenizer import compared, counted
from eval.traces.request import Path, Request, StopReason, TraceError

_CUT = "..."  # in the middle of what level 2 shortens
_LARGEST = 1 << 63  # ids of tokens are less
_NOT_READ = (
    "a log of vLLM, which is not read: give calls as a client or a proxy logs them (--format openai), "
    "or results of vllm bench serve --save-result --save-detailed (--format bench-serving)"
)
_LEVEL = "--log-requests-level 3 logs the prompts"
_NAMESPACE = ("extra_key", "cache_salt", "lora_id", "lora_path")
"""Fields that SGLang looks a prompt up with: equal tokens with others of them share nothing."""


@dataclass(frozen=True, slots=True)
class _Served:
    """A request and its answer."""

    start_s: float
    answer_s: float | None
    prompt_tokens: int
    output_tokens: int
    stop: StopReason | None
    session: str | None
    path: Path | None  # None: the prompt is not in the log
    context: Path | None
    by_line: bool  # the start is on the clock of the lines


def _detects(record: Mapping[str, Any]) -> bool:
    if "request_parameters" in record or str(record.get("event", "")).startswith("request."):
        return True
    line = line_of(record)
    return line is not None and (logged_line(line) is not None or is_of_vllm(line))


def _read(source: Source, options: Options, notes: Notes) -> Iterator[Request]:
    log = _Log(options)
    # A log that is rotated goes on in a file whose name may come first.
    first_s = {path: first_time(source.only(path), _time_of) for path in source.files}
    for record in whole_lines(source.only(*sorted(source.files, key=first_s.__getitem__)).records()):
        try:
            line = _line(record)
            if line is not None:
                log.add(record, line)
        except TraceError as error:
            notes.bad(error)
    yield from log.requests(notes)


def _time_of(record: Record) -> float:
    """When a line was written, of any line that tells.

    Raises:
        TraceError: it does not.
    """
    fields = fields_of(record)
    line, told = line_of(fields), fields.get("timestamp")
    time_s = None if line is None else line_seconds(line)
    if time_s is None:
        return iso_seconds(record, "timestamp", str(told))
    return time_s


def _line(record: Record) -> LogLine | None:
    """What a record says of a request; None where it is another line of the log."""
    fields = fields_of(record)
    if "line" in fields:
        line = str(fields["line"])
        found = logged_line(line)
        if found is None and is_of_vllm(line):
            raise TraceError(f"{record.where}: {_NOT_READ}")
        return found
    if "request_parameters" in fields:
        asked = fields["request_parameters"]
        try:
            parameters = json.loads(asked) if isinstance(asked, str) else asked
        except (ValueError, RecursionError):
            raise bad_field(record, "request_parameters", "not JSON") from None
        meta = {name: fields[name] for name in fields if name != "request_parameters"}
        return LogLine("finished", None, parameters if isinstance(parameters, Mapping) else {}, {"meta_info": meta})
    return logged_line(json.dumps(dict(fields)))


class _Log:
    """Requests by their ids, from the line that one came with to the line that it ended with."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._texts: TextPrompts | None = None
        self._received: dict[str, tuple[float | None, Record, LogLine]] = {}
        self._served: list[_Served] = []
        self._fitted = Fitted()
        self._measured: list[tuple[int, int]] = []  # of prompts that are texts: tokens as read, and as counted
        self._begun: set[str] = set()  # sessions whose requests have what they add, once the first of each has ended
        self._untold = 0  # answers to known prompts that are not in the log as a whole
        self._unended = 0
        self._unknown: list[str] = []  # rows of requests that did not end and whose prompts nobody knows
        self._shift_s = 0.0  # from the clock of the lines, in a zone of their own, to that of the requests

    def add(self, record: Record, line: LogLine) -> None:
        """The next line of the log."""
        name = str(line.request.get("rid") or line.meta.get("id") or record.where)
        if "HEALTH_CHECK" in name:
            return
        if line.event == "received":
            for one in _each(line):
                # A line of its end that was cut comes after the one with which it came.
                self._received.setdefault(str(one.request.get("rid") or name), (one.time_s, record, one))
            return
        start_s = self._received.pop(name, (None, record, line))[0]
        self._finished(record, line, start_s)

    def requests(self, notes: Notes) -> Iterator[Request]:
        """All of them, once the log is read."""
        for start_s, record, line in self._received.values():
            self._unended += self._finished(record, line, start_s)
        for where in self._unknown:
            notes.left_out(f"{where}: the request did not end, and its prompt is not in the log: {_LEVEL}")
        for number, each in enumerate(self._served):
            if each.by_line:
                self._served[number] = replace(each, start_s=each.start_s + self._shift_s)
        if self._unended:
            notes.add("assumed", f"{self._unended:,} requests have no end in the log: their answers count as empty")
        known = [each for each in self._served if each.path is not None]
        if known:
            how = f"; {counted(self._options)}" if self._texts is not None else ""
            notes.add("real", f"times, prompts, answers, lengths of {len(known):,} requests{how}")
            notes.add("rebuilt", self._fitted.said())
            notes.add("assumed", compared(self._measured))
        if self._untold:
            notes.add("assumed", f"{self._untold:,} answers are not in the log, or only in part: they are not cached")
        for each in known:
            yield _request(each, *_paths(each))
        yield from _of_lengths(self._served, notes)

    def _finished(self, record: Record, line: LogLine, received_s: float | None) -> bool:
        """Take a request; False where it is left out."""
        meta = line.meta
        answer_s = _number(meta.get("e2e_latency"))
        told_s = _number(meta.get("request_received_ts"))
        if told_s is not None and received_s is not None:
            self._shift_s = told_s - received_s
        start_s = received_s if told_s is None else told_s
        if start_s is None:
            if line.time_s is None:
                raise bad_field(
                    record,
                    "request_received_ts",
                    "missing: no line tells when the request came; --enable-metrics writes it",
                )
            start_s = line.time_s - (answer_s or 0.0)
        tokens, output = (count_in(record, name, meta.get(name)) for name in ("prompt_tokens", "completion_tokens"))
        prompt, context = self._prompt(line, tokens, output)
        tokens = prompt.tokens if tokens is None and prompt else tokens
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        if tokens is None and (line.event == "received" or kind == "abort"):
            # Still running where the log ends, or ended by its client while it waited: SGLang tells no length then.
            self._unknown.append(record.where)
            return False
        if tokens is None:
            raise bad_field(record, "prompt_tokens", f"missing, and so is the prompt: {_LEVEL}")
        self._served.append(
            _Served(
                start_s,
                answer_s,
                max(tokens, len(prompt.path) if prompt else 0),
                output or 0,
                stop_reason(kind) if isinstance(kind, str) else None,
                _session(line.request),
                prompt.path if prompt else None,
                context,
                told_s is None,
            )
        )
        return True

    def _prompt(self, line: LogLine, tokens: int | None, output: int | None) -> tuple[Blocks | None, Path | None]:
        """The prompt and the whole context, if the log has them uncut; of texts as long as the server counted."""
        ids, text = line.request.get("input_ids"), line.request.get("text")
        if self._adds(line, ids, tokens):
            return None, None
        said, answer = line.answer.get("text"), line.answer.get("output_ids")
        answer = answer if isinstance(answer, list) else []
        is_part = 0 < len(answer) < (output or 0)
        if isinstance(ids, list) and _are_tokens(ids):
            answer = answer if _are_tokens(answer) and not is_part else []
            self._untold += bool(output) and not answer
            context = _named(token_prompt([*ids, *answer]).path, line)
            return Blocks(context.first(len(ids) // BLOCK_TOKENS), len(ids)), context
        if not isinstance(text, str) or not text or _is_cut(text):
            return None, None
        said = said if isinstance(said, str) and not is_part and not _is_cut(said) else ""
        self._untold += bool(output) and not said
        self._texts = self._texts or TextPrompts(self._options)
        blocks, whole = self._texts.blocks(text), self._texts.blocks(text + said)
        if tokens:
            self._measured.append((blocks.tokens, tokens))
        path = self._fitted.prompt(_named(blocks.path, line), blocks.tokens, tokens or None)
        length = blocks.tokens if tokens is None else tokens
        answered = None if tokens is None or output is None else tokens + output
        context = self._fitted.context(_named(whole.path, line), whole.tokens, answered)
        # A text of fewer tokens than blocks, or than the prefix that it shares, has no place for its last ones.
        return Blocks(path.first(path.unit_at(length)), length), context

    def _adds(self, line: LogLine, ids: Any, tokens: int | None) -> bool:
        """Whether a request has what it adds to the prompt and the answer before it in its session."""
        session = _in_session(line.request)
        if session is None:
            return False
        adds = session in self._begun or (isinstance(ids, list) and tokens is not None and tokens > len(ids))
        self._begun.add(session)
        return adds


def _is_cut(text: str) -> bool:
    """Whether level 2 took the middle out of a text; in the form of text it is no literal then."""
    return len(text) == 2048 + len(_CUT) and text[1024:1027] == _CUT


def _named(path: Path, line: LogLine) -> Path:
    """A path, with other units than those of the same tokens in another namespace of the cache."""
    namespace = [line.request.get(name) for name in _NAMESPACE]
    if not any(namespace):
        return path
    digest = int.from_bytes(blake2b(repr(namespace).encode(), digest_size=8).digest())
    return Path(tuple(each ^ digest for each in path.ids), path.ends)


def _each(line: LogLine) -> Iterator[LogLine]:
    """The requests of a line: a batch is one that has come, and each of it ends in a line of its own."""
    names = line.request.get("rid")
    if not isinstance(names, list):
        yield line
        return
    parameters = line.request.get("sampling_params")
    first = parameters[0] if isinstance(parameters, list) and parameters else parameters
    if isinstance(first, Mapping) and first.get("n", 1) != 1:
        return  # several answers to one prompt: they end under other names
    for number, name in enumerate(names):
        own = {each: _item(line.request.get(each), number) for each in ("input_ids", "text", *_NAMESPACE)}
        yield replace(line, request={**line.request, **own, "rid": name})


def _item(values: Any, number: int) -> Any:
    if not isinstance(values, list):
        return values  # of all of them
    return values[number] if number < len(values) else None


def _request(each: _Served, path: Path, context: Path) -> Request:
    return Request(
        each.start_s,
        each.session,
        path,
        context,
        each.prompt_tokens,
        each.output_tokens,
        stop=each.stop,
        session=each.session,
        answer_s=each.answer_s,
    )


def _paths(each: _Served) -> tuple[Path, Path]:
    """The prompt and the context of a request whose prompt was logged."""
    path = each.path or Path((), ())
    context = each.context or path
    return path, context if len(context) >= len(path) else path


def _of_lengths(served: Sequence[_Served], notes: Notes) -> Iterator[Request]:
    """Requests whose prompts were not logged; one goes on with its session, where a prompt before it was logged."""
    sessions: dict[str | int, list[_Served]] = {}
    for number, each in enumerate(sorted(served, key=lambda each: each.start_s)):
        sessions.setdefault(number if each.session is None else each.session, []).append(each)
    sessions = {name: calls for name, calls in sessions.items() if any(each.path is None for each in calls)}
    if not sessions:
        return
    nameless = sum(isinstance(name, int) for name in sessions)
    if nameless:
        notes.add("rebuilt", f"{nameless:,} requests have neither a prompt nor a session: nothing is reused; {_LEVEL}")
    if nameless < len(sessions):
        notes.add("rebuilt", f"contexts of {len(sessions) - nameless:,} sessions, from their lengths; {_LEVEL}")
    units = count(1 << 66)
    whole = holds_history([[_call(each) for each in calls] for calls in sessions.values()])
    for name, calls in sessions.items():
        context = Path((), ())
        for each in calls:
            if each.path is not None:
                context = _paths(each)[1]
                continue
            (request,) = rebuilt(None if isinstance(name, int) else name, [_call(each)], units, whole, context)
            context = request.context
            yield request


def _call(each: _Served) -> Call:
    return Call(each.start_s, each.prompt_tokens, each.output_tokens, each.stop, answer_s=each.answer_s)


def _session(request: Mapping[str, Any]) -> str | None:
    names = request.get("session_id"), _in_session(request), request.get("conversation_id")
    found = next(filter(None, names), None)
    return None if found is None else str(found)


def _in_session(request: Mapping[str, Any]) -> str | None:
    """The session of the server that a request goes on with; None where it has its whole prompt."""
    parameters = request.get("session_params")
    found = parameters.get("id") if isinstance(parameters, Mapping) else None
    return str(found) if found else None


def _are_tokens(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(each, int) and abs(each) < _LARGEST for each in values)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < 1e11 else None


SGLANG_LOG = Reader(
    "sglang-log",
    "logs of a SGLang server with --log-requests (text or JSON, level 3 for all), or --export-metrics-to-file-dir",
    _detects,
    _read,
)
