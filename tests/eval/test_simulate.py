"""``python -m eval simulate`` and ``through-sglang`` as a user runs them, on a trace that the test writes."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from eval.__main__ import main
from eval.simulate.rows import Rows, digest_of
from eval.simulate.table import label, short
from eval.traces import Trace
from eval.traces.request import Path as TokenPath
from eval.traces.request import Request
from tests.helpers.random_traces import branching

KEYS = {
    *("trace", "policy", "capacity", "threshold", "next_prompt_estimate", "page_size", "requests", "hit_ratio"),
    *("mean", "p50", "p90", "p95", "p99", "tel", "violations", "gap_closed", "seconds"),
}
BLOCK = 512


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Mooncake trace of 30 conversations, 150 turns, each adding 1 to 6 blocks."""
    rng = random.Random(11)
    blocks = iter(range(10**6))
    conversations: list[list[int]] = [[] for _ in range(30)]
    lines = []
    for number in range(150):
        conversation = rng.choice(conversations)
        conversation += [next(blocks) for _ in range(rng.randrange(1, 7))]
        length = len(conversation) * BLOCK - rng.randrange(BLOCK)
        record = {"timestamp": number * 1000, "input_length": length, "output_length": 64, "hash_ids": conversation}
        lines.append(json.dumps(record))
    path = tmp_path_factory.mktemp("trace") / "small.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def simulate(trace: Path, out: Path, *flags: str, command: str = "simulate") -> int:
    sizes = {
        "--trace": [str(trace)],
        "--capacity": ["40k", "80k"],
        "--threshold": ["1024", "4096"],
        "--page-size": [str(BLOCK)],
    }
    given = [word for name, values in sizes.items() if name not in flags for word in (name, *values)]
    return main([command, "--out", str(out), *given, *flags])


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


def without_times(out: Path) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows(out)]


def test_every_combination_is_a_cell_with_the_promised_keys(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path, "--policy", "lru", "tlru", "tail-belady") == 0
    cells = rows(tmp_path)
    assert len(cells) == 3 * 2 * 2
    for cell in cells:
        assert cell.keys() >= KEYS
        assert cell["requests"] == 150
        assert cell["gap_closed"] == {"lru": 0.0, "tail-belady": 1.0}.get(cell["policy"], cell["gap_closed"])
        assert cell["gap_closed"] <= 1
        assert cell["p50"] <= cell["p90"] <= cell["p95"] <= cell["p99"]
    assert [cell["capacity"] for cell in cells[:4]] == [40_000, 40_000, 80_000, 80_000]


def test_a_cell_that_is_there_is_not_run_again(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path, "--policy", "lru") == 0
    before = rows(tmp_path)
    assert simulate(trace, tmp_path, "--policy", "lru", "tlru") == 0
    assert rows(tmp_path)[: len(before)] == before  # their seconds, too, are those of the first run
    assert len(rows(tmp_path)) == 2 * len(before)


def test_a_run_cut_off_in_the_middle_of_a_line_goes_on(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path / "whole", "--policy", "tlru") == 0
    assert simulate(trace, tmp_path / "cut", "--policy", "tlru") == 0
    file = tmp_path / "cut" / "cells.jsonl"
    file.write_text(file.read_text()[:-50])
    assert simulate(trace, tmp_path / "cut", "--policy", "tlru") == 0
    assert without_times(tmp_path / "cut") == without_times(tmp_path / "whole")


SOME = ("--policy", "lru", "tlru", "tail-belady")


def test_cells_side_by_side_give_the_same_rows(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path / "one", *SOME) == 0
    assert simulate(trace, tmp_path / "jobs", *SOME, "--jobs", "2") == 0
    assert without_times(tmp_path / "one") == without_times(tmp_path / "jobs")


@pytest.mark.long  # it is the same jobs, but a cluster takes a while to come up
def test_cells_on_ray_give_the_same_rows(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path / "one", *SOME) == 0
    sizes = ("--capacity", "40k", "80k", "--threshold", "1024", "4096", "--page-size", str(BLOCK))
    files = ("--trace", str(trace), "--out", str(tmp_path / "ray"))
    on_ray = subprocess.run(  # a process of its own, which the cluster ends with
        [sys.executable, "-m", "eval", "simulate", *files, *sizes, *SOME, "--ray", "local", "--jobs", "2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert on_ray.returncode == 0, on_ray.stderr[-2000:]
    assert without_times(tmp_path / "one") == without_times(tmp_path / "ray")


def test_the_requests_of_a_cell_add_up_to_its_row(trace: Path, tmp_path: Path) -> None:
    assert simulate(trace, tmp_path, "--policy", "tlru", "--per-request") == 0
    for row in rows(tmp_path):
        requests = pyarrow.parquet.read_table(tmp_path / f"{row['cell']}.parquet").to_pydict()
        assert len(requests["arrival_s"]) == row["requests"]
        over = [max(tokens - row["threshold"], 0) for tokens in requests["uncached_tokens"]]
        assert sum(over) == row["tel"]
        assert sum(map(bool, over)) == row["violations"]
        assert sum(requests["evicted_tel_safe"]) == row["evicted"].get("tel_safe", 0)
        assert sum(requests["evicted_lru"]) == row["evicted"].get("lru", 0)
        assert requests["prompt_tokens"] == [
            cached + uncached
            for cached, uncached in zip(requests["cached_tokens"], requests["uncached_tokens"], strict=True)
        ]


@pytest.mark.parametrize("threshold", ["1024", pytest.param("4096", marks=pytest.mark.long)])
@pytest.mark.parametrize("policy", [pytest.param("tlru", marks=pytest.mark.long), "etlru"])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param((), id="learned"),
        pytest.param(("--next-prompt-estimate", "200"), id="pinned", marks=pytest.mark.long),
        pytest.param(("--median-weight", "0.5"), id="weighted", marks=pytest.mark.long),
    ],
)
def test_the_real_cache_and_the_simulator_agree_in_every_request(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    policy: str,
    settings: tuple[str, ...],
    threshold: str,
) -> None:
    cells = ("--threshold", threshold, *settings)
    assert simulate(trace, tmp_path, "--policy", f"real-{policy}", *cells, command="through-sglang") == 0
    assert capsys.readouterr().out.count(" 0 of 150") == 2
    assert simulate(trace, tmp_path, "--policy", policy, *cells) == 0
    figures = {
        (row["policy"], row["capacity"], row["threshold"]): (row["tel"], row["mean"], row["p95"])
        for row in rows(tmp_path)
    }
    assert len(figures) == 4
    for (_, capacity, xi), figure in figures.items():
        assert figure == figures[policy, capacity, xi]


def test_a_weight_is_of_the_policies_that_weigh(trace: Path, tmp_path: Path) -> None:
    sizes = "--capacity 40k --threshold 1024 --next-prompt-estimate 200"
    settings = f"{sizes} --median-weight 0 0.5 1".split()
    assert simulate(trace, tmp_path, "--policy", "lru", "sglang-lru", "tlru", *settings) == 0
    assert simulate(trace, tmp_path, "--policy", "real-tlru", *settings, command="through-sglang") == 0
    found: dict[str, dict[float, int]] = {}
    for row in rows(tmp_path):
        if (row["capacity"], row["threshold"]) == (40_000, 1_024):
            found.setdefault(row["policy"], {})[row["median_weight"]] = row["tel"]
    assert {policy: set(tels) for policy, tels in found.items()} == {
        "lru": {0.0},
        "sglang-lru": {0.0},
        "tlru": {0.0, 0.5, 1.0},
        "real-tlru": {0.0, 0.5, 1.0},
    }
    for policy in ("tlru", "real-tlru"):
        assert found[policy][1.0] == found["lru"][0.0] != found[policy][0.0]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--policy", "fifo"), "--policy fifo: must be one of lru, tlru,"),
        (("--capacity", "much"), "--capacity much: must be a whole number of tokens, such as 65536, 64k or 2M"),
        (("--capacity", "-5"), "--capacity -5: must be a whole number of tokens"),
        (("--capacity", "100"), "--capacity 100: must be at least one page, --page-size 512"),
        (("--threshold", "100"), "--threshold 100: must be more than 200, the tokens that"),
        (("--page-size", "0"), "--page-size 0: must be 1 or more"),
        (("--jobs", "0"), "--jobs 0: must be 1 or more"),
        (("--ray", "local", "--jobs", "-1"), "--jobs -1: must be 1 or more"),
        (("--ray", ""), "--ray '': must be 'local' or HOST:PORT of a cluster"),
        (("--median-weight", "2"), "--median-weight 2: must be a number from 0 to 1"),
        (("--median-weight", "load"), "--median-weight load: must be a number from 0 to 1; load was removed"),
        (("--policy", "lru", "--median-weight", "0.5"), "--median-weight 0.5: has no effect on --policy lru; leave it"),
        (("--trace", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--optional-caching", "--policy", "vllm"), "--optional-caching: vllm caches every context"),
    ],
)
def test_a_wrong_flag_is_one_line_and_status_2(
    trace: Path, tmp_path: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(trace, tmp_path, *flags) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed
    assert "\n" not in printed
    assert not (tmp_path / "cells.jsonl").exists(), "nothing is run that cannot be run whole"


def test_an_estimate_belongs_to_the_policies_that_use_it_and_is_named_among_several(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    estimates = ("--next-prompt-estimate", "100", "400")
    assert simulate(trace, tmp_path, "--policy", "lru", "tlru", *estimates, "--capacity", "40k") == 0
    assert [(row["policy"], row["next_prompt_estimate"]) for row in rows(tmp_path) if row["threshold"] == 4096] == [
        ("lru", 100),
        ("tlru", 100),
        ("tlru", 400),
    ]
    printed = capsys.readouterr().out
    assert printed.count("tlru Q̂=100 ") == printed.count("tlru Q̂=400 ") == 2
    assert printed.count("Q̂") == 4
    assert simulate(trace, tmp_path, "--policy", "lru", "tlru", "--capacity", "40k") == 0
    assert "Q̂" not in capsys.readouterr().out


def test_requests_that_were_not_kept_are_kept_when_asked_for(trace: Path, tmp_path: Path) -> None:
    cells = ("--policy", "tlru", "--capacity", "40k", "--threshold", "1024")
    assert simulate(trace, tmp_path, *cells) == 0
    assert simulate(trace, tmp_path, *cells, "--per-request") == 0
    (row,) = rows(tmp_path)
    kept = tmp_path / f"{row['cell']}.parquet"
    assert pyarrow.parquet.read_table(kept).num_rows == row["requests"]
    before = kept.stat().st_mtime_ns
    assert simulate(trace, tmp_path, *cells, "--per-request") == 0
    assert kept.stat().st_mtime_ns == before


def test_each_real_cache_of_ours_is_held_against_the_simulator(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ("--policy", "real-tlru-python", "--capacity", "40k", "--threshold", "1024", "--next-prompt-estimate")
    assert simulate(trace, tmp_path, *cells, "100", "400", command="through-sglang") == 0
    *_, first, second = (line for line in capsys.readouterr().out.splitlines() if "real-tlru-python" in line)
    assert "0 of 150" in first
    assert " 100 " in first
    assert " 400 " in second


def test_without_a_counterpart_there_is_no_table_of_agreement(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ("--policy", "sglang-slru", "--capacity", "40k", "--threshold", "1024")
    assert simulate(trace, tmp_path, *cells, command="through-sglang") == 0
    assert "Real cache and simulator" not in capsys.readouterr().out
    assert simulate(trace, tmp_path, *cells, "--page-size", "0", command="through-sglang") == 2
    assert capsys.readouterr().err.startswith("eval through-sglang: --page-size 0")


def test_results_of_another_trace_are_not_mixed_in(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(trace, tmp_path, "--policy", "lru") == 0
    assert simulate(trace, tmp_path, "--policy", "lru", "--limit", "100") == 2
    assert "holds results of small as it was then; give" in capsys.readouterr().err
    other = trace.with_name("other.jsonl")
    other.write_bytes(trace.read_bytes())
    assert simulate(other, tmp_path, "--policy", "lru") == 2
    assert "holds results of small and not of other; give" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trace": "sm'])
def test_a_folder_that_does_not_say_of_which_trace_it_is_is_refused(
    trace: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trace.json").write_text(text)
    assert simulate(trace, tmp_path, "--policy", "lru") == 2
    said = f"eval simulate: {tmp_path / 'trace.json'}: does not say which trace it is of; give another folder\n"
    assert capsys.readouterr().err == said


def test_cells_that_compare_made_are_not_taken_for_those_of_a_trace_that_has_changed_since(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    same = ("--policy", "lru", "--capacity", "40k", "--threshold", "1024")
    assert simulate(trace, out, *same, "--jobs", "1", command="compare") == 0
    kept = sorted(each.name for each in out.iterdir())
    lines = trace.read_text().splitlines()
    other = tmp_path / trace.name
    other.write_text("\n".join(lines[:100]) + "\n")
    assert simulate(other, out, *same) == 2
    said = f"eval simulate: --out {out}: holds cells that do not say of which trace; give another folder\n"
    assert capsys.readouterr().err.endswith(said)
    assert sorted(each.name for each in out.iterdir()) == kept


def test_cells_before_a_line_that_was_cut_off_are_kept_where_nothing_more_can_be_written(
    trace: Path, tmp_path: Path
) -> None:
    assert simulate(trace, tmp_path, "--policy", "lru") == 0
    file = tmp_path / "cells.jsonl"
    whole, kept = file.read_text(), rows(tmp_path)
    file.write_text(f'{whole}{{"cell": ')
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))  # bytes of a file, as a full disk would have it
    try:
        found = Rows(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert file.read_text() == whole
    assert [found[row["cell"]] for row in kept] == kept


def test_a_weight_is_named_unless_it_is_the_policys_own() -> None:
    assert label("etlru", None) == "etlru"
    assert label("etlru", 0.0) == "etlru w=0"
    assert label("real-etlru", 0.0) == "real-etlru w=0"
    assert label("tlru", 0.0) == "tlru"
    assert label("tlru", 0.2) == "tlru w=0.2"
    assert label("tail-belady", 0.0) == "tail-belady"


def test_the_table_says_what_changes_are_against(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--capacity", "40k", "--threshold", "1024")
    assert simulate(trace, tmp_path, *one, "--policy", "tlru", "lru") == 0
    assert "uncached tokens of a request, changes against lru" in " ".join(capsys.readouterr().out.split())
    assert simulate(trace, tmp_path, *one, "--policy", "tlru", "tail-belady") == 0
    assert "changes against" not in " ".join(capsys.readouterr().out.split())


def test_a_capacity_next_to_a_round_one_is_no_power_of_ten(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(trace, tmp_path, "--capacity", "9999999", "--threshold", "1024", "--policy", "lru") == 0
    assert capsys.readouterr().out.startswith("10 M tokens of cache")


def test_a_folder_whose_cells_are_none_is_refused_and_left_as_it_is(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "cells.jsonl").write_text("{}\n")
    assert simulate(trace, tmp_path / "out", "--policy", "lru") == 2
    assert "cells.jsonl:1: not a row of cells; mend or delete it" in capsys.readouterr().err
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["cells.jsonl"]


def test_results_of_a_trace_with_other_prefixes_are_not_mixed_in(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    lines[-1]["hash_ids"] = [-1, *lines[-1]["hash_ids"][1:]]  # the last prompt begins with a block of its own
    other = tmp_path / trace.name
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert simulate(trace, tmp_path / "out", "--policy", "lru") == 0
    assert simulate(other, tmp_path / "out", "--policy", "lru") == 2
    assert "holds results of small" in capsys.readouterr().err


@pytest.mark.parametrize("field", [field.name for field in fields(Request) if field.name != "messages"])
def test_a_digest_changes_with_each_field_that_policies_see(field: str) -> None:
    first, last = branching(["ab", "abcd"], [1, 3], whole_messages=False)
    told: dict[str, Any] = {"ending": (1, 0), "wait_s": 0.0}
    for path in ("prompt", "context"):  # that end in another token
        told[path] = TokenPath((*getattr(last, path).ids[:-1], 99), getattr(last, path).ends)
    value = told.get(field, 7 if field.endswith(("_s", "_tokens", "_rate")) else "x")
    changed = Trace("t", "f", [first, replace(last, **{field: value})])
    assert digest_of(changed) != digest_of(Trace("t", "f", [first, last]))


def test_without_ray_the_command_says_what_to_install(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # which Python then takes to be missing
    sizes = ("--capacity", "20k", "--threshold", "2000", "--ray", "local", "--out", str(tmp_path / "out"))
    assert main(["simulate", "--trace", str(trace), *sizes]) == 2
    said = capsys.readouterr().err
    assert "--ray local: needs the package ray: in a checkout, pip install '.[ray]'" in said


def test_tokens_of_the_table_have_four_digits_at_most_and_no_thousands_of_a_unit() -> None:
    tokens = (4_096, 9_999, 64_000, 167_200, 999_900, 1_500_000, 6_178_270, 95_960_000, 1_445_507_103)
    shown = ["4,096", "9,999", "64 k", "167.2 k", "999.9 k", "1.5 M", "6.178 M", "95.96 M", "1.446 G"]
    assert [short(number) for number in tokens] == shown
