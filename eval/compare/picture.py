"""Heat maps: for each policy, every trace (lines) at every capacity (columns)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from matplotlib.colors import CenteredNorm, Normalize, SymLogNorm
from matplotlib.figure import Figure

from eval.compare.changes import METRICS, NAMES, TOLERATED
from eval.compare.settings import BASELINE
from eval.compare.verdict import Row, Verdict
from eval.render.looks import fitted, heat_map, ink, percent
from eval.traces.mixes import parts_of

_ACROSS = 3  # maps side by side
_LINE, _COLUMN = 0.26, 0.62  # inches
_LONGEST = 33  # characters of a name


@dataclass(frozen=True, slots=True)
class _Spot:
    """What stands in a field of a map."""

    value: float  # its colour; nan: empty
    text: str


def kinds(rows: Sequence[Row]) -> dict[str, str]:
    """A short name for each trace: without its seed, and without parameters where no other trace has the same start."""
    names = {row["trace"]: [_without_seed(part) for part in parts_of(row["trace"])] for row in rows}
    heads: dict[str, set[str]] = {}
    for name in {part for parts in names.values() for part in parts}:
        heads.setdefault(name.partition(":")[0], set()).add(name)

    def shown(parts: Sequence[str]) -> str:
        longest = _LONGEST if len(parts) == 1 else _LONGEST // 2
        return " ".join(_shown(name, len(heads[name.partition(":")[0]]) == 1, longest) for name in parts)

    whole = {" ".join(parts): shown(parts) for parts in names.values()}
    alike = Counter(whole.values())
    found = {trace: " ".join(parts) for trace, parts in names.items()}
    return {trace: whole[name] if alike[whole[name]] == 1 else name for trace, name in found.items()}


def _without_seed(trace: str) -> str:
    head, colon, parameters = trace.partition(":")
    kept = [pair for pair in parameters.split(",") if not pair.startswith("seed=")]
    return head + colon + ",".join(kept) if colon and kept != [""] else head


def _shown(name: str, is_only_one: bool, longest: int) -> str:
    if is_only_one:
        name = name.partition(":")[0]
    elif len(name) > longest:
        begin = longest // 2 - 1  # the end tells parameters and variants apart
        name = f"{name[:begin]}…{name[begin + 1 - longest :]}"
    return name


def worst_figures(found: Sequence[Verdict]) -> Figure:
    """The worst figure of each policy: over all ξ, seeds and figures of a trace at a capacity."""

    def spot(rows: Sequence[Row]) -> _Spot:
        size, metric, row = max(
            ((row["losses"][metric], metric, row) for row in rows for metric in METRICS), key=itemgetter(0)
        )
        if size <= 0:
            differs = any(row["losses"][name] for row in rows for name in METRICS)
            return _Spot(size, "better" if size < 0 else "no worse" if differs else "equal")
        colour = size if size > TOLERATED else 0.0
        change = row["against_lru"][metric][0]
        digits = 0 if change is None or abs(change) >= 0.095 else 1
        name = "hits" if metric == "hit_ratio" else NAMES[metric]
        return _Spot(colour, f"{name} {percent(change, sign=True, digits=digits)}")

    return _maps(found, spot, SymLogNorm(0.01, vmin=-1.0, vmax=1.0, base=10), "BrBG_r")


def gap_closed(found: Sequence[Verdict]) -> Figure:
    """The share of the gap in TEL between lru and the optimum that each policy closes, mean over ξ and seeds."""
    gaps = {cell: share for one in found for cell, share in one.gaps.items()}

    def spot(rows: Sequence[Row]) -> _Spot:
        shares = [gaps[row["cell"]] for row in rows if row["cell"] in gaps]
        mean = float(np.mean(shares)) if shares else math.nan
        return _Spot(mean, "–" if not shares else percent(mean, digits=0))

    return _maps(found, spot, CenteredNorm(0, 1.0), "BrBG")


def _maps(found: Sequence[Verdict], spot: Callable[[Sequence[Row]], _Spot], norm: Normalize, colours: str) -> Figure:
    shown = [one for one in found if one.policy != BASELINE]
    names = kinds(found[0].rows)
    lines = list(dict.fromkeys(names[row["trace"]] for row in found[0].rows))
    columns = list(dict.fromkeys(row["capacity_asked"] for row in found[0].rows))
    across = min(_ACROSS, len(shown))
    down = math.ceil(len(shown) / across)
    left, right, top, bottom, gap = 0.075 * max(map(len, lines)) + 0.15, 0.05, 0.3, 0.45, 0.5
    map_width, map_height = max(_COLUMN * len(columns), 1.6), _LINE * len(lines)
    width = left + across * map_width + (across - 1) * 0.1 + right
    height = top + down * map_height + (down - 1) * gap + bottom
    figure = Figure(figsize=(width, height))
    for number, one in enumerate(shown):
        column, line = number % across, number // across
        x = left + column * (map_width + 0.1)
        y = height - top - (line + 1) * map_height - line * gap
        axes = figure.add_axes((x / width, y / height, map_width / width, map_height / height))
        spots = _spots(one, names, lines, columns, spot)
        values = np.array([[each.value for each in line_of] for line_of in spots])
        heat_map(axes, values, [[each.text for each in line_of] for line_of in spots], norm, colours, fontsize=5.8)
        axes.set_title(one.title, color=ink(one.policy), fontsize=fitted(one.title, map_width, 8, "bold"))
        axes.set_yticks(range(len(lines)), lines if not column else [""] * len(lines), fontsize=7)
        is_last = number + across >= len(shown)
        axes.set_xticks(range(len(columns)), columns if is_last else [""] * len(columns), fontsize=7)
        if is_last:
            axes.set_xlabel(_sizes(columns), fontsize=7.5)
    return figure


def _sizes(columns: Sequence[str]) -> str:
    """What all columns are, if they are of one kind."""
    shares = sum("%" in column for column in columns)
    return "capacity" + {0: " (tokens)", len(columns): " (of the working set)"}.get(shares, "")


def _spots(
    one: Verdict,
    names: Mapping[str, str],
    lines: Sequence[str],
    columns: Sequence[str],
    spot: Callable[[Sequence[Row]], _Spot],
) -> list[list[_Spot]]:
    fields: dict[tuple[str, str], list[Row]] = {}
    for row in one.rows:
        fields.setdefault((names[row["trace"]], row["capacity_asked"]), []).append(row)
    return [
        [spot(fields[line, column]) if (line, column) in fields else _Spot(math.nan, "") for column in columns]
        for line in lines
    ]
