"""A table of the paper's experiments, for the terminal, for Markdown and for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from eval.render import html
from eval.terminal import table


@dataclass(frozen=True, slots=True)
class Column:
    """A column, under the heading of its group if it has one."""

    name: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A row."""

    cells: Sequence[str]
    quoted: bool = False  # the paper's own numbers
    last: bool = False  # the last of a block


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table, and what in it is from the paper."""

    title: str
    columns: Sequence[Column]
    lines: Sequence[Line]
    paper: str  # what is from the paper
    added: str  # what is not
    texts: int = 1  # columns from the left that hold text

    @property
    def provenance(self) -> str:
        """What is from the paper and what is not, in a sentence each."""
        return f"From the paper: {self.paper}. Added here: {self.added}."

    def rich(self) -> Table:
        """For the terminal, without the title, which may be wider than the table."""
        grouped = any(column.group for column in self.columns)
        heads = []
        for column, before in zip(self.columns, (None, *self.columns), strict=False):
            group = column.group if before is None or before.group != column.group else ""
            heads.append(f"{group}\n{column.name}" if grouped else column.name)
        result = table("", heads, texts=self.texts)
        for line in self.lines:
            result.add_row(*line.cells, style="dim" if line.quoted else None, end_section=line.last)
        return result

    def markdown(self) -> str:
        """For a file, with the paper's own numbers in italics."""
        heads = self._heads()
        marks = ["---" if number < self.texts else "---:" for number in range(len(heads))]
        rows = [heads, marks]
        rows += [[f"*{cell}*" if line.quoted and cell else cell for cell in line.cells] for line in self.lines]
        body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        return f"### {self.title}\n\n{body}\n\n{self.provenance}\n"

    def html(self) -> str:
        """For the page."""
        body = html.table(self._heads(), [line.cells for line in self.lines])
        return html.heading(self.title) + body + html.paragraph(self.provenance)

    def _heads(self) -> list[str]:
        return [" ".join(filter(None, (column.group, column.name))) for column in self.columns]


def per_cent(share: float | None) -> str:
    """0.1234 → 12.3, as the title has the sign; an en dash for None."""
    if share is None:
        return "–"
    text = f"{100 * share:.1f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")
