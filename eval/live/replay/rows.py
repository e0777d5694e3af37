"""What a run leaves on the disk, from which a run that was cut off goes on.

| file | what it holds |
|---|---|
| `run.json` | what was asked for, and the machine: a folder belongs to one run |
| `parts.jsonl` | a line for each part that was played to its end: its arm, its repeat, the server and its metrics |
| `rows/REPEAT-ARM.jsonl` | a line a request, as they came in |
| `arms.jsonl` | a line an arm: its figures as (value, low, high), and their changes against the first arm |

A part is one arm in one repeat. A part that was cut off has rows and no line in `parts.jsonl`. Its rows are kept under
another name, and it is played again from its start, as its cache is gone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from eval.live.replay.arms import Arm
from eval.live.replay.facts import PLUGIN, Facts
from eval.live.replay.play import Sent


class FolderError(ValueError):
    """A folder that a run cannot use; one line that names it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Lengths in tokens; see ``RequestResult``."""

    number: int
    sent_s: float
    conversation: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    uncached_tokens: int
    output_tokens: int
    ttft_ms: float | None
    e2e_ms: float
    itl_ms: tuple[float, ...]
    retries: int
    error: str | None
    session: int | None = None  # number of the conversation that began its session; None: not told, its own
    tokens_per_s: float | None = None  # of its answer, from sending the request to the end; None: not told
    busy_s: float | None = None  # for which the server had been busy when it was sent; None: not told

    @property
    def session_index(self) -> int:
        """Number of the conversation that began its session."""
        return self.conversation if self.session is None else self.session

    @classmethod
    def of(cls, sent: Sent) -> Row:
        """The line of a request that was sent."""
        told = {name: getattr(sent.result, name) for name in cls.__struct_fields__ if hasattr(sent.result, name)}
        told = {name: round(value, 3) if isinstance(value, float) else value for name, value in told.items()}
        sent_s, busy_s = round(sent.sent_s, 4), round(sent.busy_s, 4)
        return cls(number=sent.number, sent_s=sent_s, busy_s=busy_s, session=sent.session, **told)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one repeat, played to its end."""

    arm: str
    repeat: int
    seconds: float  # of play; of arms asked in turn, while each was asked
    facts: dict[str, Any]  # of ``Facts``
    metrics: dict[str, float]  # by how much the server's /metrics rose while it was played
    prefill_alone_ms: tuple[float, ...] = ()  # see `probe.prefill_alone`; before and after


class PartName(NamedTuple):
    """Which part."""

    repeat: int  # from 0
    arm: str

    def __str__(self) -> str:
        return f"{self.arm} #{self.repeat + 1}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Two runs with equal fields may share a folder."""

    trace: str
    requests: int
    digest: str  # of the load: lengths, times, seed
    arms: dict[str, str]  # flags or URL by name, in order
    servers: str = ""  # of an arm, if not one: "2 workers behind a router"
    repeats: int
    api: str
    loop: str
    speed: float
    users: int
    threshold: int
    next_prompt_estimate: int
    slo_ms: float | None
    sessions: bool = False  # requests name their sessions, and clients close them
    turn_s: float | None = None  # all arms were up and took turns of so long, 0: of one request; None: they did not

    @property
    def turns(self) -> str:
        """How the arms took turns; empty: one was played to its end, and then the next."""
        if self.turn_s is None:
            return ""
        return f"arms in turns of {self.turn_s:g} s" if self.turn_s else "each request to every arm in turn"


class RowFile:
    """The file for the rows of a part while it is played, written line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._file = self._path.open("ab", buffering=0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Add a row.

        Raises:
            OSError: the disk is full. Lines that were written before stay whole.
        """
        line = msgspec.json.encode(row) + b"\n"
        written = self._file.write(line)
        if written != len(line):
            raise OSError(28, "No space left on device", str(self._path))


class Folder:
    """The folder of a run.

    Args:
        run: what is asked for; None: a run that is there.
        machine: facts that are noted when the folder is made.
        settle_s: requests sent in so many first seconds of a part are in no figure.

    Raises:
        FolderError: it holds another run.
        OSError: it cannot be made or read.
    """

    def __init__(
        self,
        path: Path,
        run: Run | None = None,
        machine: Mapping[str, Any] | None = None,
        settle_s: float = 0.0,
    ) -> None:
        self.path = path
        self.settle_s = settle_s
        file = path / "run.json"
        if run is None:
            if not file.is_file():
                raise FolderError(f"{path}: no run.json; `python -m eval replay … --out {path}` makes one")
            self.run = _decode(file.read_bytes(), Run, str(file))
        else:
            self.run = run
            if file.is_file():
                self._check_same(_decode(file.read_bytes(), Run, str(file)))
            (path / "rows").mkdir(parents=True, exist_ok=True)
            if not file.is_file():
                text = json.dumps({**msgspec.to_builtins(run), "machine": dict(machine or {})}, indent=1)
                file.write_text(text + "\n")
        self.machine: dict[str, Any] = json.loads(file.read_bytes()).get("machine", {})
        parts = path / "parts.jsonl"
        if parts.is_file() and not (known := parts.read_bytes()).endswith(b"\n"):
            parts.write_bytes(known[: known.rfind(b"\n") + 1])  # a run was cut off in the middle of a line
        self.parts = list(self._read(parts, Part))

    def _check_same(self, known: Run) -> None:
        for name in Run.__struct_fields__:
            if getattr(known, name) != getattr(self.run, name):
                was, now = getattr(known, name), getattr(self.run, name)
                what = f"a run with {name} {was!r}, not {now!r}"
                if name == "digest":  # which nobody has given
                    what = "a run of another load: lengths, times, seed or flags of all servers differ"
                raise FolderError(f"--out {self.path}: holds {what}; give another folder")

    def done(self, arm: str, repeat: int) -> bool:
        """Whether a part was played to its end."""
        return any(part.arm == arm and part.repeat == repeat for part in self.parts)

    @property
    def missing(self) -> list[PartName]:
        """Parts that are not played to their end yet, in the order of playing."""
        return [part for part in self.order() if not self.done(part.arm, part.repeat)]

    def order(self) -> Iterator[PartName]:
        """All parts. In each repeat another arm goes first, so that drift of the machine favours none."""
        names = list(self.run.arms)
        for repeat in range(self.run.repeats):
            first = repeat % len(names)
            yield from (PartName(repeat, name) for name in (*names[first:], *names[:first]))

    def file(self, arm: str, repeat: int) -> Path:
        """The file with the rows of a part."""
        return self.path / "rows" / f"{repeat}-{Arm(arm).stem}.jsonl"

    def begin(self, arm: str, repeat: int) -> RowFile:
        """A new file for a part's rows. Those of an earlier try that was cut off are renamed."""
        path = self.file(arm, repeat)
        if path.is_file() and path.stat().st_size:
            tries = len(list(path.parent.glob(f"{path.stem}.cut-off-*")))
            path.replace(path.with_name(f"{path.stem}.cut-off-{tries + 1}.jsonl"))
        return RowFile(path)

    def finish(self, part: Part) -> None:
        """Note that a part was played to its end."""
        with (self.path / "parts.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(part) + b"\n")
        self.parts.append(part)

    def rows(self, arm: str, repeat: int) -> list[Row]:
        """The rows of one part, in the order of sending."""
        return sorted(self._read(self.file(arm, repeat), Row), key=lambda row: row.number)

    def finished_rows(self, arm: str) -> list[tuple[int, Row]]:
        """(repeat, row) of all parts of an arm that were played to their end, without those that do not count."""
        repeats = sorted(part.repeat for part in self.parts if part.arm == arm)
        return [(repeat, row) for repeat in repeats for row in self.rows(arm, repeat) if self.counts(row)]

    def answered(self, arm: str) -> list[Row]:
        """The rows of these that succeeded."""
        return [row for _, row in self.finished_rows(arm) if row.error is None]

    def counts(self, row: Row) -> bool:
        """Whether a request is in the figures: sent when the server had settled, or failed at any time."""
        return row.error is not None or row.sent_s >= self.settle_s

    def seconds(self, arm: str) -> float:
        """For how long the parts of an arm were played, without the time in which its servers settled."""
        return sum((max(part.seconds - self._settled_s(part), 0.0) for part in self.parts if part.arm == arm), 0.0)

    def _settled_s(self, part: Part) -> float:
        """How much of the time of a part went into settling. Of arms in turns that time is while each was asked."""
        if self.run.turn_s is None or not self.settle_s:
            return self.settle_s
        later = (row.busy_s for row in self.rows(part.arm, part.repeat) if row.sent_s >= self.settle_s)
        return next((self.settle_s if busy_s is None else busy_s for busy_s in later), part.seconds)

    def facts(self, arm: str) -> Facts | None:
        """What the server of an arm said of itself; None before it was played."""
        found = next((dict(part.facts) for part in self.parts if part.arm == arm), None)
        if found is not None and found["policy"] == "ours":  # as it was called in earlier folders
            found["policy"] = PLUGIN
        return None if found is None else Facts(**found)

    def fell_back(self, arm: str) -> bool:
        """Whether radix-tlru had given up on a server of that arm, after a fault, when a part ended."""
        return any(part.metrics.get("sglang:tlru_fallen_back") for part in self.parts if part.arm == arm)

    def _read(self, path: Path, kind: type[Any]) -> Iterator[Any]:
        if not path.is_file():
            return
        *whole, _ = path.read_bytes().split(b"\n")  # a line without its end was cut off
        for number, line in enumerate(whole, start=1):
            yield _decode(line, kind, f"{path}:{number}")


def _decode(text: bytes, kind: type[Any], where: str) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise FolderError(f"{where}: {error}") from None


def risen(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """SGLang's metrics after a part: gauges as they are, counters by how much they rose."""
    counted = ("_total", "_sum", "_count")
    return {
        name: value - before.get(name, 0.0) if name.endswith(counted) else value
        for name, value in sorted(after.items())
        if name.startswith("sglang:") and not math.isnan(value) and not name.endswith("_bucket")
    }
