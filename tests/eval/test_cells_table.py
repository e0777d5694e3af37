"""The table that `python -m eval simulate` prints: figures, and changes against lru."""

from __future__ import annotations

from rich.table import Table

from eval.simulate.table import cells_table
from tests.helpers.report_cells import cell


def test_the_table_has_the_figures_of_each_policy_and_their_changes_against_lru() -> None:
    table = cells_table([cell("lru", 1_000_000), cell("tlru", 400_000, p50=150, p95=450, gap_closed=0.25)])
    (block,) = table.renderables
    assert isinstance(block, Table)
    lru, tlru = zip(*(column.cells for column in block.columns), strict=True)
    assert lru == ("lru", "50.0%", "100", "", "600", "", "700", "1 M", "", "3", "–")
    assert tlru == ("tlru", "50.0%", "150", "+50.0%", "450", "-25.0%", "700", "400 k", "-60.0%", "3", "25.0%")
