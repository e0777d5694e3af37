"""A folder of cells on the disk: what is there is not run again, so an interrupted run goes on where it was.

| file | what it holds |
|---|---|
| `cells.jsonl` | a line for each cell that was asked for |
| `references.jsonl` | likewise for LRU and the hindsight optimum of each cell |
| `trace.json` | which trace the folder is of |
| `commands.txt` | the commands that filled it |
| `CELL.parquet` | the requests of a cell, with ``--per-request`` |
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from eval.traces import Trace
from eval.traces.request import Request

CELLS, REFERENCES, TRACE, COMMANDS = "cells.jsonl", "references.jsonl", "trace.json", "commands.txt"

_FEW_TELL = {
    field.name: field.default
    for field in fields(Request)
    if field.default is not MISSING
    and field.name not in ("stop", "messages")  # most tell the first, none sees the other
}
"""Fields of a request that few traces tell, and what they are where none does."""


class Rows:
    """A JSONL file with a name for each row. New rows are appended line by line.

    Args:
        path: need not exist yet.
        key: the field that holds the name.

    Raises:
        ValueError: a line is not a row.
    """

    def __init__(self, path: Path, key: str = "cell") -> None:
        self.path, self._key = path, key
        self._rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            *whole, rest = path.read_text().split("\n")
            for number, line in enumerate(whole, start=1):
                try:
                    row = json.loads(line)
                    self._rows[row[key]] = row
                except (ValueError, TypeError, KeyError):
                    raise ValueError(f"{path}:{number}: not a row of cells; mend or delete it") from None
            if rest:  # a run was cut off in the middle of a line: that row is made again, where a disk is full, too
                os.truncate(path, path.stat().st_size - len(rest.encode()))

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def append(self, row: dict[str, Any]) -> None:
        """Add a row. It is on the disk when this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self._rows[row[self._key]] = row

    def sort(self, first: Iterable[str]) -> None:
        """Put the file into an order that does not depend on which row was done first: these names, then all others."""
        self._write(dict.fromkeys([*first, *sorted(self._rows)]))

    def keep(self, is_kept: Callable[[dict[str, Any]], bool]) -> None:
        """Drop all rows but these, from the disk, too."""
        names = [name for name, row in self._rows.items() if is_kept(row)]
        if len(names) < len(self._rows):
            self._write(names)

    def _write(self, names: Iterable[str]) -> None:
        """Hold the rows of these names, in this order."""
        self._rows = {name: self._rows[name] for name in names}
        replacement = self.path.with_suffix(".tmp")
        replacement.write_text("".join(json.dumps(row) + "\n" for row in self._rows.values()))
        replacement.replace(self.path)


def check_same_trace(folder: Path, trace: Trace) -> None:
    """Note which trace a folder is of.

    Raises:
        ValueError: it holds cells of another trace, or of one that has changed since, or does not say of which.
    """
    facts = {"trace": trace.name, "requests": len(trace.requests), "digest": digest_of(trace)}
    path = folder / TRACE
    if not path.exists():
        if any((folder / name).is_file() for name in (CELLS, REFERENCES)):
            raise ValueError(f"--out {folder}: holds cells that do not say of which trace; give another folder")
        path.write_text(json.dumps(facts) + "\n")
        return
    try:
        known = json.loads(path.read_bytes())
        name = known["trace"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{path}: does not say which trace it is of; give another folder") from None
    if known != facts:
        other = "as it was then" if name == trace.name else f"and not of {trace.name}"
        raise ValueError(f"--out {folder}: holds results of {name} {other}; give another folder")


def digest_of(trace: Trace) -> str:
    """Sixteen characters that change with what policies see of the trace: all of a request but its texts."""
    digest = hashlib.sha256()
    for request in trace.requests:
        known = request.arrival_s, request.prompt_tokens, request.output_tokens, request.conversation, request.stop
        # The last id of a path stands for all of it.
        paths = ((len(path), len(path.ids), *path.ids[-1:]) for path in (request.prompt, request.context))
        told = ((name, value) for name, untold in _FEW_TELL.items() if (value := getattr(request, name)) != untold)
        digest.update(repr((*known, *paths, *told)).encode())
    return digest.hexdigest()[:16]


def note_command(folder: Path, command_line: str | None) -> None:
    """Add a command to those that filled the folder, so that a report can say how its numbers were made."""
    path = folder / COMMANDS
    known = path.read_text().splitlines() if path.is_file() else []
    if command_line is not None and command_line not in known:
        with path.open("a") as file:
            file.write(f"{command_line}\n")
