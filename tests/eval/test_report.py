"""``python -m eval report`` as a user runs it, on cells that ``simulate`` made of a trace that the test writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.__main__ import main
from eval.render.looks import compact, percent, spread
from eval.render.report.grids import heat_maps
from eval.render.report.labels import label
from eval.render.report.rows import ReportError, read_rows
from eval.render.report.scene import Missing, Scene, groups
from eval.render.report.tables import all_cells, arms_by_cell, cards
from tests.helpers.block_traces import BLOCK, block_lists, write_blocks
from tests.helpers.report_cells import cell, scene, written

FIGURES = {"cdf", "change", "capacity", "tel-saved", "gap-closed", "frontier", "timeline"}
OF_REQUESTS = {"cdf", "change", "timeline"}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mooncake trace: 300 turns of 40 conversations, a second apart, each adding 1 to 6 blocks."""
    return write_blocks(tmp_path_factory.mktemp("trace") / "small.jsonl", block_lists(7, 300, 40))


def simulate(trace: Path, out: Path, *flags: str) -> None:
    sizes = ("--threshold", "1024", "4096", "--page-size", str(BLOCK))
    assert main(["simulate", "--trace", str(trace), "--out", str(out), *sizes, *flags]) == 0


@pytest.fixture(scope="module")
def folder(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cells of five policies at two sizes and two objectives, with their requests, and the report on them."""
    out = tmp_path_factory.mktemp("cells")
    policies = ("lru", "tlru", "etlru", "vllm", "tail-belady")
    simulate(trace, out, "--policy", *policies, "--capacity", "100k", "200k", "--per-request")
    assert main(["report", str(out)]) == 0
    return out


def cells(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]


def page(folder: Path) -> str:
    return (folder / "report.html").read_text()


def test_the_page_needs_nothing_beside_it(folder: Path) -> None:
    text = page(folder)
    addresses = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)|url\(([^)]*)\)|@import\s+(\S+)""", text)
    assert len(addresses) == len(FIGURES)
    assert all(source.startswith("data:image/svg+xml;base64,") for source, _, _ in addresses)
    assert "<script" not in text


def test_every_figure_is_a_picture_with_something_in_it(folder: Path) -> None:
    assert {path.stem for path in (folder / "figures").iterdir()} == FIGURES
    for path in (folder / "figures").iterdir():
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[0] > 200
        assert pixels.shape[1] > 700
        inked = (pixels[..., :3].min(axis=2) < 0.9).mean()
        assert 0.005 < inked < 0.9, path


def test_the_page_holds_the_numbers_of_every_cell(folder: Path) -> None:
    text = page(folder)
    assert len(cells(folder)) == 5 * 2 * 2
    for one in cells(folder):
        assert one["policy"] in text
        for figure in ("mean", "p50", "p90", "p95", "p99", "tel", "violations"):
            assert f"<td>{one[figure]:,.0f}</td>" in text
        assert f"<td>{percent(one['hit_ratio'])}</td>" in text
        assert f"<td>{percent(one['gap_closed'])}</td>" in text


def test_the_page_says_which_command_made_it(folder: Path) -> None:
    assert f"python -m eval report {folder}" in page(folder)


def test_the_same_cells_make_the_same_page(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--out", str(tmp_path)]) == 0
    assert without_command(tmp_path) == without_command(folder)


def without_command(folder: Path) -> str:
    return re.sub("<pre>.*</pre>", "", page(folder), flags=re.DOTALL)


def test_stock_arms_that_were_not_run_are_named_with_what_to_run(folder: Path) -> None:
    assert "not here: <code>simulate --policy sglang-lru</code>" in page(folder)
    assert "not here: <code>simulate --policy sglang-tlru</code>" in page(folder)


def test_a_policy_that_would_lie_on_anothers_line_is_said_to(folder: Path) -> None:
    # On chains of blocks, vLLM's rule is LRU.
    assert "The same as lru in every cell: vllm." in page(folder)


def test_without_requests_their_figures_are_said_to_be_missing_and_old_ones_removed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "cells.jsonl", tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/cdf.png").write_text("of another run")
    assert main(["report", str(tmp_path)]) == 0
    assert {path.stem for path in (tmp_path / "figures").iterdir()} == FIGURES - OF_REQUESTS
    reason = "no per-request data: run <code>simulate</code> with --per-request"
    assert page(tmp_path).count(reason) == len(OF_REQUESTS)
    assert "cdf: not drawn: no per-request data" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [(), ("--per-request",)])
@pytest.mark.filterwarnings("error")
def test_where_nearly_all_is_cached_there_is_a_page_without_changes_against_a_median_of_0(
    flags: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_blocks(tmp_path / "same.jsonl", [[1, 2]] * 100)
    simulate(trace, tmp_path / "cells", "--policy", "lru", "--capacity", "100k", *flags)
    assert main(["report", str(tmp_path / "cells"), "--out", str(tmp_path / "elsewhere")]) == 0
    assert "frontier: not drawn: the median of lru is 0" in capsys.readouterr().out
    assert "the median of lru is 0" in page(tmp_path / "elsewhere")


def test_with_alpha_and_beta_the_objective_is_in_ms(folder: Path, tmp_path: Path) -> None:
    flags = ("--alpha", "0.1", "--beta", "20", "--threshold", "1024")
    assert main(["report", str(folder), "--out", str(tmp_path), *flags]) == 0
    assert "ξ 1,024 tokens (122 ms, as TTFT = 20 ms + 0.1 ms a token)" in page(tmp_path)  # 20 + 0.1 · 1,024


def test_references_that_were_not_asked_for_are_compared_with(trace: Path, tmp_path: Path) -> None:
    simulate(trace, tmp_path, "--policy", "tlru", "--capacity", "100k")
    (own,) = (row for row in read_rows(tmp_path) if row.asked_for and row.cell.threshold == 4096)
    scene = Scene(tmp_path, groups(read_rows(tmp_path))[0], read_rows(tmp_path))
    lru, optimum = (
        next(r.outcome.tel for r in read_rows(tmp_path) if r.cell == own.cell.under(policy))
        for policy in ("lru", "tail-belady")
    )
    assert scene.tel_saved(own) == pytest.approx((lru - own.outcome.tel) / lru)
    assert scene.gap_closed(own) == pytest.approx((lru - own.outcome.tel) / (lru - optimum), abs=1e-6)
    assert "<small>reference</small>" in all_cells(scene)


def test_what_is_saved_and_what_the_median_pays(tmp_path: Path) -> None:
    lru, tlru = cell("lru", tel=1000, p50=100), cell("tlru", tel=900, p50=104, gap_closed=0.25)
    # (1,000 - 900) / 1,000 saved; 104 / 100 - 1 paid
    table = arms_by_cell(scene(tmp_path, lru, tlru))
    assert re.findall(r'<td class="\w* ?highlight">([^<]*)</td>', table) == [
        percent(0.1),
        percent(0.25),
        "+" + percent(0.04),
    ]


def test_the_best_policy_that_a_server_can_run_is_marked_and_no_oracle(tmp_path: Path) -> None:
    table = all_cells(scene(tmp_path, cell("lru", 1000), cell("tlru", 900), cell("end-aware", 500)))
    (marked,) = re.findall(r'<tr class="[^"]*best">.*?</tr>', table)
    assert "tlru" in marked
    assert "900" in marked


def test_one_lru_under_two_weights_is_one_line_and_two_tlru_are_two(tmp_path: Path) -> None:
    weights = [
        cell(policy, 1000 if policy == "lru" else 900, median_weight=w)
        for policy in ("lru", "tlru")
        for w in (0.0, 0.2)
    ]
    shown = scene(tmp_path, *weights)
    assert [(variant.policy, variant.weight) for variant in shown.variants] == [
        ("lru", None),
        ("tlru", 0.0),
        ("tlru", 0.2),
    ]
    assert [variant.policy for variant in shown.mains] == ["lru", "tlru"]


def test_policies_that_are_not_here_leave_a_card_that_says_so(tmp_path: Path) -> None:
    assert cards(scene(tmp_path, cell("lru", 1000))).count("Not in this folder") == 5


def test_other_page_sizes_are_in_the_table_and_said_not_to_be_in_the_figures(tmp_path: Path) -> None:
    written(tmp_path, cell("lru", 1000), cell("tlru", 900), cell("lru", 1234, page_size=512))
    assert main(["report", str(tmp_path)]) == 0
    assert "not in the figures: t, page size 512. Choose with --page-size." in page(tmp_path)
    assert "1,234" in page(tmp_path)


def test_of_several_traces_in_a_folder_of_compare_one_is_shown_and_each_can_be_chosen(tmp_path: Path) -> None:
    written(tmp_path, cell("lru", 1000), cell("tlru", 900), cell("lru", 1234, trace="other", requests=20))
    assert main(["report", str(tmp_path)]) == 0
    assert "not in the figures: other, page size 16. Choose with --trace." in page(tmp_path)
    assert "10 requests · 3 cells<br>Cards and figures: t, page size 16, " in page(tmp_path)
    assert main(["report", str(tmp_path), "--trace", "other"]) == 0
    assert "20 requests · 3 cells<br>Cards and figures: other, page size 16, " in page(tmp_path)


def test_each_group_that_is_not_in_the_figures_can_be_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routed: dict[str, Any] = {"replicas": 4, "routing": "prefix-aware"}
    written(
        tmp_path,
        *(cell("lru", 1000), cell("tlru", 900), cell("lru", 2000, forced=False)),
        *(cell("lru", 3000, **routed), cell("lru", 4000, **{**routed, "replicas": 2})),
    )
    assert main(["report", str(tmp_path)]) == 0
    assert "Choose with --replicas, --routing, --optional-caching." in page(tmp_path)
    for flags, shown in (
        (["--replicas", "2"], "2 replicas of the capacity, prefix-aware"),
        (["--routing", "prefix-aware"], "4 replicas of the capacity, prefix-aware"),
        (["--optional-caching"], "optional caching"),
    ):
        assert main(["report", str(tmp_path), *flags]) == 0
        assert f"Cards and figures: t, page size 16, {shown}, capacity" in page(tmp_path)
        assert " ".join(["report", str(tmp_path), *flags]) in page(tmp_path)
    for flags, message in (
        (["--replicas", "3"], "--replicas 3: no such cells; there are 1, 2, 4"),
        (["--replicas", "1", "--routing", "random"], "--routing random: no such cells; there are none"),
        (["--replicas", "2", "--optional-caching"], "--optional-caching: no such cells; there are --no-optional-cachi"),
    ):
        assert main(["report", str(tmp_path), *flags]) == 2
        assert message in capsys.readouterr().err


def test_the_cell_that_is_shown_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [cell("lru", 1000, capacity=size, threshold=xi) for size, xi in ((10_000, 2048), (20_000, 768))]
    shown = scene(tmp_path, *rows)
    assert (shown.capacity, shown.threshold) == (20_000, 768)
    assert main(["report", str(tmp_path), "--threshold", "2048"]) == 0
    assert "capacity 10\N{NO-BREAK SPACE}k tokens, ξ 2,048 tokens" in page(tmp_path)
    assert main(["report", str(tmp_path), "--capacity", "10k", "--threshold", "768"]) == 2
    error = capsys.readouterr().err
    assert "--capacity 10000 --threshold 768: no such cells; with that capacity there are 2048" in error


@pytest.mark.parametrize("policy", ["sglang-tlru", "sglang-tlru-python", "sglang-tlru-swa", "sglang-tlru-mamba"])
def test_cells_that_differ_in_the_estimate_are_all_shown(policy: str, tmp_path: Path) -> None:
    table = all_cells(scene(tmp_path, *(cell(policy, 900 + q, next_prompt_estimate=q) for q in (100, 200))))
    assert "Q̂ = 100" in table
    assert "Q̂ = 200" in table


@pytest.mark.parametrize(("policy", "weight"), [("tlru", 0.3), ("etlru", 0.3), ("etlru", 0.0), ("real-etlru", 0.0)])
def test_a_weight_that_is_not_its_own_is_named_where_it_is_the_only_one(
    policy: str, weight: float, tmp_path: Path
) -> None:
    weighted = scene(tmp_path, cell("lru", 1000), cell(policy, 900, median_weight=weight))
    assert re.search(rf"{policy.removeprefix('real-')}( \(real cache\))?, w = {weight:g}", all_cells(weighted))
    assert f"<code>{policy}</code>, w = {weight:g}" in cards(weighted)
    assert label(weighted.variants[-1]).endswith(f", w = {weight:g}")


@pytest.mark.parametrize(("policy", "weight"), [("tlru", 0.0), ("etlru", None)])
def test_a_weight_of_its_own_is_not_named_where_it_is_the_only_one(
    policy: str, weight: float | None, tmp_path: Path
) -> None:
    own = scene(tmp_path, cell("lru", 1000), cell(policy, 900, median_weight=weight))
    assert ", w = " not in all_cells(own) + cards(own)


def test_a_cell_that_was_made_anew_in_a_run_that_was_cut_off_counts_once(tmp_path: Path) -> None:
    twice = cell("tlru", 900), cell("tlru", 900, seconds=7.5)
    shown = scene(tmp_path, cell("lru", 1000), *twice)
    assert [row.outcome.seconds for row in shown.rows] == [0.1, 7.5]


def test_a_policy_that_chooses_its_weight_stands_before_the_weights_it_was_given(tmp_path: Path) -> None:
    weights = [cell("etlru", 900, median_weight=w) for w in (0.0, 0.6, None)]
    shown = scene(tmp_path, cell("lru", 1000), *weights)
    assert [variant.weight for variant in shown.variants if variant.policy == "etlru"] == [None, 0.0, 0.6]
    assert [variant.weight for variant in shown.mains if variant.policy == "etlru"] == [None]
    table = all_cells(shown)
    assert all(f"etlru, w = {w}" in table for w in ("own", "0", "0.6"))


def test_without_a_map_of_the_gap_the_reason_is_true(tmp_path: Path) -> None:
    def reason(*cells: dict[str, Any]) -> str:
        with pytest.raises(Missing) as missing:
            heat_maps(scene(tmp_path, *cells), "gap")
        return str(missing.value)

    same = (cell("lru", 1000, gap_closed=0.0), cell("threshold-lru", 1000, gap_closed=0.0))
    assert reason(*same) == "every policy here has the figures of lru or tail-belady in every cell"
    assert "gap_closed is null" in reason(cell("lru", 1000), cell("tlru", 1000), cell("tail-belady", 1000))


GOOD = json.dumps(cell("lru", 1000))


@pytest.mark.parametrize(
    ("lines", "flags", "message"),
    [
        ([], (), "cells.jsonl: has no cells in it"),
        ([GOOD, GOOD[:40]], (), "cells.jsonl:2: not a whole JSON object"),
        ([GOOD, "[1]"], (), "cells.jsonl:2: not a JSON object"),
        ([GOOD.replace('"tel"', '"tell"')], (), "cells.jsonl:1: tel is missing"),
        ([GOOD.replace('"tel": 1000', '"tel": "many"')], (), "cells.jsonl:1: tel is 'many', not a number"),
        ([GOOD], ("--capacity", "3M"), "--capacity 3000000: no such cells; there are 2000000"),
        ([GOOD], ("--page-size", "1"), "--page-size 1: no such cells; there are 16"),
        ([GOOD], ("--beta", "1"), "--beta 1: needs --alpha"),
        ([GOOD], ("--alpha", "0", "--beta", "1"), "--alpha 0: must be more than 0"),
    ],
)
def test_what_cannot_be_reported_is_one_line_that_says_where(
    lines: Sequence[str], flags: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cells.jsonl").write_text("\n".join(lines))
    assert main(["report", str(tmp_path), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("eval report: ")
    assert message in line
    assert not (tmp_path / "report.html").exists()


def test_a_folder_without_cells_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="nowhere: no such folder"):
        read_rows(tmp_path / "nowhere")
    with pytest.raises(ReportError, match=r"cells\.jsonl: no such file"):
        read_rows(tmp_path)


def test_a_parquet_file_that_was_cut_off_is_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "cells.jsonl", tmp_path)
    for one in cells(folder):
        (tmp_path / f"{one['cell']}.parquet").write_bytes(b"PAR1")
    assert main(["report", str(tmp_path)]) == 2
    assert ".parquet: cannot be read" in capsys.readouterr().err


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 0.08))
def test_labels_keep_their_order_and_their_distance_and_stay_inside(wanted: list[float], gap: float) -> None:
    placed = spread(wanted, gap)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    heights = [placed[index] for index in order]
    assert all(above - below >= gap - 1e-9 for below, above in pairwise(heights))
    assert heights[0] >= -1e-9
    assert heights[-1] <= 1 + 1e-9


def test_labels_that_do_not_touch_stay_where_they_are() -> None:
    assert spread([0.9, 0.1, 0.5], 0.1) == pytest.approx([0.9, 0.1, 0.5])
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.45, 0.55])


def test_numbers_are_short_where_that_loses_nothing() -> None:
    assert [compact(tokens).replace("\N{NO-BREAK SPACE}", " ") for tokens in (0, 512, 8192, 64_000, 2_500_000)] == [
        *("0", "512", "8,192", "64 k", "2.5 M")
    ]
    assert compact(123_456_700).replace("\N{NO-BREAK SPACE}", " ") == "123456.7 k"
    assert [percent(share).replace("\N{NARROW NO-BREAK SPACE}", " ") for share in (0.0824, -12.5, -0.0001)] == [
        *("8.2 %", "−1,250.0 %", "0.0 %")
    ]
