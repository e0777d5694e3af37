"""What a reader sees of the figures of a report: nothing cut off, nothing over anything else, ticks in one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from eval.__main__ import main
from eval.render.looks import RC, look, tokens_axis
from eval.render.report.frontier import frontier
from eval.render.report.grids import heat_maps, percentiles_by_capacity
from eval.render.report.scene import Scene
from eval.simulate.timing import Timing
from tests.helpers.report_cells import cell, scene, written

LONG = ("sglang-tlru-strip-thinking", "real-etlru-python", "trtllm-retention", "workload-aware")


def drawn(draw: Callable[[Scene], Figure], shown: Scene) -> Figure:
    """A figure as a report has it, with every text where it is drawn."""
    with mpl.rc_context(RC):
        figure = draw(shown)
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    return figure


def box(text: Text) -> Bbox:
    return text.get_window_extent()


def over_each_other(some: Sequence[Text]) -> list[tuple[str, str]]:
    return [(a.get_text(), b.get_text()) for a, b in combinations(some, 2) if box(a).overlaps(box(b))]


@pytest.fixture
def many(tmp_path: Path) -> Scene:
    """Policies with long names at seven capacities, up to 31 times as bad as lru, and an oracle."""
    policies = ("lru", *LONG, "tlru", "etlru", "sglang-lru", "sglang-tlru", "arc", "end-aware")
    sizes = (500, 600, 700, 800, 1000, 1200, 2000)
    cells = [
        cell(
            policy,
            tel=1000 + 3000 * number,
            p50=100 + 300 * number,
            capacity=1000 * size,
            p95=600 + 900 * number,
            cell=f"{policy}-{size}-{threshold}",
            threshold=threshold,
            gap_closed=None if number == 0 else 0.1,
        )
        for number, policy in enumerate(policies)
        for size in sizes
        for threshold in (4096, 8192)
    ]
    return scene(tmp_path, *cells)


FIGURES: list[Callable[[Scene], Figure]] = [
    frontier,
    percentiles_by_capacity,
    lambda shown: heat_maps(shown, "saved"),
    lambda shown: heat_maps(shown, "gap"),
]


@pytest.mark.parametrize("draw", FIGURES)
def test_no_text_of_a_figure_is_cut_off(draw: Callable[[Scene], Figure], many: Scene) -> None:
    figure = drawn(draw, many)
    whole, used = figure.bbox_inches, figure.get_tightbbox()
    assert used.x0 >= whole.x0
    assert used.x1 <= whole.x1
    assert used.y0 >= whole.y0
    assert used.y1 <= whole.y1


def test_names_of_maps_stand_side_by_side(many: Scene) -> None:
    figure = drawn(lambda shown: heat_maps(shown, "saved"), many)
    titles = [axes.title if axes.title.get_text() else axes._left_title for axes in figure.axes]  # type: ignore[attr-defined]
    assert any(title.get_text() == "stock tlru-strip-thinking" for title in titles)
    assert over_each_other([title for title in titles if title.get_text()]) == []


def test_names_beside_lines_leave_the_next_panel_alone(many: Scene) -> None:
    figure = drawn(percentiles_by_capacity, many)
    for panel in figure.axes:
        others = [label_box(axes) for axes in figure.axes if axes is not panel]
        names = [text for text in panel.texts if text.get_text() in ("stock tlru-strip-thinking", "trtllm-retention")]
        assert len(names) == 2
        for name in names:
            assert not any(box(name).overlaps(other) for other in others), name.get_text()


def label_box(axes: Axes) -> Bbox:
    """The panel with the name and the numbers of its vertical axis."""
    parts = [axes.bbox, box(axes.yaxis.label), *(box(text) for text in axes.get_yticklabels() if text.get_text())]
    return Bbox.union(parts)


def test_capacities_that_are_near_to_each_other_are_not_all_named(many: Scene) -> None:
    for panel in drawn(percentiles_by_capacity, many).axes:
        names = [text for text in panel.get_xticklabels() if text.get_text()]
        assert [text.get_text().replace("\N{NO-BREAK SPACE}", " ") for text in names] == [
            "500 k",
            "700 k",
            "1 M",
            "2 M",
        ]
        assert over_each_other(names) == []


def test_where_figures_are_of_ttft_the_frontier_is_too(tmp_path: Path) -> None:
    # 20 ms + 0.1 ms a token: the median goes from 100 tokens to 200, 30 ms to 40; p95 from 600 to 800, 80 ms to 100.
    shown = scene(tmp_path, cell("lru", 1000, p95=600), cell("tlru", 700, p50=200, p95=800))
    for latency, median, tail in ((None, 1.0, 1 / 3), (Timing(0.1, 20.0, "given"), 1 / 3, 0.25)):
        tel, p95 = drawn(frontier, replace(shown, latency=latency)).axes
        for axes, change in ((tel, -0.3), (p95, tail)):
            points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == look("tlru").marker]
            assert points == [pytest.approx([median, change])]
        assert tel.get_ylabel() == "TEL against lru"
        assert p95.get_xlabel() == ("p50 against lru" if latency is None else "TTFT, p50 against lru")


def test_a_name_that_is_not_right_beside_its_point_has_a_line_to_it(tmp_path: Path) -> None:
    # Between the two oracles there is no room for a name, so that one of them is named 12 points away.
    oracles = cell("tail-belady", 820, p50=72, p95=534), cell("tail-belady-ends", 850, p50=74, p95=536)
    figure = drawn(frontier, scene(tmp_path, cell("lru", 1000), cell("sglang-lru", 1000), *oracles))
    names = [text for axes in figure.axes for text in axes.texts if isinstance(text, Annotation)]
    far = [name for name in names if max(map(abs, name.get_position())) > 9]
    assert 12 in [max(map(abs, name.get_position())) for name in far]
    assert all(name.arrow_patch is not None for name in far)
    assert all(name.arrow_patch is None for name in names if name not in far)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([5_700, 5_850, 6_000, 6_150], ["5,700", "5,850", "6,000", "6,150"]),
        ([900, 1_050, 1_200], ["900", "1,050", "1,200"]),
        ([20_000, 20_500, 21_000], ["20 k", "20.5 k", "21 k"]),
        ([0, 20_000, 40_000], ["0", "20 k", "40 k"]),
        ([500_000, 1_000_000, 1_500_000], ["500 k", "1,000 k", "1,500 k"]),
        ([0, 1_000_000, 2_000_000], ["0", "1 M", "2 M"]),
        ([0], ["0"]),
    ],
)
def test_ticks_of_an_axis_of_tokens_have_one_unit(values: list[float], ticks: list[str]) -> None:
    axis = Figure().subplots().xaxis
    tokens_axis(axis)
    shown = axis.get_major_formatter().format_ticks(values)
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in shown] == ticks


def test_shares_of_more_than_a_thousand_per_cent_have_commas(many: Scene) -> None:
    ticks = [text.get_text() for axes in drawn(frontier, many).axes for text in axes.get_yticklabels()]
    assert any(text.startswith(("+1,000", "+2,000")) for text in ticks), ticks


def test_one_cell_is_no_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, cell("lru", 1000))
    assert main(["report", str(tmp_path)]) == 0
    assert "report.html: 1 cell, " in capsys.readouterr().out
    assert "10 requests · 1 cell<br>" in (tmp_path / "report.html").read_text()
