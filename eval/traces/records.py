"""Records of JSON, JSONL and Parquet files and of hub data sets, each with the place that an error is to name."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from eval.traces.request import TraceError

__all__ = ["Count", "Record", "Skips", "decode", "records"]

T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number of tokens, or of milliseconds."""

_SHOWN = 5  # reasons that a trace remembers of what it skipped


class Record(NamedTuple):
    where: str  # "trace.jsonl:12", "trace.json: record 12"
    content: Any  # bytes of JSON, or what they or the row of a table stand for


class Skips:
    """What a reader left out: counted, and the first reasons kept."""

    def __init__(self, bad_allowed: bool) -> None:
        self.count = 0
        self.reasons: list[str] = []
        self._bad_allowed = bad_allowed

    def bad(self, error: TraceError) -> None:
        """A record that cannot be read.

        Raises:
            TraceError: the same, where bad records are not to be skipped.
        """
        if not self._bad_allowed:
            raise error
        self.left_out(str(error))

    def left_out(self, reason: str) -> None:
        """A sound record that gives no request, such as an empty conversation."""
        self.count += 1
        if len(self.reasons) < _SHOWN:
            self.reasons.append(reason)


def decode(record: Record, kind: type[T]) -> T:
    """The record in its schema; fields that the schema does not name are not looked at.

    Raises:
        TraceError: one line with file, line and field.
    """
    try:
        if isinstance(record.content, bytes):
            return msgspec.json.decode(record.content, type=kind)
        return msgspec.convert(record.content, kind)
    except msgspec.ValidationError as error:
        raise TraceError(f"{record.where}: {_by_field(error)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"{record.where}: not JSON: {error}") from None


def _by_field(error: msgspec.ValidationError) -> str:
    """msgspec's "reason - at `$.field`" with the field first."""
    reason, _, place = str(error).partition(" - at `$")
    field = place.rstrip("`").lstrip(".")
    return f"{field}: {reason}" if field else reason


def records(source: str, data_file: str | None = None) -> Iterator[Record]:
    """Of a local ``.parquet``, JSON or JSONL file, else of the hub data set of that name (``owner/name``).

    Parquet and the hub go through ``datasets``, streaming. Local JSON does not: its reader there can neither name the
    line that is broken nor go on behind it.

    Args:
        source: a path, or a name on the hub.
        data_file: in the repository on the hub, where it holds more than the data set.

    Raises:
        TraceError: there is no such file, or it cannot be read as what it is; the hub cannot be reached.
    """
    path = Path(source)
    if not path.exists():
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", source) or path.suffix in (".json", ".jsonl", ".parquet"):
            raise TraceError(f"trace {source}: no such file")
        return _hub_rows(source, data_file)
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    return _json_records(path)


def _json_records(path: Path) -> Iterator[Record]:
    try:
        with path.open("rb") as file:
            while (first := file.read(1)).isspace():
                pass
            if first == b"[":
                file.seek(0)
                for number, item in enumerate(_json_array(path, file.read()), start=1):
                    yield Record(f"{path.name}: record {number}", item)
                return
            file.seek(0)
            for number, line in enumerate(file, start=1):
                if not line.isspace():
                    yield Record(f"{path.name}:{number}", line.rstrip(b"\r\n"))
    except OSError as error:
        raise TraceError(f"trace {path}: {error.strerror or error}") from None


def _json_array(path: Path, text: bytes) -> list[Any]:
    # Not by msgspec, which refuses the whole file for half a surrogate pair in one of its texts.
    try:
        return list(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path.name}: not JSON: {error}") from None


def _parquet_rows(path: Path) -> Iterator[Record]:
    datasets = _datasets(str(path))
    try:
        rows = datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(f"{path.name}: row {number}", row)
    except Exception as error:  # of Arrow, of datasets, of the file system: they have no base in common
        raise TraceError(f"trace {path}: not a Parquet file that can be read ({_one_line(error)})") from None


def _hub_rows(name: str, data_file: str | None) -> Iterator[Record]:
    datasets = _datasets(name)
    try:
        # datasets alone would try for 23 s, with a warning each time, before it found that there is no network.
        import huggingface_hub

        huggingface_hub.dataset_info(name, timeout=10)
        rows = datasets.load_dataset(name, data_files=data_file, split="train", streaming=True)
        for number, row in enumerate(rows, start=1):
            yield Record(f"{name}: row {number}", row)
    except Exception as error:  # of httpx, of the hub, of datasets: they have no base in common
        raise TraceError(
            f"trace {name}: not reachable ({_one_line(error)}); give a local .jsonl or .parquet file in its schema"
        ) from None


def _datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise TraceError(f"trace {source}: needs the package datasets (pip install 'radix-tlru[eval]')") from None
    logging.getLogger("datasets").setLevel(logging.CRITICAL)  # what it would log it raises as well
    return datasets


def _one_line(error: Exception) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
