"""Opens what somebody has: a file, a folder of files or a data set on the hub, as one stream of records.

A file may be compressed (``.gz``, ``.zst``, ``.bz2``, ``.xz``, told by its first bytes) and begin with a byte-order
mark. It holds JSON lines, one JSON document (an array, or pretty-printed objects), Parquet, Arrow, CSV or lines of a
log.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa

from eval.traces.reading.records import Record, as_bytes
from eval.traces.reading.tables import arrow_rows, hub_rows, is_hub_name, parquet_rows
from eval.traces.request import TraceError

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".csv", ".log", ".txt", ".traj")
_PACKED = (".gz", ".zst", ".bz2", ".xz")

_GZIP, _ZSTD, _BZ2, _XZ, _PARQUET = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00", b"PAR1"
_TAR, _TAR_FROM, _TAR_TO = b"ustar", 257, 262  # in the first header of an archive of tar
_ARROW = (b"ARRO", b"\xff\xff\xff\xff")  # how a file and a stream of Arrow begin

# What collects logs writes before a line: a container, a time, colours. None of it has quotes, as texts in JSON have.
_LOG_LINE = re.compile(
    rb"""^[^"'{},]{0,200}?(\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|[A-Z]{4,8} \d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? \[)"""
)
_LOG_HEAD = 200  # lines within which a log of a server shows one with its time

_PART = 1 << 20  # bytes that are read at one time

_BLANK = re.compile(r"\s*")

_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError)


@dataclass(frozen=True, slots=True)
class Source:
    """What was named as a trace.

    Attributes:
        name: as it was given.
        files: a single file, or those of a folder, sorted by path; none: the name is that of a data set on the hub.
        folder: the folder that was named, if it was one.
        others: files of the folder whose names are not those of traces; they are not read.
    """

    name: str
    files: tuple[Path, ...]
    folder: Path | None = None
    others: tuple[Path, ...] = ()

    @classmethod
    def of(cls, name: str) -> Source:
        """A source by its path, or by its name on the hub.

        Raises:
            TraceError: there is no such file, it is a pipe, or the folder holds none that can be a trace.
        """
        if not name:
            raise TraceError("trace '': must be the name of a file, a folder, a data set or a generated workload")
        path = Path(name).expanduser()
        if path.is_dir():
            found = [each for each in sorted(path.rglob("*")) if each.is_file() and not _hidden(each, path)]
            files = tuple(each for each in found if _readable(each))
            if not files:
                raise TraceError(f"trace {name}: the folder holds no file that ends in {', '.join(_SUFFIXES)}")
            return cls(name, files, path, tuple(each for each in found if not _readable(each)))
        if name == "-" or (path.exists() and not path.is_file()):
            raise TraceError(
                f"trace {name}: is a pipe, and a trace is read more than once: write it to a file, "
                f"which may be compressed ({', '.join(_PACKED)})"
            )
        if path.exists():
            return cls(name, (path,))
        if is_hub_name(name) and not _suffixes(path) & {*_SUFFIXES, *_PACKED}:
            return cls(name, ())
        raise TraceError(f"trace {name}: no such file")

    @property
    def title(self) -> str:
        """The name of the trace: that of the file or folder, without suffixes."""
        if self.folder is not None:
            return self.folder.resolve().name
        return _stem(self.files[0]) if self.files else self.name

    def only(self, *files: Path) -> Source:
        """The same source with some of its files alone."""
        return replace(self, files=files)

    def records(self, data_file: str | None = None) -> Iterator[Record]:
        """All records, file by file.

        Args:
            data_file: in the repository on the hub, where it holds more than the data set.

        Raises:
            TraceError: a file cannot be read as what it is; the hub cannot be reached.
        """
        if not self.files:
            yield from hub_rows(self.name, data_file)
        for path in self.files:
            inside = self._inside(path)
            for record in _records(path, self.shown(path)):
                yield record._replace(file=inside)

    def shown(self, path: Path) -> str:
        """A file as errors and notes name it: its path within the folder."""
        return str(path.relative_to(self.folder)) if self.folder else path.name

    def _inside(self, path: Path) -> str:
        relative = path.relative_to(self.folder) if self.folder else Path(path.name)
        return str(relative.with_name(_stem(path)))


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _readable(path: Path) -> bool:
    """Whether a file of a folder can be a trace, by its name."""
    while path.suffix.lower() in _PACKED:
        path = path.with_suffix("")
    return path.suffix.lower() in _SUFFIXES


def _suffixes(path: Path) -> set[str]:
    """In lower case: ``day.JSONL.gz`` → ``.jsonl``, ``.gz``."""
    return {each.lower() for each in path.suffixes}


def _stem(path: Path) -> str:
    """``day.jsonl.gz`` → ``day``."""
    while path.suffix.lower() in (*_SUFFIXES, *_PACKED):
        path = path.with_suffix("")
    return path.name


def _records(path: Path, shown: str) -> Iterator[Record]:
    try:
        with path.open("rb") as raw:
            head = raw.read(4)
        if head == _PARQUET or path.suffix.lower() == ".parquet":
            yield from parquet_rows(path)
            return
        if head in _ARROW or path.suffix.lower() == ".arrow":
            yield from arrow_rows(path)
            return
        if head[:1] == b"\x80" or head == b"PK\x03\x04":
            kind = "an archive: unpack it" if head[:1] == b"P" else "a pickle, which can run code: write JSON instead"
            raise TraceError(f"trace {path}: is {kind}")
        yield from _text_records(path, shown)
    except _BROKEN as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error) or "ends too early"
        raise TraceError(f"trace {path}: {reason}") from None


def _text_records(path: Path, shown: str) -> Iterator[Record]:
    with _text(path) as file:
        first, second = _first_line(file), _first_line(file)
        logged = not first.startswith(b"{") and (any(map(_LOG_LINE.match, (first, second))) or _has_log_line(file))
    more = bool(second)  # each line may be a record
    if logged:
        yield from _log_lines(path, shown)
    elif first.startswith(b"[") and not (more and _is_json(first)):
        del first, second  # which may be all of the file
        with _text(path) as file:
            items = _json_array(shown, _all_of(file))
        for number, item in enumerate(items, start=1):
            yield Record(f"{shown}: record {number}", item)
    elif not first.startswith(b"{") and (".csv" in _suffixes(path) or b"tokens," in first.lower()):
        yield from _csv_rows(path, shown)
    else:
        documents = None if _is_json(first) else _documents(path)
        yield from _json_lines(path, shown) if documents is None else _whole(documents, shown)


@contextmanager
def _text(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a text file: unpacked, without a byte-order mark, in UTF-8."""
    with path.open("rb") as raw:
        head = raw.read(len(_XZ))
        raw.seek(0)
        stream: Any = raw
        if head.startswith(_GZIP):
            stream = gzip.GzipFile(fileobj=raw)
        elif head.startswith(_ZSTD):
            # Not by the package zstandard: its reader takes a file that was cut off for a whole one.
            stream = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(raw, "r"), "zstd"))
        elif head.startswith(_BZ2):
            stream = bz2.BZ2File(raw)
        elif head == _XZ:
            stream = lzma.LZMAFile(raw)  # noqa: SIM115 - it holds nothing but raw, which is closed
        elif path.suffix.lower() in _PACKED:
            raise TraceError(f"trace {path}: ends in {path.suffix}, and is not compressed so")
        head = stream.peek(_TAR_TO) if hasattr(stream, "peek") else b""
        if head[_TAR_FROM:_TAR_TO] == _TAR:
            raise TraceError(f"trace {path}: is an archive: unpack it")
        mark = head[:4]
        if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            try:
                stream = io.BytesIO(stream.read().decode("utf-16").encode())
            except UnicodeDecodeError as error:
                raise TraceError(f"trace {path}: not UTF-16: {error}") from None
        elif mark.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        yield stream


def _first_line(file: IO[bytes]) -> bytes:
    """The first line that is not blank, without what is around it."""
    return next((line.strip() for line in file if not line.isspace()), b"")


def _has_log_line(file: IO[bytes]) -> bool:
    return any(_LOG_LINE.match(line) for _, line in zip(range(_LOG_HEAD), file, strict=False))


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _documents(path: Path) -> list[bytes] | None:
    """JSON values one after the other, pretty-printed; None if the file does not begin with one of several lines.

    What is no JSON ends the list.
    """
    with _text(path) as file:
        text = file.read().decode(errors="replace")
    decoder, found = json.JSONDecoder(), list[bytes]()
    position = _behind_blanks(text, 0)
    while position < len(text):
        start = position
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            if not found:
                return None
            return [*found, text[position:].encode(errors="replace")]
        if not found and "\n" not in text[start:position]:
            return None
        found.append(as_bytes(value))
        position = _behind_blanks(text, position)
    return found


def _behind_blanks(text: str, position: int) -> int:
    found = _BLANK.match(text, position)
    return found.end() if found else position


def _json_lines(path: Path, shown: str) -> Iterator[Record]:
    with _text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                yield Record(f"{shown}:{number}", line.rstrip(b"\r\n"))


def _whole(documents: list[bytes], shown: str) -> Iterator[Record]:
    for number, value in enumerate(documents, start=1):
        yield Record(f"{shown}: record {number}", value)


def _all_of(file: IO[bytes]) -> bytearray:
    """What is left of a file, without a second copy of it: ``read`` joins what is buffered and what is not."""
    text = bytearray()
    while part := file.read(_PART):
        text += part
    return text


def _json_array(shown: str, text: bytearray) -> Iterator[bytes]:
    """The items one by one, as they are asked for: all of them at once are the file a second time."""
    try:
        return map(bytes, msgspec.json.decode(text, type=list[msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    # Half a surrogate pair in one of its texts is no reason to refuse the file; and this error names the line.
    try:
        return map(as_bytes, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{shown}: not JSON: {error}") from None


def _csv_rows(path: Path, shown: str) -> Iterator[Record]:
    with _text(path) as file:
        lines = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        head = next((line for line in lines if not line.isspace()), "")
        rows = csv.DictReader(chain([head], lines), delimiter=max(",;\t", key=head.count), skipinitialspace=True)
        try:
            for row in rows:
                yield Record(f"{shown}:{rows.line_num}", {name: value for name, value in row.items() if name})
        except csv.Error as error:
            raise TraceError(f"{shown}:{rows.line_num}: not CSV: {error}") from None


def _log_lines(path: Path, shown: str) -> Iterator[Record]:
    """Lines of a log as records with one field, ``line``."""
    with _text(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                yield Record(f"{shown}:{number}", {"line": line.decode(errors="replace").rstrip()})
