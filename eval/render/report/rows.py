"""What a folder of `python -m eval simulate` holds, read and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.arguments import weight_text
from eval.simulate.cells import Cell, Outcome
from eval.simulate.grid import ESTIMATED, WEIGHTED
from eval.simulate.per_request import requests_file
from eval.simulate.rows import CELLS, REFERENCES


class ReportError(ValueError):
    """A folder that cannot be reported on; one line with file, line and field, or with the flag and what is there."""


class Variant(NamedTuple):
    """A policy with the settings that it depends on."""

    policy: str
    weight: float | None  # w; None: the policy does not depend on it, or chooses it
    estimate: int | None  # Q̂ in tokens; None: the policy learns it or does not depend on it

    @property
    def rank(self) -> float:
        """Order of the variants of a policy: its own w, then w as it rises. The first one stands for the policy."""
        return -1.0 if self.weight is None else self.weight

    @property
    def w(self) -> str:
        """The weight as text."""
        return weight_text(self.weight)


@dataclass(frozen=True, slots=True)
class Row:
    """A cell and its figures."""

    cell: Cell
    outcome: Outcome
    gap_closed: float | None  # share of the TEL between lru and tail-belady; None where the two are equal
    name: str  # of the cell
    asked_for: bool = True  # else it is a reference

    @property
    def variant(self) -> Variant:
        """The variant that the cell belongs to."""
        policy = self.cell.policy
        return Variant(
            policy,
            self.cell.median_weight if policy in WEIGHTED else None,
            self.cell.next_prompt_estimate if policy in ESTIMATED else None,
        )


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of one cell, in order of arrival; tokens, one value a request."""

    arrival_s: NDArray[np.float64]
    uncached: NDArray[np.int64]
    evicted_tel_safe: NDArray[np.int64]
    evicted_lru: NDArray[np.int64]


def read_rows(folder: Path) -> list[Row]:
    """The cells of a folder in their order, then the references that are not among them.

    Raises:
        ReportError: no folder, no cells, or a line that is not a whole cell.
    """
    if not folder.is_dir():
        raise ReportError(f"{folder}: no such folder; `python -m eval simulate … --out {folder}` makes it")
    path = folder / CELLS
    if not path.is_file() and (folder / "run.json").is_file():
        raise ReportError(f"{folder}: holds a replay, whose page is {folder / 'replay.html'}")
    if not path.is_file():
        raise ReportError(f"{path}: no such file; `python -m eval simulate … --out {folder}` writes it")
    rows = _read(path, asked_for=True)
    if not rows:
        raise ReportError(f"{path}: has no cells in it")
    if (references := folder / REFERENCES).is_file():
        known = {row.name for row in rows}
        rows += [row for row in _read(references, asked_for=False) if row.name not in known]
    return rows


def _read(path: Path, *, asked_for: bool) -> list[Row]:
    """The rows of a file. A cell that a run was cut off after making it anew has two: the later one counts."""
    rows: dict[Cell, Row] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        where = f"{path}:{number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ReportError(f"{where}: not a whole JSON object (column {error.colno}: {error.msg})") from None
        if not isinstance(record, dict):
            raise ReportError(f"{where}: not a JSON object")
        row = _row(record, where, asked_for)
        rows[row.cell] = row
    return [*rows.values()]


def _row(record: Mapping[str, Any], where: str, asked_for: bool) -> Row:
    record = {"forced": True, "replicas": 1, "routing": None, **record, "evicted": record.get("evicted") or {}}
    text = {"trace", "policy", "cell", "routing"}
    typed = {field.name: str(field.type) for kind in (Cell, Outcome) for field in fields(kind)}
    absent = {"gap_closed", *(name for name, kind in typed.items() if kind.endswith("| None"))}
    for name in [*typed, "cell", "gap_closed"]:
        if name not in record:
            raise ReportError(f"{where}: {name} is missing")
        value = record[name]
        if name == "evicted" or (name in absent and value is None):
            continue
        if not isinstance(value, str if name in text else int | float):
            raise ReportError(f"{where}: {name} is {value!r}, not {'a text' if name in text else 'a number'}")
    return Row(
        cell=Cell(**{field.name: record[field.name] for field in fields(Cell)}),
        outcome=Outcome(**{field.name: record[field.name] for field in fields(Outcome)}),
        gap_closed=record["gap_closed"],
        name=record["cell"],
        asked_for=asked_for,
    )


def read_requests(folder: Path, row: Row) -> Requests | None:
    """The requests of a cell; None if they were not kept (`simulate --per-request` keeps them).

    Raises:
        ReportError: a file is there that `simulate` did not write.
    """
    import pyarrow
    import pyarrow.parquet

    path = requests_file(folder, row.name)
    if not path.is_file():
        return None
    columns = ["arrival_s", "uncached_tokens", "evicted_tel_safe", "evicted_lru"]
    try:
        table = pyarrow.parquet.read_table(path, columns=columns)
        arrival, uncached, tel_safe, lru = (table[column].to_numpy() for column in columns)
    except (pyarrow.ArrowException, KeyError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ReportError(f"{path}: cannot be read ({reason}); delete it and run `simulate --per-request`") from None
    return Requests(
        arrival.astype(np.float64), uncached.astype(np.int64), tel_safe.astype(np.int64), lru.astype(np.int64)
    )
