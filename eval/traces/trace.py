"""A trace as every command gets it: from a file, a data set, or a generator."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eval.traces.arrivals import Arrivals
from eval.traces.generators import GENERATORS, Workload
from eval.traces.readers import READERS
from eval.traces.reading.files import Source
from eval.traces.reading.notes import Note, Notes
from eval.traces.reading.options import Options
from eval.traces.reading.reader import Reader
from eval.traces.reading.records import Record, fields_of
from eval.traces.reading.times import count_late, sorted_note
from eval.traces.request import Request, TraceError

FORMATS = (*READERS, *GENERATORS)

SOURCES = (
    f"a file or folder ({', '.join(READERS)}; also .gz, .zst, .bz2 or .xz), a name (allenai/WildChat-1M), "
    "or what is generated: "
    f"{', '.join(GENERATORS)}; all but figure1 take parameters (agents:runs=500,seed=1); `eval trace --list` lists them"
)
"""What can be named where a trace is wanted, for the help of a flag."""

_LOOKED_AT = 10_000
"""Records of a file before it is of no known format: a server writes hundreds of lines before its first request, and a
session may begin with as many summaries. At twice it, a file of no format takes twice as long to be refused."""

_NAMED = 3  # files that a note names


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read."""

    name: str
    format: str
    requests: list[Request]  # in order of arrival; where they are read, the first one comes at 0 s
    skipped: int = 0  # records that gave no request: bad ones, and sound ones without any
    skip_reasons: tuple[str, ...] = ()  # of the first few of them, a line each
    notes: tuple[Note, ...] = ()  # what is real, and what was rebuilt, sorted, chained or drawn

    def missing(self) -> list[str]:
        """What was given and is not in it, in lines: records, files, and options without effect."""
        lines = [f"{note.kind}: {note.text}" for note in self.notes if note.kind in ("left out", "ignored")]
        if self.skipped:
            lines.append(f"{self.skipped:,} records skipped, the first: {self.skip_reasons[0]}")
        return [f"{self.name}: {line}" for line in lines]


def open_trace(
    source: str,
    *,
    format: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    block_size: int | None = None,
    tokenizer: str | None = None,
    characters_per_token: float = 4.0,
    arrivals: Arrivals | None = None,
    texts: bool = False,
) -> Trace:
    """Read or generate a trace.

    Args:
        source: a file or folder, the name of a data set on the Hugging Face hub, or of a generator, which takes
            parameters: ``synthetic:conversations=500,seed=3``.
        format: one of FORMATS; by default it is told from the first records of a file, or from the name.
        skip_bad: count bad records instead of stopping at the first.
        limit, block_size, tokenizer, characters_per_token, arrivals, texts: see :class:`Options`.

    Raises:
        TraceError: one line that says what cannot be read, where and why, or which argument is out of range.
    """
    options = Options(limit, block_size, tokenizer, characters_per_token, arrivals or Arrivals(), texts)
    notes = Notes(skip_bad)
    if format is not None and format not in FORMATS:
        raise TraceError(f"format {format}: not one of {', '.join(FORMATS)}")
    if (generator := generator_of(source)) is not None:
        head, _, parameters = source.partition(":")
        if format not in (None, head):
            raise TraceError(f"format {format}: {source} is generated, not read; leave it out")
        notes.add("drawn", f"all of it: {generator.about}")
        requests = list(itertools.islice(generator(parameters), limit))
        return _checked(Trace(source, head, requests), source, notes)
    if format in GENERATORS:
        raise TraceError(f"trace {source}: is not made by {format}, whose source is '{format}'")
    found = Source.of(source)
    if found.others:
        names = _some(", ", [found.shown(path) for path in found.others])
        notes.add("left out", f"{len(found.others):,} files of the folder, by their names no traces: {names}")
    try:
        reader, found = (READERS[format], found) if format else _detected(found, notes)
    except _UnknownFormatError as error:
        known = f"known are {', '.join(READERS)}: --format NAME if it is one of them"
        raise TraceError(f"{error}; {known}, else see 'A trace of one's own' in eval/README.md") from None
    stream = reader.read(found, options, notes)
    requests = list(itertools.islice(stream, limit) if reader.in_order else stream)
    late = count_late([request.arrival_s for request in requests]) if reader.in_order else 0
    notes.add("sorted", sorted_note(late, len(requests)))
    for text in _ignored(reader, options, notes):
        notes.add("ignored", text)
    trace = Trace(found.title, reader.name, in_order(requests)[:limit])
    return _checked(trace, source, notes)


def check_name(source: str) -> None:
    """Refuse the name of a trace of which nothing can be read or generated, before anything is.

    Raises:
        TraceError: there is no such file, or a parameter is unknown or out of range.
    """
    if (generator := generator_of(source)) is not None:
        generator(source.partition(":")[2])
    else:
        Source.of(source)


def generator_of(source: str) -> Workload | None:
    """What generates a trace of that name; None if it is read."""
    generator = GENERATORS.get(source.partition(":")[0])
    return None if os.path.exists(source) else generator  # not of Path, which refuses long names


def _ignored(reader: Reader, options: Options, notes: Notes) -> Iterator[str]:
    """Options that were given and have no effect, as flags."""
    if options.tokenizer is not None and not reader.texts:
        yield f"--tokenizer {options.tokenizer}: {reader.name} has no texts to count"
    if options.block_size is not None and not reader.blocks:
        yield f"--block-size {options.block_size}: {reader.name} has no blocks"
    if options.arrivals != Arrivals() and not any(note.kind == "drawn" for note in notes.all()):
        yield "--arrivals: nothing was drawn, as the trace has times of its own"


class _UnknownFormatError(TraceError):
    """Records that can be read, and that no reader knows."""


def _checked(trace: Trace, source: str, notes: Notes) -> Trace:
    """The trace with its notes.

    Raises:
        TraceError: it holds no request.
    """
    if not trace.requests:
        reasons = [*notes.reasons, *(note.text for note in notes.all() if note.kind == "left out"), ""]
        reason = f": {reasons[0]}" if reasons[0] else ""
        raise TraceError(f"trace {source}: holds no request, {notes.skipped} records skipped{reason}")
    return replace(trace, skipped=notes.skipped, skip_reasons=tuple(notes.reasons), notes=notes.all())


def in_order(requests: list[Request]) -> list[Request]:
    """Requests in order of arrival, the first one at 0 s."""
    requests.sort(key=lambda request: request.arrival_s)
    if requests and (start_s := requests[0].arrival_s):
        for number, request in enumerate(requests):
            requests[number] = replace(request, arrival_s=request.arrival_s - start_s)
    return requests


def _detected(source: Source, notes: Notes) -> tuple[Reader, Source]:
    """The format of a source, and the source without files of other formats."""
    if not source.files:
        return _by_name(source), source
    if source.folder is None:
        reader = _reader_of(source.records(), source.name)
        return reader, source
    readers: dict[Path, Reader] = {}
    reasons: dict[Path, str] = {}
    first_error: TraceError | None = None
    for path in source.files:
        try:
            readers[path] = _reader_of(source.only(path).records(), str(path))
        except TraceError as error:
            reasons[path] = str(error)
            first_error = first_error or error
    if first_error and not readers:
        raise first_error
    reader = Counter(readers.values()).most_common(1)[0][0]
    files = [path for path, other in readers.items() if other is reader]
    reasons |= {path: f"{source.shown(path)}: {other.name}" for path, other in readers.items() if other is not reader}
    if reasons:
        of = f"{len(reasons):,} of {len(source.files):,} files of the folder, which is read as {reader.name}"
        notes.add("left out", f"{of}: {_some('; ', list(reasons.values()))}")
    return reader, source.only(*files)


def _some(separator: str, texts: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(texts) - _NAMED
    return separator.join([*texts[:_NAMED], *([f"{more:,} more"] if more > 0 else [])])


def _by_name(source: Source) -> Reader:
    """The format of a data set on the hub: its name holds it, or its first row tells."""
    for name, reader in READERS.items():
        if name in source.name.lower():
            return reader
    return _reader_of(source.records(), source.name)


def _reader_of(records: Iterator[Record], name: str) -> Reader:
    """The reader that knows one of the first records.

    Raises:
        TraceError: there is none; of the records, the first one that could be read is named.
    """
    unknown: _UnknownFormatError | None = None
    broken: _UnknownFormatError | None = None
    for record in itertools.islice(records, _LOOKED_AT):
        try:
            fields = fields_of(record)
        except TraceError as error:
            broken = broken or _UnknownFormatError(str(error))
            continue
        for reader in READERS.values():
            if reader.detects(fields):
                return reader
        shown = ", ".join(fields)[:200]
        told = f"its fields are {shown}" if fields else "it has no fields"
        unknown = unknown or _UnknownFormatError(f"{record.where}: of no known format: {told}")
    raise unknown or broken or TraceError(f"trace {name}: empty")
