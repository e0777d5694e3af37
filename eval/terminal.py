"""What a command prints: tables that are never cut off, and progress that also shows where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self, TextIO, TypeVar

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

_Item = TypeVar("_Item")

WIDEST = 10_000
"""Columns of a table that is printed as wide as it needs to be."""

EVERY_S = 5.0
"""Seconds between two lines of progress where there is no terminal."""


def table(title: str, columns: Sequence[str], *, texts: int = 1) -> Table:
    """An empty table; rows are added with ``add_row``.

    Args:
        texts: columns from the left that hold text. The others hold figures, which stand on the right.
    """
    result = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", padding=(0, 1), pad_edge=False)
    for number, name in enumerate(columns):
        result.add_column(Text(name), justify="left" if number < texts else "right", no_wrap=True)
    return result


def show(*renderables: RenderableType) -> None:
    """Print to standard output. In a file or a narrow terminal a table keeps its width and all of its figures."""
    console = Console(highlight=False, markup=False)
    for one in renderables:
        if isinstance(one, str):
            console.print(one, soft_wrap=True)
            continue
        needed = Measurement.get(console, console.options.update(max_width=WIDEST), one).maximum
        wide = Console(highlight=False, markup=False, width=max(needed, console.width))
        wide.print(one, crop=False)


class Progress:
    """How far a known number of steps is, on standard error: a bar on a terminal, else a line every few seconds.

    Args:
        title: what is done, such as ``cells``.
        total: how many steps there are.
        unit: what a step is, if the title does not say it.
        stream: standard error by default.
        every_s: seconds between two lines; a run that is shorter prints none.
        keep: leave the finished bar on the terminal.
    """

    def __init__(
        self,
        title: str,
        total: int,
        *,
        unit: str = "",
        stream: TextIO | None = None,
        every_s: float = EVERY_S,
        keep: bool = False,
    ) -> None:
        self.title, self.total, self.done = title, total, 0
        self._unit = f" {unit}" if unit else ""
        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)
        self._every_s = every_s
        self._start = self._printed = time.monotonic()
        self._shown = 0  # steps of the last line
        self._bars: Bars | None = None
        if self._console.is_terminal:
            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                *([TextColumn(unit)] if unit else []),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=not keep,
            )
            self._task = self._bars.add_task(title, total=total)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        elif self._printed > self._start and self._shown < self.done:
            self._line()

    def advance(self, steps: int = 1) -> None:
        """So many more steps are done."""
        self.done += steps
        if self._bars is not None:
            self._bars.advance(self._task, steps)
        elif time.monotonic() - self._printed >= self._every_s:
            self._line()

    def say(self, title: str) -> None:
        """Another title from now on; printed at once where there is no terminal."""
        self.title = title
        if self._bars is not None:
            self._bars.update(self._task, description=title)
        else:
            self._line()

    def _line(self) -> None:
        self._printed, self._shown = time.monotonic(), self.done
        seconds = self._printed - self._start
        line = f"{self.title}: {self.done:,} of {self.total:,}{self._unit}, {seconds:.0f} s"
        self._console.print(line, soft_wrap=True)


def track(items: Iterable[_Item], title: str, total: int | None = None) -> Iterator[_Item]:
    """The items, and progress while they are used up.

    Args:
        total: needed where ``items`` has no length.
    """
    count = total if total is not None else len(items)  # type: ignore[arg-type]
    with Progress(title, count) as progress:
        for item in items:
            yield item
            progress.advance()
