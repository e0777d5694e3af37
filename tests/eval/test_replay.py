"""What is kept of a replay, and what is said of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from eval.live.replay.facts import Facts
from eval.live.replay.predict import Prediction, refusal, requests_of
from eval.live.replay.rows import Folder, FolderError, Part
from eval.live.replay.summary import NoResultError, Sorted, interval_note, summarise
from eval.live.replay.table import comparison_table, markdown, sentences, server_sentences
from eval.live.replay.turns import Conversation, Load, Segment, Turn
from eval.simulate.timing import Timing
from tests.helpers.replays import FACTS, ROWS, RUN, played, row

BETTER = [
    row(0, 0, 0, 1000, 0, 40.0),
    row(1, 1, 0, 1200, 1100, 5.0),
    row(2, 0, 1, 1500, 900, 20.0),
    row(3, 1, 1, 1600, 1100, 15.0),
]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "run", RUN)
    for repeat in range(2):
        played(made, "stock lru", repeat, ROWS)
        played(made, "ours", repeat, BETTER)
    return made


def test_each_repeat_begins_with_another_arm(folder: Folder) -> None:
    assert list(folder.order()) == [(0, "stock lru"), (0, "ours"), (1, "ours"), (1, "stock lru")]
    assert folder.missing == []


def test_a_part_that_was_cut_off_is_missing_and_its_rows_stay(tmp_path: Path) -> None:
    first = Folder(tmp_path, RUN)
    played(first, "stock lru", 0, ROWS)
    with first.begin("ours", 0) as file:
        file.append(BETTER[0])
    again = Folder(tmp_path, RUN)
    assert again.missing == [(0, "ours"), (1, "ours"), (1, "stock lru")]
    assert again.rows("ours", 0) == BETTER[:1]
    assert again.finished_rows("ours") == []
    played(again, "ours", 0, BETTER)
    assert again.rows("ours", 0) == BETTER
    assert (tmp_path / "rows" / "0-ours.cut-off-1.jsonl").read_text().count("\n") == 1


def test_half_a_line_is_not_a_row_and_not_a_part(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, ROWS)
    for path in (folder.file("stock lru", 0), tmp_path / "parts.jsonl"):
        path.write_bytes(path.read_bytes()[:-20])
    again = Folder(tmp_path, RUN)
    assert again.rows("stock lru", 0) == ROWS[:-1]
    assert not again.done("stock lru", 0)
    played(again, "stock lru", 0, ROWS)
    assert Folder(tmp_path, RUN).done("stock lru", 0)


def test_a_folder_belongs_to_one_run(folder: Folder) -> None:
    other = msgspec.structs.replace(RUN, threshold=700)
    with pytest.raises(FolderError, match="holds a run with threshold 600, not 700; give another folder"):
        Folder(folder.path, other)


def test_a_folder_of_another_load_is_refused_without_the_digests_of_loads(folder: Folder) -> None:
    other = msgspec.structs.replace(RUN, digest=f"{RUN.digest}0")
    said = "holds a run of another load: lengths, times, seed or flags of all servers differ; give another folder$"
    with pytest.raises(FolderError, match=said):
        Folder(folder.path, other)


def test_a_broken_row_is_named_by_file_and_line(folder: Folder) -> None:
    path = folder.file("ours", 1)
    path.write_text(path.read_text().replace('"turn":0', '"turn":"none"', 1))
    with pytest.raises(FolderError, match=r"1-ours.jsonl:1: .*turn"):
        folder.rows("ours", 1)


def test_a_full_disk_ends_the_run_in_one_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    folder.file("ours", 0).symlink_to("/dev/full")
    with folder.begin("ours", 0) as file, pytest.raises(OSError, match="No space left on device"):
        file.append(ROWS[0])


# ---- what is said of it ----


def test_a_summary_counts_what_exceeds_the_threshold(folder: Folder) -> None:
    stock, ours = summarise(folder)
    assert (stock.requests, stock.errors) == (8, 0)
    assert stock.figures["violations"].value == 2  # of one repeat; exactly 600 still meets the objective
    assert stock.figures["tel"].value == 400 + 100
    assert stock.figures["hit_ratio"].value == pytest.approx(2800 / 5300)
    assert stock.figures["uncached_p50"].value == 600
    assert stock.figures["ttft_p99"].value == 40
    # Each answer has a token after 1 ms and one after 3 ms, so half of them came within 1 ms.
    assert [stock.figures[f"itl_p{p}"].value for p in (50, 95, 99)] == [1, 3, 3]
    assert stock.tokens_per_s == 8 * 4 / 4.0
    assert ours.changes["tel"].value == pytest.approx(400 / 500 - 1)
    assert stock.changes["tel"] == (0, 0, 0)


def test_an_interval_holds_its_figure_and_comes_from_conversations_not_requests(folder: Folder) -> None:
    stock, _ = summarise(folder)
    for name, figure in stock.figures.items():
        if not math.isnan(figure.value):
            assert figure.low <= figure.value <= figure.high, name
    # Two conversations: one with both violations (500 tokens), one with none. Drawn twice: 0, 500 or 1,000.
    assert (stock.figures["tel"].low, stock.figures["tel"].high) == (0, 1000)


def test_the_same_conversations_are_drawn_for_every_arm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [row(n, n, 0, int(tokens), 0) for n, tokens in enumerate(rng.integers(100, 5000, 60))]
    tenth = [row(n, n, 0, one.prompt_tokens, one.prompt_tokens // 10) for n, one in enumerate(rows)]
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, rows)
    played(folder, "ours", 0, tenth)
    _, ours = summarise(folder)
    mean = ours.changes["uncached_mean"]
    assert mean.value == pytest.approx(-0.1, abs=0.001)
    assert mean.high - mean.low < 0.001, "a tenth off every request is a tenth off, whoever is drawn"


def test_how_much_repeats_differ_is_in_the_intervals(tmp_path: Path) -> None:
    rows = [row(n, n, 0, 1000, 0, ttft_ms=100.0) for n in range(60)]
    slower = [row(n, n, 0, 1000, 0, ttft_ms=150.0) for n in range(60)]
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, rows)
    (stock,) = summarise(folder)
    assert stock.figures["ttft_p50"] == (100, 100, 100)
    assert interval_note(stock).endswith("one repeat does not tell how much the next would differ.")
    played(folder, "stock lru", 1, slower)
    played(folder, "ours", 0, slower)
    stock, ours = summarise(folder)
    assert (stock.figures["ttft_p50"].low, stock.figures["ttft_p50"].high) == (100, 150)
    assert stock.figures["tel"] == (60 * 400, 60 * 400, 60 * 400), "of one repeat, whichever is drawn"
    assert ours.figures["tel"] == (60 * 400, 60 * 400, 60 * 400), "of the repeats that the arm has"
    few = "2 repeats are few: what differs between repeats alone they hold with 50% at most."
    assert interval_note(stock).endswith(f"over conversations and repeats. {few}")


def test_a_subagent_is_drawn_with_the_session_that_started_it(tmp_path: Path) -> None:
    rows = [row(0, 0, 0, 1000, 0), row(1, 1, 0, 800, 0, session=0), row(2, 2, 0, 700, 0)]
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, rows)
    (stock,) = summarise(folder)
    # Over 600: 400 + 200 of one session, 100 of the other. Drawn are both, twice the first, or twice the second.
    tel = stock.figures["tel"]
    assert (tel.low, tel.value, tel.high) == (200, 700, 1200)


def test_percentiles_are_numpys_whatever_is_drawn() -> None:
    random = np.random.default_rng(0)
    values = random.choice([*range(20), np.nan], 200)
    sorted_once, known = Sorted(values), ~np.isnan(values)
    for _ in range(50):
        weights = random.poisson(0.5, 200).astype(float)
        for share in (0.5, 0.9, 0.99):
            expected = np.quantile(values[known], share, weights=weights[known], method="inverted_cdf")
            assert sorted_once.percentile(share, weights) == expected
    assert math.isnan(sorted_once.percentile(0.5, np.isnan(values).astype(float))), "no value that is known was drawn"


def test_inter_token_latencies_count_by_token_and_millions_are_grouped(tmp_path: Path) -> None:
    times = tuple(np.random.default_rng(0).permutation(np.arange(1, 40_001) / 10).tolist())
    rows = [
        row(0, 0, 0, 100, 0, itl_ms=times[:30_000]),
        row(1, 1, 0, 100, 0, itl_ms=times[30_000:]),
        row(2, 2, 0, 100, 0, itl_ms=()),  # an answer of one token
    ]
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, rows)
    (stock,) = summarise(folder)
    for p in (50, 95, 99):
        # 40,000 latencies from 0.1 to 4,000 ms, in 2,000 groups: a group spans 2 ms.
        assert stock.figures[f"itl_p{p}"].value == pytest.approx(40 * p, abs=2)
        assert stock.figures[f"itl_p{p}"].low <= 40 * p + 2


def test_against_a_baseline_without_a_hit_no_change_of_hits_is_told(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, [row(number, number, 0, 100, 0) for number in range(4)])
    played(folder, "ours", 0, [row(number, number, 0, 100, 10) for number in range(4)])
    (line,) = (line for line in markdown(summarise(folder)).splitlines() if line.startswith("| hit ratio |"))
    assert line == "| hit ratio | 0.0% (0.0%–0.0%) | 10.0% (10.0%–10.0%)<br>– |"


def test_failed_requests_are_counted_and_in_no_figure(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    failed = row(4, 2, 0, 9000, 0, error="HTTP 500", retries=2)
    played(folder, "stock lru", 0, [*ROWS, failed])
    (stock,) = summarise(folder)
    assert (stock.requests, stock.errors, stock.retries) == (4, 1, 2)
    assert stock.figures["tel"].value == 500
    played(folder, "ours", 0, [failed])
    with pytest.raises(NoResultError, match="ours: all 1 requests failed; the first error: HTTP 500"):
        summarise(folder)


def test_what_is_sent_before_the_servers_settled_is_in_no_figure(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN, settle_s=1.5)  # sent after 0, 1, 2 and 3 s
    early = row(4, 2, 0, 9000, 0, sent_s=1.0, error="HTTP 500")
    played(folder, "stock lru", 0, [*ROWS, early])
    (stock,) = summarise(folder)
    assert (stock.requests, stock.errors) == (2, 1)  # who failed is told, whenever it was
    assert stock.figures["tel"].value == 100
    assert stock.tokens_per_s == pytest.approx(2 * 4 / 0.5)
    assert server_sentences(folder) == ["Without the requests of each part's first 1.5 s."]
    later = Folder(tmp_path / "later", RUN, settle_s=4)
    played(later, "stock lru", 0, ROWS)
    with pytest.raises(NoResultError, match="--settle 4: must leave some requests; stock lru had none later"):
        summarise(later)


def test_of_arms_in_turns_it_is_the_time_that_they_were_asked_that_went_into_settling(tmp_path: Path) -> None:
    folder = Folder(tmp_path, msgspec.structs.replace(RUN, turn_s=0.5), settle_s=1.5)
    # Busy for 2 s of 4 s or more: 0.4 s of them before the first request that counts.
    played(folder, "stock lru", 0, [msgspec.structs.replace(one, busy_s=0.2 * one.number) for one in ROWS])
    (stock,) = summarise(folder)
    assert stock.tokens_per_s == pytest.approx(2 * 4 / (2.0 - 0.4))


def test_the_table_shows_every_figure_with_its_interval(folder: Folder) -> None:
    arms = summarise(folder)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table(arms))
    text = captured.get()
    assert "…" not in text, "a cell was cut off"
    for figure in (
        "stock lru",
        "ours",
        "600",
        "500",
        "(0–1,000)",
        "52.8%",
        "−20%",
        "ITL p99 (ms)",
        "output tokens / s",
    ):
        assert figure in text
    assert "| output tokens / s | 8.0 | 8.0<br>+0% |" in markdown(arms)
    assert "| TEL (tokens) | 500 (0–1,000) |" in markdown(arms)
    tail, median, _ = sentences(arms)
    assert "TEL −20%" in tail
    assert median.startswith("The median of uncached tokens gained too: ")


def test_who_pays_with_the_median_is_told_where_the_interval_tells(tmp_path: Path) -> None:
    for number, (cached, verdict) in enumerate([(500, "gained too"), (0, "paid for it"), (100, "may be as before")]):
        folder = Folder(tmp_path / str(number), RUN)
        played(folder, "stock lru", 0, [row(n, n, 0, 1000, 100) for n in range(9)])
        played(folder, "ours", 0, [row(n, n, 0, 1000, cached) for n in range(9)])
        _, median, note = sentences(summarise(folder))
        assert median.startswith(f"The median of uncached tokens {verdict}: ")
        assert "few" not in note


def test_few_conversations_are_said_to_be_few(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, [row(n, n, 0, 1000, 100) for n in range(3)])
    (stock,) = summarise(folder)
    assert "3 conversations are few: what differs between conversations alone they hold with 75%" in interval_note(
        stock
    )


@pytest.mark.parametrize(("slower_ms", "comparable"), [((52.0, 54.0), True), ((52.0, 75.0), False)])
def test_how_fast_the_machine_was_in_each_arm(tmp_path: Path, slower_ms: tuple[float, ...], comparable: bool) -> None:
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, ROWS, (50.0, 51.0))
    played(folder, "ours", 0, BETTER, slower_ms)
    alone, *warning = server_sentences(folder)
    assert "stock lru 50, 51 ms; ours 52, " in alone
    assert warning == [] if comparable else "24% slower for ours than for stock lru" in warning[0]


def test_a_run_of_before_says_nothing_of_the_machine(folder: Folder) -> None:
    assert server_sentences(folder) == []


def test_a_server_that_fell_back_to_lru_is_named_and_not_predicted(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    played(folder, "stock lru", 0, ROWS)
    played(folder, "ours", 0, BETTER, metrics={"sglang:tlru_fallen_back": 0.0})
    facts = Facts(**{**FACTS, "policy": "radix_tlru"})
    assert server_sentences(folder) == []
    assert refusal(facts, folder, "ours") is None
    played(folder, "ours", 1, BETTER, metrics={"sglang:tlru_fallen_back": 1.0})
    (said,) = server_sentences(Folder(tmp_path, RUN))
    assert said.startswith("ours: radix-tlru fell back to lru after a fault")
    assert refusal(facts, folder, "ours") == "it fell back to lru on the way"


def test_a_bar_in_a_name_ends_no_column_of_the_table(tmp_path: Path) -> None:
    folder = Folder(tmp_path, msgspec.structs.replace(RUN, arms={"w=0|1": ""}))
    played(folder, "w=0|1", 0, ROWS)
    assert markdown(summarise(folder)).startswith("| | w=0\\|1 |\n|---|---:|\n")


def test_a_name_in_brackets_is_no_markup(tmp_path: Path) -> None:
    folder = Folder(tmp_path, msgspec.structs.replace(RUN, arms={"etlru [load]": ""}))
    played(folder, "etlru [load]", 0, ROWS)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table(summarise(folder)))
    assert "etlru [load]" in captured.get()


def test_a_folder_that_calls_the_plugin_ours_is_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path, RUN)
    folder.finish(Part(arm="ours", repeat=0, seconds=1.0, facts={**FACTS, "policy": "ours"}, metrics={}))
    found = Folder(tmp_path, RUN).facts("ours")
    assert found is not None
    assert found.policy == "radix_tlru"


def test_of_nothing_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert summarise(Folder(tmp_path, RUN)) == []


def test_the_units_of_what_was_sent_have_the_lengths_that_the_server_counted() -> None:
    turns = (Turn((Segment(1, 100), Segment(2, 20)), False, 4, 0.0), Turn((Segment(3, 30),), False, 4, 1.0))
    rows = [row(0, 0, 0, 125, 0), row(1, 0, 1, 160, 128)]  # a chat template added 5 tokens, then 1
    first, second = requests_of(rows, Load((Conversation(0, 0.0, turns),)))
    assert first.prompt.ids == (1, 2)
    assert tuple(first.prompt.ends) == (100, 125)
    assert len(first.context) == 125 + 4 - 1, "the last token of an answer was never an input"
    assert second.prompt_tokens == len(second.prompt) == 160
    assert second.prompt.common(first.context) == 128


def test_an_answer_that_the_trace_knows_is_found_where_a_prompt_repeats_it() -> None:
    """By its own conversation, whose history was cut, and by a subagent that begins with it."""
    first = Turn((Segment(1, 100),), True, 4, 0.0, answer=(Segment(2, 4),))
    cut = Turn((Segment(1, 100), Segment(2, 4), Segment(3, 30)), True, 4, 1.0)
    subagent = Turn((Segment(1, 100), Segment(2, 4), Segment(4, 9)), False, 4, 0.0)
    load = Load((Conversation(0, 0.0, (first, cut)), Conversation(1, 0.0, (subagent,), session=0)))
    rows = [row(0, 0, 0, 100, 0), row(1, 0, 1, 134, 0), row(2, 1, 0, 113, 0)]
    served, again, begun = requests_of(rows, load)
    assert (len(served.prompt), len(served.context)) == (100, 103)
    assert again.prompt.common(served.context) == begun.prompt.common(served.context) == 103
    assert (len(again.prompt), len(begun.prompt)) == (134, 113)
    assert begun.prompt.common(again.prompt) == 104, "both repeat the last token of the answer"
    assert served.conversation == begun.conversation, "as the server was told"


def test_a_prediction_that_is_off_says_which_half_of_it() -> None:
    line = Timing(0.1, 10.0, "test")
    close = Prediction("a", 110.0, 115.0, 1000, 1050, 0.9)
    tokens = Prediction("a", 110.0, 210.0, 1000, 2000, 0.1)
    queue = Prediction("a", 220.0, 110.0, 1000, 1000, 1.0)
    assert close.verdict(line) == "within 15%"
    assert "the cache held other tokens than simulated (+100% uncached at p95)" in tokens.verdict(line)
    assert "requests with as many tokens took +100% against the line" in queue.verdict(line)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"policy": "fifo"}, "no simulator has the policy fifo"),
        ({"replicas": 2}, "2 replicas: `simulate --replicas` is the place"),
        ({"moves": True}, "its ξ was learned while it ran"),
        ({"return_model": "mine:Model"}, "no simulator asks mine:Model"),
        ({"eviction": "etlru", "median_weight": 0.5, "learns": True}, None),
    ],
)
def test_what_no_simulator_is_like_is_not_predicted(folder: Folder, said: dict[str, Any], reason: str | None) -> None:
    facts = Facts(**{**FACTS, "policy": "radix_tlru", **said})
    assert refusal(facts, folder, "ours") == reason
