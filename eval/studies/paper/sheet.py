"""A table once, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

__all__ = ["Column", "Line", "Sheet", "per_cent"]


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    group: str = ""  # that it stands under, together with the columns beside it


@dataclass(frozen=True, slots=True)
class Line:
    cells: Sequence[str]
    quoted: bool = False  # numbers of the paper, not ours
    last: bool = False  # of its kind: a gap follows


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with what its reader must know of it."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    paper: str  # what of it is from the paper
    ours: str  # what is not
    texts: int = 1  # columns, from the left, that hold text

    @property
    def provenance(self) -> str:
        """What is whose, in a sentence each."""
        return f"From the paper: {self.paper}. Ours: {self.ours}."

    def rich(self) -> Table:
        """For the terminal, without the title: it may be wider than the table."""
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        grouped = any(column.group for column in self.columns)
        for number, (column, before) in enumerate(zip(self.columns, (None, *self.columns), strict=False)):
            group = column.group if before is None or before.group != column.group else ""
            header = f"{group}\n{column.name}" if grouped else column.name
            table.add_column(header, justify="left" if number < self.texts else "right", no_wrap=True)
        for line in self.lines:
            table.add_row(*line.cells, style="dim" if line.quoted else None, end_section=line.last)
        return table

    def markdown(self) -> str:
        """For a file; numbers of the paper are in italics."""
        heads = [" ".join(filter(None, (column.group, column.name))) for column in self.columns]
        marks = ["---" if number < self.texts else "---:" for number in range(len(heads))]
        rows = [heads, marks]
        rows += [[f"*{cell}*" if line.quoted and cell else cell for cell in line.cells] for line in self.lines]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"### {self.title}\n\n{table}\n\n{self.provenance}\n"


def per_cent(share: float | None) -> str:
    """0.1234 → 12.3, without the sign: the title has it; an en dash for nothing."""
    if share is None:
        return "–"
    text = f"{100 * share:.1f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")
