"""Names of conversations whose ids do not tell them apart: those of other files, or of other rows, are the same."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator

from eval.traces.reading.files import Source
from eval.traces.reading.records import Name, Record
from eval.traces.request import TraceError

_LOOKED_AT = 100  # rows of a file for its first time

_LATE = 0.01
"""Share of a log's duration by which the first row of its next file may come before its last one: servers write a row
when it ends. At 0 such a file is a log of its own, and its conversations are cut in two."""

_HASH = 1 << 32
"""Ids of blocks from here on are hashes, below they are counted. At twice it as at half: no trace has so many blocks,
and a hash of 64 bits lies below with probability 2**-32."""

TimeOf = Callable[[Record], float]
"""The time of a row in any unit; raises TraceError where it has none."""


class UniqueNames:
    """For formats whose rows are whole conversations: the second one of a name is another conversation.

    Attributes:
        repeated: conversations that got another name than they had.
    """

    def __init__(self) -> None:
        self.repeated = 0
        self._numbers: Counter[str] = Counter()
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """``a``, then ``a#2``, ``a#3``."""
        made = name
        while made in self._taken:
            self._numbers[name] += 1
            made = f"{name}#{self._numbers[name] + 1}"
        self._taken.add(made)
        self.repeated += made != name
        return made

    def said(self) -> str:
        """What is noted of them; nothing if there are none."""
        rows = f"{self.repeated:,} rows have the id of an earlier row"
        return f"{rows}: conversations of their own" if self.repeated else ""


class Logs:
    """For formats whose rows have times: which files of a folder are one log, in which an id is one session, or block.

    A file that begins when an earlier one has ended goes on with its log, as logs are split by hour or by size. Files
    that overlap in time are logs of their own: of other servers, or of other days whose times all count from 0.

    Attributes:
        begins: the first time of the first file, in the unit of the rows; infinite if none has one.
    """

    def __init__(self, source: Source, time_of: TimeOf, what: str) -> None:
        """Looks at the first rows of each file.

        Args:
            source: its files are read in the order of their first times.
            time_of: of a row.
            what: has the ids, in the plural, for the notes.
        """
        first = {path: first_time(source.only(path), time_of) for path in source.files}
        self.begins = min(first.values()) if first else first_time(source, time_of)
        self._source = source.only(*sorted(first, key=lambda path: first[path]))
        self._what = what
        self._spans: list[tuple[float, float]] = []  # first and last time of each log
        self._log: int | None = None  # of the file that is read; None: its first row is still to come
        self._file = 0
        self._files: dict[tuple[int, Name], int] = {}  # by log and id, the first file that has it
        self._continued: set[tuple[int, Name]] = set()

    def records(self) -> Iterator[Record]:
        """All records, file by file; ``name`` speaks of the last one."""
        if not self._source.files:
            yield from self._source.records()
        for number, path in enumerate(self._source.files):
            self._log, self._file = None, number
            yield from self._source.only(path).records()

    def name(self, session: Name | None, time: float) -> str | None:
        """The name of a session of the last record, other than that of any session of another log.

        Args:
            session: its id; None: it has none.
            time: of the record. It has to be told of every record, with a session or without.
        """
        if self._log is None:
            ended = (n for n, (start, end) in enumerate(self._spans) if time >= end - _LATE * (end - start))
            self._log = next(ended, len(self._spans))
            if self._log == len(self._spans):
                self._spans.append((time, time))
        start, end = self._spans[self._log]
        if not start <= time <= end:
            self._spans[self._log] = min(start, time), max(end, time)
        if session is None:
            return None
        key = self._log, session
        if self._files.setdefault(key, self._file) != self._file:
            self._continued.add(key)
        return str(session) if not self._log else f"{session}#{self._log + 1}"

    def blocks(self, ids: list[int | str]) -> list[int | str]:
        """Ids of the blocks of the last record, other than those of any other log: each log counts its own from 0.

        Hashes are the same in all logs: what they stand for is content.
        """
        if not self._log:
            return ids
        begin = self._log << 64
        return [each + begin if isinstance(each, int) and 0 <= each < _HASH else each for each in ids]

    def said_of_blocks(self) -> str:
        """What is noted of equal ids of blocks in different files; nothing if there is one file."""
        if len(self._source.files) < 2:
            return ""
        if len(self._spans) < 2:
            return "equal ids of blocks in different files are the same block: each begins when another has ended"
        logs = f"{len(self._spans):,} logs that overlap in time count their blocks from 0 each"
        return f"{logs}: equal ids are the same block within each, other blocks in another, unless they are hashes"

    def said(self) -> str:
        """What is noted of ids that are in several files; nothing if none is."""
        logs = Counter(session for _, session in self._files)
        found = {
            "go on in a file that begins when another has ended: one log": len(self._continued),
            "are in files that overlap in time: logs with ids of their own": sum(n > 1 for n in logs.values()),
        }
        return "; ".join(f"{times:,} ids of {self._what} {what}" for what, times in found.items() if times)


def first_time(source: Source, time_of: TimeOf) -> float:
    """The time of the first row of a file that has one, in its unit; infinite if none of the first rows has."""
    for record in itertools.islice(source.records(), _LOOKED_AT):
        try:
            return time_of(record)
        except TraceError:
            continue
    return math.inf
