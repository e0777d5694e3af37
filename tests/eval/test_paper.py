"""``python -m eval paper``: its arithmetic, its honesty about sources, and a quick run of it on small traces."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.simulate.rows import Rows
from eval.simulate.timing import ASSUMED, Point, Timing, TimingError, fit, read_timing, write_timing
from eval.studies.paper import command, sources
from eval.studies.paper.grid import BOTH, Results, Study, improvement, missing, run_batch
from eval.studies.paper.published import HEADLINE, SHAREGPT, TABLES, WILDCHAT
from eval.studies.paper.sheet import per_cent
from eval.studies.paper.sources import Reading, Source, load, prompt_lengths, stand_in
from eval.studies.paper.tables import NAMES, headline, relative_latency, violations
from eval.traces import Trace, TraceError, open_trace

SMALL = "synthetic:conversations=60,birth_rate=0.15"
CAPACITIES, THRESHOLDS_MS = (2_000, 10_000), (100.0, 200.0)


def paper(out: Path, *flags: str) -> int:
    """Both halves on small traces, so that nothing asks the hub."""
    return main(["paper", "--quick", "--trace", SMALL, "--sharegpt", f"{SMALL},seed=7", "--out", str(out), *flags])


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "cells.jsonl").read_text().splitlines()]


def finished(tmp_path: Path, study: Study) -> Results:
    cells = Rows(tmp_path / "cells.jsonl")
    for batch in missing([study], cells):
        for row in run_batch(batch):
            cells.append(row)
    return Results(study, cells)


@pytest.fixture(scope="module")
def source() -> Source:
    return load(WILDCHAT, SMALL, Reading(limit=150))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("paper")
    assert paper(out) == 0
    return out


def test_an_improvement_is_the_share_that_is_gone() -> None:
    assert improvement(400, 300) == 0.25
    assert improvement(400, 500) == -0.25
    assert improvement(0, 0) is None
    assert [per_cent(share) for share in (0.2754, -0.0131, -0.0001, None)] == ["27.5", "−1.3", "0.0", "–"]


def test_milliseconds_become_tokens_by_the_line() -> None:
    assert [ASSUMED.tokens(ms) for ms in (50, 100, 200)] == [512, 1_024, 2_048]
    timing = Timing(0.05, 20.0, "given")
    assert timing.ms(600) == 50  # 20 + 0.05 · 600
    assert timing.tokens(50) == 600
    assert timing.ms(timing.tokens(51.02) + 1) > 51.02 >= timing.ms(timing.tokens(51.02))
    assert Timing(0.1, 0.0, "given").tokens(0.3) == 3  # though 0.3 / 0.1 is less, as floats are
    assert Timing(0.1, 10.0, "given", floor=5.0).corner == 0.0
    with pytest.raises(TimingError, match=r"inf ms: must be a number of ms, and less than 2\^53 tokens take"):
        timing.tokens(math.inf)
    with pytest.raises(TimingError, match=r"19 ms: cannot be met, a request without uncached tokens takes 20 ms"):
        timing.tokens(19)
    with pytest.raises(TimingError, match="alpha 0"):
        Timing(0.0, 1.0, "given")


def test_the_fit_finds_the_line_through_a_third_of_outliers() -> None:
    rng = random.Random(3)
    points = [Point(n, 12 + 0.08 * n + rng.uniform(-0.5, 0.5)) for n in (64, 256, 1_024, 4_096) for _ in range(4)]
    points += [Point(n, 3_000.0) for n in (64, 256, 1_024, 4_096) for _ in range(2)]  # someone else used the server
    found = fit(points, "measured")
    assert found.alpha == pytest.approx(0.08, rel=0.01)
    assert found.beta == pytest.approx(12, abs=1)
    assert found.r2 is not None
    assert found.r2 < 0.5  # what does not lie on the line is not hidden
    assert fit([Point(n, 12 + 0.08 * n) for n in (1, 2, 3)], "exact").r2 == pytest.approx(1)
    with pytest.raises(TimingError, match="at least two lengths"):
        fit([Point(64, 1.0), Point(64, 2.0)], "measured")
    with pytest.raises(
        TimingError, match=r"^TTFT of 64 to 128 uncached tokens: must rise with length, and changes by -0.1"
    ):
        fit([Point(64, 20.0), Point(128, 10.0)], "measured")


LENGTHS = (64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192)


def test_the_fit_finds_the_corner_below_which_prefill_time_is_flat() -> None:
    rng = random.Random(3)
    points = [Point(n, max(26.0, 1 + 0.025 * n) * rng.uniform(0.98, 1.02)) for n in LENGTHS for _ in range(5)]
    points += [Point(n, 3_000.0) for n in LENGTHS]  # someone else used the server
    found = fit(points, "measured")
    assert found.floor == pytest.approx(26, rel=0.05)
    assert found.alpha == pytest.approx(0.025, rel=0.03)
    assert found.corner == pytest.approx(1_000, rel=0.1)
    assert found.ms(64) == found.ms(512) == found.floor
    assert found.tokens(50) == pytest.approx(1_960, rel=0.05)
    assert str(found).startswith("TTFT = max(2")
    with pytest.raises(TimingError, match=r"20 ms: cannot be met, a request without uncached tokens takes 2\d"):
        found.tokens(20)


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_finds_no_corner_in_a_line(seed: int) -> None:
    rng = random.Random(seed)
    found = fit([Point(n, (20 + 0.1 * n) * rng.uniform(0.9, 1.1)) for n in LENGTHS for _ in range(5)], "measured")
    assert found.floor == found.corner == 0
    assert found.alpha == pytest.approx(0.1, rel=0.1)


def test_alpha_and_beta_are_kept_in_a_file(tmp_path: Path) -> None:
    measured = fit([Point(100, 20.0), Point(200, 30.0)], "measured on a server")
    write_timing(tmp_path / "timing.json", measured)
    assert read_timing(tmp_path / "timing.json") == measured
    bent = replace(measured, floor=25.0)
    write_timing(tmp_path / "bent.json", bent)
    assert read_timing(tmp_path / "bent.json") == bent
    (tmp_path / "short.json").write_text('{"alpha": 0.1, "beta": 5}')
    assert read_timing(tmp_path / "short.json").tokens(105) == 1_000
    (tmp_path / "bad.json").write_text('{"alpha": "fast"}')
    with pytest.raises(TimingError, match=r"bad\.json: not an object with alpha and beta"):
        read_timing(tmp_path / "bad.json")
    (tmp_path / "flat.json").write_text('{"alpha": 0, "beta": 5}')
    with pytest.raises(TimingError, match=r"--timing .*flat\.json: alpha 0: must be a number of ms a token above 0"):
        read_timing(tmp_path / "flat.json")
    with pytest.raises(TimingError, match=r"none\.json: No such file"):
        read_timing(tmp_path / "none.json")


def test_the_headline_is_in_the_tables_of_the_paper() -> None:
    for entry in HEADLINE:
        assert TABLES[entry.table].at(entry.capacity, entry.threshold_ms, entry.column) == entry.per_cent
    assert TABLES[1].at(10_000, 300.0, "p90") is None
    for table in TABLES.values():
        assert {len(row) for row in table.rows.values()} == {len(table.columns)}


def test_a_cell_of_a_table_is_what_two_runs_of_the_simulator_say(source: Source, tmp_path: Path) -> None:
    study = Study(source, ASSUMED, (10_000,), (100.0,), 200)
    results = finished(tmp_path, study)
    uncached = {}
    for policy in ("lru", "tlru"):
        cache = simulated_cache(policy, 10_000, threshold=1_024, next_prompt_estimate=200, forced=False)
        cached = simulate(cache, source.requests)
        uncached[policy] = np.array([request.prompt_tokens for request in source.requests]) - cached
    before, after = (np.percentile(uncached[policy], 95) for policy in ("lru", "tlru"))
    expected = (before - after) / before
    assert results.faster("lru", 10_000, 100.0, "p95") == pytest.approx(expected)  # with β = 0 tokens are as good as ms
    over_before, over_after = (int((uncached[policy] > 2_048).sum()) for policy in ("lru", "tlru"))
    assert over_before > 0
    assert results.fewer("lru", 10_000, 100.0) == pytest.approx((over_before - over_after) / over_before)
    assert per_cent(expected) in relative_latency(results, "lru").lines[0].cells
    assert per_cent(results.fewer("lru", 10_000, 100.0)) in violations(results).lines[0].cells


def test_pages_are_as_large_where_rates_are_learned() -> None:
    studies = command.studies_of_learned_rates(Reading(), ASSUMED, command.QUICK, 0.0, page_size=16)
    assert {study.page_size for study in studies} == {16}


def test_a_request_without_uncached_tokens_counts_with_beta(source: Source, tmp_path: Path) -> None:
    results = finished(tmp_path, Study(source, Timing(0.1, 50.0, "given"), (10_000,), (200.0,), 200))
    lru, ours = (results.row(policy, 10_000, 200.0)["p90"] for policy in ("lru", "tlru"))
    assert results.faster("lru", 10_000, 200.0, "p90") == pytest.approx((lru - ours) * 0.1 / (50 + lru * 0.1))
    assert results.row("lru", 10_000, 200.0)["objective"] == 1_500  # (200 - 50) / 0.1


def test_knowing_more_of_the_future_never_beats_knowing_all_of_it(source: Source, tmp_path: Path) -> None:
    study = Study(source, ASSUMED, CAPACITIES, THRESHOLDS_MS, 200, future_ms=THRESHOLDS_MS)
    results = finished(tmp_path, study)
    for capacity in CAPACITIES:
        for ms in THRESHOLDS_MS:
            tel = {policy: results.row(policy, capacity, ms)["tel"] for policy in NAMES if policy != "etlru-given"}
            assert tel["tail-belady"] == min(tel.values())
            assert tel["lru"] > tel["tail-belady"]
            assert results.gap_closed("lru", capacity, ms) == 0
            assert results.gap_closed("tail-belady", capacity, ms) == 1


def test_length_aware_as_in_the_paper_drops_conversations_that_have_ended(tmp_path: Path) -> None:
    # Two contexts of 600 tokens fit. A and C end with their first turns, B comes back: LRU's order drops B for C.
    turns = [("B", 0, 600), ("A", 0, 600), ("C", 0, 600), ("B", 600, 700)]
    trace = Trace("ended", "given", [conversation_turn(number, *turn) for number, turn in enumerate(turns)])
    ended = Source(WILDCHAT, trace, "", 100)
    study = Study(ended, Timing(0.1, 0.0, "given"), (1_200,), (200.0,), 100, future_ms=(200.0,))
    results = finished(tmp_path, study)
    assert results.row("length-aware", 1_200, 200.0)["hit_ratio"] == 0
    assert results.row(BOTH, 1_200, 200.0)["hit_ratio"] == pytest.approx(600 / 2_500)


def conversation_turn(number: int, conversation: str, history: int, length: int) -> Any:
    from eval.traces import Request
    from eval.traces.request import Path as Context

    first = 10 * ord(conversation)
    ends = (history, length) if history else (length,)
    context = Context(range(first, first + len(ends)), ends)
    return Request(float(number), conversation, context, context, length, 0)


def test_results_of_a_trace_with_other_prefixes_are_not_taken_for_those_of_this_one() -> None:
    turns = [("A", 0, 600), ("B", 0, 600), ("A", 600, 700)]
    ours = [conversation_turn(number, *turn) for number, turn in enumerate(turns)]
    others = [*ours[:2], conversation_turn(2, "B", 600, 700)]  # as long, at the same time, and it goes on with B
    keys = {Source(WILDCHAT, Trace("same", "given", requests), "", 100).key for requests in (ours, others)}
    assert len(keys) == 2


def test_an_objective_below_the_next_prompt_makes_tlru_lru(source: Source, tmp_path: Path) -> None:
    study = Study(source, Timing(1.0, 0.0, "a slow machine"), (10_000,), (200.0,), 250)  # ξ = 200 < Q̂ = 250
    results = finished(tmp_path, study)
    assert results.faster("lru", 10_000, 200.0, "p90") == 0
    assert results.fewer("lru", 10_000, 200.0) == 0


def test_a_trace_on_which_tlru_is_lru_is_named(tmp_path: Path) -> None:
    long = f"{SMALL},prompt_mean=4000,seed=7"  # ξ is 1,024 and 2,048 tokens
    assert paper(tmp_path, "--limit", "40", "--sharegpt", long) == 0
    assert (
        f"- ξ_s = 100 ms, 200 ms: ξ is not above the Q̂ of {long}, so that T-LRU is LRU there.\n"
        in (tmp_path / "paper.md").read_text()
    )


def test_where_the_optimum_has_more_tel_than_lru_there_is_no_gap_to_close(source: Source, tmp_path: Path) -> None:
    study, cells = Study(source, ASSUMED, (10_000,), (100.0,), 200), Rows(tmp_path / "cells.jsonl")
    for policy, tel in (("lru", 1_000), ("tlru", 900), ("tail-belady", 1_100)):
        cells.append({"cell": study.cell(policy, 10_000, 100.0).name, "tel": tel})
    assert Results(study, cells).tel_saved("tlru", 10_000, 100.0) == pytest.approx(0.1)
    assert Results(study, cells).gap_closed("tlru", 10_000, 100.0) is None


def test_prompt_lengths_are_what_each_turn_adds() -> None:
    turns = [("A", 0, 600), ("B", 0, 50), ("A", 600, 700)]
    requests = [conversation_turn(number, *turn) for number, turn in enumerate(turns)]
    assert prompt_lengths(requests) == [600, 50, 100]


def test_a_prompt_whose_history_was_cut_adds_all_that_follows_what_is_left(tmp_path: Path) -> None:
    file = tmp_path / "cut.jsonl"
    histories = [*range(10)], [*range(20)], [0, 30]  # blocks of 512 tokens
    rows = [
        {"timestamp": at, "input_length": 512 * len(ids), "output_length": 10, "hash_ids": ids, "session_id": "A"}
        for at, ids in enumerate(histories)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prompt_lengths(open_trace(str(file)).requests) == [5_120, 5_120, 512]
    assert load(WILDCHAT, str(file), Reading()).next_prompt_estimate == round((5_120 + 5_120 + 512) / 3)


def test_what_cannot_be_loaded_is_replaced_and_the_output_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(name: str, **options: Any) -> Trace:
        if name in (WILDCHAT.hub, SHAREGPT.hub):
            raise TraceError(f"trace {name}: not reachable")
        return open_trace(name, **options)

    monkeypatch.setattr(sources, "open_trace", offline)
    reading = Reading(limit=400, seed=5)
    for data in (WILDCHAT, SHAREGPT):
        found = load(data, None, reading)
        assert len(found.requests) == 400
        assert found.statement.startswith("synthetic model, seed 5, 400 turns")
        assert found.statement.endswith(f"{data.name} could not be loaded: trace {data.hub}: not reachable")
        assert found.label == f"synthetic model for {data.name}"
        assert found.next_prompt_estimate == pytest.approx(data.next_prompt_estimate, rel=0.35)
    with pytest.raises(TraceError, match=r"nowhere\.jsonl: no such file"):
        load(WILDCHAT, "nowhere.jsonl", reading)


def test_the_stand_in_for_sharegpt_has_the_rates_of_the_paper() -> None:
    model = stand_in(SHAREGPT, Reading())
    assert (model.birth_rate, model.turn_rate, model.prompt_mean) == (1.0, 3.0, 100.0)
    assert 1 + model.turn_rate * model.mean_life_s == pytest.approx(3.5)  # turns of a conversation


def test_a_file_of_the_data_set_is_named_with_how_its_tokens_were_counted(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 800}]
    path = tmp_path / "talks.json"
    path.write_text(json.dumps([{"id": str(number), "conversations": turns} for number in range(3)]))
    found = load(SHAREGPT, str(path), Reading(seed=2))
    assert found.statement == (
        "talks (sharegpt): 3 turns, 3 conversations, prompts of 100 tokens on average, "
        "tokens counted by 4 characters a token, not the model's tokenizer, "
        "stamped with λ_conv = 1, λ_turn = 3 as in section G.2, seed 2"
    )
    assert found.next_prompt_estimate == 100


def test_a_quick_run_has_every_table_figure_and_policy(quick: Path) -> None:
    page = (quick / "paper.md").read_text()
    for number in range(1, 7):
        assert f"### Table {number}. " in page
    assert sorted(path.name for path in (quick / "figures").iterdir()) == [f"figure-{n}.png" for n in range(3, 8)]
    assert all(f"| {name} |" in page for policy, name in NAMES.items() if policy != "etlru-given")
    assert {row["policy"] for row in rows(quick)} == set(NAMES)
    assert (
        page.count("From the paper: ") == page.count("\n### Table") + 2
    )  # each says what is whose; two have no number
    assert "assumed, not measured" in page
    assert f"- Tables 1, 2, 3, Figures 4 and 6: {SMALL} (synthetic): " in page
    assert "*20.0*" in page  # Table 1 of the paper at a capacity of 10,000 and ξ_s = 100 ms
    assert all(not row["forced"] and row["page_size"] == 1 for row in rows(quick))


def test_a_run_is_the_same_again_and_side_by_side(quick: Path, tmp_path: Path) -> None:
    assert paper(tmp_path, "--jobs", "2") == 0
    assert (tmp_path / "cells.jsonl").read_bytes() == (quick / "cells.jsonl").read_bytes()
    assert (tmp_path / "paper.md").read_text() == (quick / "paper.md").read_text()


def test_a_run_goes_on_where_it_was(quick: Path, tmp_path: Path) -> None:
    whole = (quick / "cells.jsonl").read_text()
    (tmp_path / "cells.jsonl").write_text(whole[: len(whole) // 2])
    source = load(WILDCHAT, SMALL, Reading(limit=300))
    study = Study(source, ASSUMED, CAPACITIES, THRESHOLDS_MS, source.next_prompt_estimate)
    there = Rows(tmp_path / "cells.jsonl")
    assert missing([study], there) == []  # the first half of the file is the first trace
    slower = Study(source, Timing(0.2, 0.0, "given"), CAPACITIES, (400.0,), source.next_prompt_estimate)
    cells = [cell for batch in missing([slower], there) for cell in batch.cells]
    assert cells == slower.cells()  # ξ is the same 2,000-odd tokens, but 200 ms are others


def test_the_headline_names_the_best_cell_of_ours(source: Source, tmp_path: Path) -> None:
    results = finished(tmp_path, Study(source, ASSUMED, CAPACITIES, THRESHOLDS_MS, 200))
    best = max(results.faster("lru", c, ms, "p95") or 0.0 for c in CAPACITIES for ms in THRESHOLDS_MS)
    p95 = headline(results).lines[1].cells
    assert p95[1] == "23.9"
    assert p95[3] == per_cent(results.faster("lru", 10_000, 200.0, "p95"))
    assert p95[4] == per_cent(best)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--beta", "3"], "--beta 3: needs --alpha"),
        (["--alpha", "0.1", "--timing", "t.json"], "only one of these"),
        (["--alpha", "-1"], "--alpha -1: must be more than 0"),
        (["--alpha", "0.1", "--beta", "250"], "200 ms: cannot be met"),
        (["--alpha", "0.1", "--beta", "-1"], "--beta -1: must be 0 or more"),
        (["--calibrate", "ftp://x"], "--calibrate ftp://x: must be the URL of a server"),
        (["--calibrate", "here"], "--calibrate here: must be the URL of a server, such as http://127.0.0.1:30000"),
        (["--jobs", "0"], "--jobs 0: must be 1 or more"),
        (["--limit", "0"], "--limit 0: must be 1 or more"),
        (["--page-size", "4k"], "--capacity 2000: must be at least one page, --page-size 4000"),
        (["--trace", "nowhere.jsonl"], "trace nowhere.jsonl: no such file"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert paper(tmp_path / "out", *flags) == 2
    assert not (tmp_path / "out").exists()
    error = capsys.readouterr().err
    assert error.startswith("eval paper: ")
    assert message in error
    assert error.count("\n") == 1
