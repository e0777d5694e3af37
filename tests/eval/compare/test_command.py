"""``python -m eval compare`` as a user runs it: figures, verdicts, the page, going on, what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval.__main__ import main
from eval.simulate.grid import EVICTIONS
from eval.traces.drawn import drawn
from eval.traces.generators import GENERATORS
from eval.traces.variants import VARIANTS
from tests.helpers.block_traces import BLOCK, block_lists, percentile, uncached_under_lru, write_blocks
from tests.helpers.paths import REPOSITORY

CAPACITY, THRESHOLD = 60_000, 4_096
SIMULATE_KEYS = {
    *("trace", "policy", "capacity", "threshold", "next_prompt_estimate", "median_weight", "page_size", "forced"),
    *("replicas", "routing", "requests", "hit_ratio", "evicted", "gap_closed", "cell", "seconds"),
}


def compare(out: Path, trace: Path | str, *flags: str, capacity: int = CAPACITY) -> int:
    sizes = ("--capacity", str(capacity), "--threshold", str(THRESHOLD), "--page-size", str(BLOCK), "--jobs", "1")
    return main(["compare", "--out", str(out), "--trace", str(trace), *sizes, *flags])


def messages(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Lines on standard error, without progress, which a slow machine prints."""
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if re.fullmatch(r".*: [\d,]+ of [\d,]+, \d+ s", line) is None]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return block_lists(seed=11)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]) -> Path:
    return write_blocks(tmp_path_factory.mktemp("trace") / "small.jsonl", prompts)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, trace: Path) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    assert compare(out, trace) == 0
    return out


def test_the_figures_of_lru_are_those_of_blocks_counted_by_hand(done: Path, prompts: list[list[int]]) -> None:
    uncached = uncached_under_lru(prompts, CAPACITY)
    (found,) = (row for row in rows(done) if row["policy"] == "lru")
    assert set(found) >= SIMULATE_KEYS | {"hits", "p50", "p90", "p95", "p99", "mean", "tel", "violations"}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
        assert found[name] == pytest.approx(percentile(uncached, share))
    assert found["mean"] == pytest.approx(sum(uncached) / len(uncached), abs=0.01)
    assert found["hits"] == pytest.approx(1 - sum(uncached) / sum(BLOCK * len(each) for each in prompts), abs=1e-6)
    assert found["violations"] == sum(tokens > THRESHOLD for tokens in uncached) > 0
    assert found["tel"] == sum(max(tokens - THRESHOLD, 0) for tokens in uncached)
    assert found["prefilled"] == sum(uncached)
    assert [*found["against_lru"].values()] == [[0.0, 0.0, 0.0]] * 8  # in every resample, as it is given lru's draws


def test_changes_and_the_gap_are_against_lru_in_the_same_setting(done: Path) -> None:
    by_policy = {row["policy"]: row for row in rows(done)}
    assert list(by_policy) == ["lru", "tlru", "etlru", "tail-belady"]
    lru, optimum = by_policy["lru"], by_policy["tail-belady"]
    assert optimum["tel"] < lru["tel"]
    for row in by_policy.values():
        assert row["gap_closed"] == pytest.approx((lru["tel"] - row["tel"]) / (lru["tel"] - optimum["tel"]), abs=1e-5)
        change, low, high = row["against_lru"]["mean"]
        assert change == pytest.approx(row["mean"] / lru["mean"] - 1, abs=1e-4)
        assert low <= change <= high
        low, high = row["gap_interval"]
        assert low <= row["gap_closed"] <= high
    assert [row["gap_interval"] for row in (lru, optimum)] == [[0.0, 0.0], [1.0, 1.0]]  # in every resample
    assert by_policy["tlru"]["gap_interval"][0] < by_policy["tlru"]["gap_interval"][1]


def test_the_page_has_the_verdicts_the_pictures_and_the_figures(done: Path) -> None:
    page = (done / "compare.html").read_text()
    for row in rows(done):
        assert f"{row['tel']:,}" in page
        assert f"{round(row['p95']):,}" in page
    verdicts = [line for line in (done / "losses.txt").read_text().splitlines() if not line.startswith("  ")]
    assert verdicts
    assert all(line in page.replace("&gt;", ">") for line in verdicts)
    assert page.count("<img") == 2
    assert (done / "figures" / "worst.png").read_bytes()[:4] == b"\x89PNG"
    assert "python -m eval compare --out" in page


def test_a_cell_that_is_there_is_shown_as_it_is_asked_for_now(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--threshold", str(THRESHOLD), "--page-size", str(BLOCK), "--policy", "lru", "--jobs", "1"]
    words = ["compare", "--trace", str(trace), *flags, "--out", str(tmp_path / "out")]
    assert main([*words, "--capacity", "50%"]) == 0
    assert "50 % (" in capsys.readouterr().out
    capacity = rows(tmp_path / "out")[0]["capacity"]
    assert main([*words, "--capacity", str(capacity)]) == 0
    told = capsys.readouterr().out
    assert told.rstrip().splitlines()[-1].startswith("0 cells run now")
    assert "50 %" not in told
    assert "50 %" not in (tmp_path / "out" / "compare.html").read_text()


def test_where_everything_fits_no_policy_is_worse(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path / "out", trace, capacity=100_000_000) == 0
    out = capsys.readouterr().out
    for policy in ("tlru", "etlru", "tail-belady"):
        sentence = f"{policy}: never worse than lru (by more than 1 %, in any of 8 figures in the one setting)."
        assert f"{sentence} No figure differs from lru." in out
    assert {row["mean"] for row in rows(tmp_path / "out")} == {rows(tmp_path / "out")[0]["mean"]}
    assert "here no policy can win or lose" in out
    assert "here no policy can win or lose" in (tmp_path / "out" / "compare.html").read_text()


def test_prompts_that_no_server_of_the_capacity_takes_are_told(
    tmp_path: Path, trace: Path, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    longest = max(len(each) for each in prompts) * BLOCK
    for command, *policy in (("compare",), ("simulate", "--policy", "lru")):
        for capacity, is_small in ((longest, False), (longest - BLOCK, True)):
            flags = ["--capacity", str(capacity), "--threshold", str(THRESHOLD), "--page-size", str(BLOCK)]
            out = str(tmp_path / f"{command}{capacity}")
            assert main([command, "--trace", str(trace), "--out", out, "--jobs", "1", *flags, *policy]) == 0
            said = f"small: prompts have up to {longest:,} tokens, more than fit in {capacity:,}: a server refuses"
            assert (said in capsys.readouterr().err) == is_small


def test_shares_of_a_working_set_of_nothing_are_said_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = write_blocks(tmp_path / "alone.jsonl", [[1, 2], [3, 4]])
    sizes = ("--capacity", "25%", "50%", str(CAPACITY), "--threshold", str(THRESHOLD), "--page-size", str(BLOCK))
    assert main(["compare", "--out", str(tmp_path / "out"), "--trace", str(alone), *sizes, "--jobs", "1"]) == 0
    nothing = "alone: no prompt has tokens of an earlier one, its working set is 0"
    line = f"{nothing}: any share of it is one page, {BLOCK:,} tokens, and no policy can win\n"
    assert capsys.readouterr().err.count(line) == 1


def test_what_a_trace_is_too_small_for_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = write_blocks(tmp_path / "one.jsonl", [list(range(1, 3 + turn)) for turn in range(20)])
    assert compare(tmp_path / "out", one, "--policy", "lru") == 0
    assert "one: sessions: 1, fewer than 6: too few for intervals" in capsys.readouterr().err
    assert all(row["against_lru"]["mean"][1:] == [None, None] for row in rows(tmp_path / "out"))
    at_once = tmp_path / "at_once.jsonl"
    lines = [json.loads(line) | {"timestamp": 0} for line in one.read_text().splitlines()]
    at_once.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert compare(tmp_path / "other", at_once, "--policy", "lru") == 0
    assert "at_once: all requests come at one time" in capsys.readouterr().err


def test_sessions_are_drawn_with_their_subagents(tmp_path: Path) -> None:
    """Five sessions are too few for intervals, however many subagents they have."""
    for sessions, has_intervals in (5, False), (6, True):
        out, trace = tmp_path / str(sessions), f"subagents:sessions={sessions},span_s=100,calls_median=12"
        assert compare(out, trace, "--policy", "etlru", capacity=500_000) == 0
        ends = [end for row in rows(out) for _, *both in row["against_lru"].values() for end in both]
        assert any(end is not None for end in ends) == has_intervals


def test_a_policy_that_is_worse_is_told_where(tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(tmp_path / "out", trace, "--policy", "tlru", "--median-weight", "0") == 0
    out = capsys.readouterr().out
    found = {row["policy"]: row for row in rows(tmp_path / "out")}
    worse = [name for name, loss in found["tlru"]["losses"].items() if loss > 0.01]
    assert worse
    assert "tlru: worse than lru by more than 1 % in 1 of 1 settings" in out
    assert out.count(" on small, ") >= len(worse)


def test_a_run_that_was_cut_off_goes_on(done: Path, tmp_path: Path, trace: Path) -> None:
    out = tmp_path / "out"
    assert compare(out, trace) == 0
    first = rows(out)
    lines = (out / "cells.jsonl").read_text().splitlines(keepends=True)
    (out / "cells.jsonl").write_text(lines[0] + lines[2] + lines[3][:40])
    assert compare(out, trace) == 0
    again = rows(out)
    assert [again[0], again[2]] == [first[0], first[2]]  # with their seconds: not run again
    without = [{key: value for key, value in row.items() if key != "seconds"} for row in first]
    assert [{key: value for key, value in row.items() if key != "seconds"} for row in again] == without


def test_cells_of_another_trace_of_the_same_name_are_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "small.jsonl", tmp_path / "out"
    write_blocks(trace, block_lists(seed=1, requests=40))
    assert compare(out, trace) == 0
    assert "4 cells run now" in capsys.readouterr().out
    assert compare(out, trace) == 0
    assert "0 cells run now" in capsys.readouterr().out
    write_blocks(trace, block_lists(seed=2, requests=50))
    sizes = ["--capacity", str(CAPACITY), "--threshold", str(THRESHOLD), "--page-size", str(BLOCK), "--jobs", "1"]
    command = [sys.executable, "-m", "eval", "compare", "--trace", str(trace), "--out", str(out), *sizes]
    again = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)  # reads it anew
    assert "4 cells run now" in again.stdout
    assert {row["requests"] for row in rows(out)} == {50}


def test_no_cell_of_a_trace_as_it_was_before_stays_beside_those_of_now(tmp_path: Path, trace: Path) -> None:
    out, other = tmp_path / "out", write_blocks(tmp_path / "other.jsonl", block_lists(seed=3, requests=30))
    for each in trace, other:
        assert compare(out, each, "--limit", "20", "--policy", "tlru") == 0
    assert compare(out, trace, "--limit", "25", "--policy", "lru") == 0
    found = sorted((row["trace"], row["requests"]) for row in rows(out))
    assert found == [("other", 20)] * 3 + [("small", 25)] * 2


def test_a_folder_is_a_suite_of_the_traces_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    for name in ("a", "b"):
        write_blocks(folder / f"{name}.jsonl", block_lists(seed=len(name), requests=40))
    (folder / "README.md").write_text("# Traces\n")
    flags = ["--capacity", "10%", "50%", "--threshold", "4k", "8k", "--policy", "lru", "--jobs", "2"]
    assert main(["compare", "--suite", str(folder), "--out", str(tmp_path / "out"), *flags]) == 0
    said = capsys.readouterr().err
    assert "left out: " in said
    assert "README.md" in said
    found = rows(tmp_path / "out")
    assert [(row["trace"], row["capacity_asked"], row["threshold"]) for row in found[::2]] == [
        (trace, size, threshold) for trace in "ab" for size in ("10 %", "50 %") for threshold in (4_000, 8_000)
    ]
    assert found[0]["capacity"] == round(0.1 * found[0]["working_set"])


def test_variants_are_traces_of_their_own_and_one_without_requests_is_left_out(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(tmp_path / "out", trace, "--variants", "--policy", "lru") == 0
    found = {row["trace"]: row["requests"] for row in rows(tmp_path / "out")}
    whole = found["small"]
    assert list(found) == ["small", *(f"small:{name}" for name in VARIANTS)]
    assert found["small:half-1"] + found["small:half-2"] == whole == found["small:moved-1"] == found["small:slow"]
    assert 0 < found["small:first-turns"] < whole
    sets = {row["trace"]: row["working_set"] for row in rows(tmp_path / "out")}
    assert sets["small:first-turns"] == sets["small"] > sets["small:half-1"]  # nothing of first turns comes again
    assert messages(capsys) == []
    one = write_blocks(tmp_path / "one.jsonl", [[1, 2], [1, 2, 3]])
    assert compare(tmp_path / "of-one", one, "--variants", "--policy", "lru") == 0
    assert "one:half-1" not in {row["trace"] for row in rows(tmp_path / "of-one")}
    left_out, few = messages(capsys)  # few sessions: said of the trace, not of each variant
    assert left_out == "left out: one:half-1: holds no request"
    assert few.startswith("one: sessions: 1, fewer than 6")


def test_what_is_no_trace_is_left_out_once_with_its_variants(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write_blocks(folder / "a.jsonl", block_lists(seed=1, requests=40))
    (folder / "README.md").write_text("# Traces\n")
    flags = ["--capacity", "10%", "--threshold", "4k", "--policy", "lru", "--jobs", "1"]
    assert main(["compare", "--suite", str(folder), "--variants", "--out", str(tmp_path / "out"), *flags]) == 0
    assert capsys.readouterr().err.count("left out: ") == 1
    assert len({row["trace"] for row in rows(tmp_path / "out")}) == 7


def test_mixes_are_of_each_two_traces_and_have_the_figures_of_blocks_counted_by_hand(
    tmp_path: Path, trace: Path, prompts: list[list[int]], capsys: pytest.CaptureFixture[str]
) -> None:
    others = block_lists(seed=12, requests=90)
    other = str(write_blocks(tmp_path / "other.jsonl", others))
    assert compare(tmp_path / "out", trace, "--trace", other, "--mixes", "--policy", "lru") == 0
    found = {row["trace"]: row for row in rows(tmp_path / "out") if row["policy"] == "lru"}
    mixes = ["small then other", "other then small", "small amid other", "other amid small", "small with other"]
    assert list(found) == ["small", "other", *mixes]
    above = 10**6  # of other blocks
    other_prompts = [[above + block for block in each] for each in others]
    half = len(prompts) // 2
    pairs = zip(other_prompts, prompts[half : half + len(others)], strict=False)  # both begin in the same second
    amid = [*prompts[:half], *(each for pair in pairs for each in pair), *other_prompts[len(prompts) - half :]]
    by_hand = {"small then other": [*prompts, *other_prompts], "other amid small": amid}
    for name, both in by_hand.items():
        assert found[name]["prefilled"] == sum(uncached_under_lru(both, CAPACITY)), name
    assert {found[name]["requests"] for name in mixes} == {len(prompts) + len(others)}
    assert messages(capsys) == []
    assert compare(tmp_path / "one", trace, "--mixes") == 2
    assert messages(capsys)[-1].endswith(f"--mixes: needs two traces or more; {trace} is one")


def test_a_threshold_follows_from_an_objective_and_a_line_of_ttft(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["--ttft-slo", "200", "--alpha", "0.05", "--beta", "50"]
    flags = ["--trace", str(trace), "--capacity", "60k", "--policy", "lru", "--jobs", "1", *line]
    assert main(["compare", "--out", str(tmp_path / "out"), *flags]) == 0
    assert {row["threshold"] for row in rows(tmp_path / "out")} == {3_000}  # (200 − 50) / 0.05
    assert "TTFT = 50 ms + 0.05 ms · uncached (given): 200 ms is ξ = 3,000" in capsys.readouterr().out
    assert main(["compare", "--out", str(tmp_path / "assumed"), *flags[:8], "--ttft-slo", "200"]) == 0
    assert "assumed, not measured" in capsys.readouterr().out


def test_seeds_are_added_to_what_is_generated(tmp_path: Path) -> None:
    flags = ["--capacity", "50%", "--threshold", "4k", "--seeds", "3", "4", "--policy", "lru", "--jobs", "1"]
    generated = ["--trace", "synthetic:conversations=20"]
    assert main(["compare", "--out", str(tmp_path / "out"), *generated, *flags]) == 0
    assert {row["trace"] for row in rows(tmp_path / "out")} == {
        "synthetic:conversations=20,seed=3",
        "synthetic:conversations=20,seed=4",
    }


def test_parameters_are_drawn_of_what_is_generated_by_the_seeds(tmp_path: Path, trace: Path) -> None:
    flags = ["--capacity", "50%", "--threshold", "4k", "--seeds", "3", "4", "--policy", "lru", "--jobs", "1"]
    traces = ["--trace", str(trace), "synthetic:conversations=20", "synthetic:conversations=20,seed=5"]
    assert main(["compare", "--out", str(tmp_path / "out"), *traces, *flags, "--drawn"]) == 0
    assert {row["trace"] for row in rows(tmp_path / "out")} == {
        "small",
        *(drawn("synthetic:conversations=20", seed) for seed in (3, 4)),
        "synthetic:conversations=20,seed=5",
    }


def test_a_trace_of_more_parameters_than_a_file_name_has_letters_is_generated(tmp_path: Path) -> None:
    given = GENERATORS["subagents"].defaults() | {"sessions": 2, "seed": 1}
    name = "subagents:" + ",".join(f"{key}={value}" for key, value in given.items())
    assert len(name) > 255
    flags = ["--capacity", "50%", "--threshold", "4k", "--policy", "lru", "--jobs", "1"]
    assert main(["compare", "--out", str(tmp_path / "out"), "--trace", name, *flags]) == 0
    assert {row["trace"] for row in rows(tmp_path / "out")} == {name}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ([], "--trace: is required, or --suite for every kind that ships"),
        (["--trace", "nowhere.jsonl"], "trace nowhere.jsonl: no such file"),
        (["--suite", "nowhere"], "--suite nowhere: no such file or directory"),
        (
            ["--trace", "figure1", "--capacity", "x"],
            "--capacity x: must be a number of tokens, such as 500k, or a share",
        ),
        (["--trace", "figure1", "--capacity", "0%"], "--capacity 0%: must be more than 0%"),
        (["--trace", "figure1", "--capacity", "10"], "--capacity 10: must be at least one page, --page-size 64"),
        (["--trace", "figure1", "--threshold", "0"], "--threshold 0: must be 1 or more"),
        (["--trace", "figure1", "--policy", "mru"], "--policy mru: must be one of lru, tlru"),
        (["--trace", "figure1", "--jobs", "0"], "--jobs 0: must be 1 or more"),
        (["--trace", "figure1", "--seeds", "1"], "--seeds 1: none of the traces is generated without a seed"),
        (["--trace", "agents:runs=9", "--drawn"], "--drawn: needs --seeds, by which parameters are drawn, or --suite"),
        (["--trace", "figure1", "--drawn", "--seeds", "1"], "--seeds 1: none of the traces is generated without"),
        (["--trace", "figure1", "--alpha", "1"], "--alpha 1.0: needs --ttft-slo, the objective in ms"),
        (["--trace", "figure1", "--ttft-slo", "5", "--alpha", "1", "--beta", "9"], "--ttft-slo 5 ms: cannot be met"),
        (["--trace", "figure1", "--ttft-slo", "5", "--threshold", "5"], "--ttft-slo 5: not together with --threshold"),
        (["--trace", "figure1", "--median-weight", "2"], "--median-weight 2: must be a number from 0 to 1"),
        (
            ["--trace", "figure1", "--policy", "lru", "--median-weight", "1"],
            "--median-weight 1: has no effect on --",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line_and_nothing_is_written(
    flags: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "--out", "out", *flags]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"eval compare: {line}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_command_is_refused(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    sizes = ["--capacity", str(CAPACITY), "--threshold", str(THRESHOLD), "--page-size", str(BLOCK)]
    assert main(["simulate", "--trace", str(trace), "--policy", "lru", *sizes, "--out", str(out)]) == 0
    before = (out / "cells.jsonl").read_text()
    capsys.readouterr()
    for capacity in CAPACITY, 2 * CAPACITY:  # whether the cells that are asked for are there, or others
        assert compare(out, trace, capacity=capacity) == 2
        said = f"eval compare: --out {out}: holds cells of another command; give another folder\n"
        assert capsys.readouterr().err == said
    assert (out / "cells.jsonl").read_text() == before


def test_all_policies_of_the_registry_can_be_asked_for(tmp_path: Path) -> None:
    small = write_blocks(tmp_path / "small.jsonl", block_lists(seed=4, requests=30, conversations=5))
    assert compare(tmp_path / "out", small, "--policy", "all", capacity=20_480) == 0
    assert {row["policy"] for row in rows(tmp_path / "out")} == {
        name for name in EVICTIONS if not name.startswith("real-")
    }
