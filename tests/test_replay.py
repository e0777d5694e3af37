"""The replay of conversations: what is sent, in which order, what is kept of it, and what is said of it."""

from __future__ import annotations

import argparse
import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from eval import replay
from eval.paper.timing import Timing
from eval.replay.arms import Arm, Facts, default_arms, parse_arm, parse_url
from eval.replay.command import run_of
from eval.replay.load import Conversation, Load, Segment, Turn, load_from
from eval.replay.predict import Prediction, refusal, requests_of
from eval.replay.rows import Folder, FolderError, Part, Row, Run
from eval.replay.summary import NoResultError, comparison_table, markdown, sentences, summarise
from eval.traces import open_trace
from eval.traces.request import Path as Units
from eval.traces.request import Request
from radix_tlru.config import AUTO

# ---- what is sent ----


def block_request(arrival_s: float, ids: Sequence[int], tokens: int, output: int = 5) -> Request:
    prompt = Units(tuple(ids), range(512, 512 * len(ids) + 1, 512))
    return Request(arrival_s, None, prompt, prompt, tokens, output)


def test_turns_add_what_the_trace_adds_and_wait_as_long() -> None:
    requests = open_trace("chat-mix:conversations=20,seed=4").requests
    load = load_from(requests)
    assert load.requests == len(requests)
    for conversation in load.conversations:
        turns = [request for request in requests if request.conversation == requests_of_index(requests, conversation)]
        length, before = 0, None
        for turn, request in zip(conversation.turns, turns, strict=True):
            length += turn.new_tokens
            assert length == request.prompt_tokens
            length += turn.output_tokens
            assert turn.wait_s == pytest.approx(request.arrival_s - before.arrival_s if before else 0.0)
            assert not turn.whole
            before = request


def requests_of_index(requests: Sequence[Request], conversation: Conversation) -> str | None:
    names = list(dict.fromkeys(request.conversation for request in requests))
    return names[conversation.index]


def test_a_block_trace_is_played_with_its_own_tokens_and_equal_blocks_are_equal_tokens() -> None:
    load = load_from(
        [
            block_request(0.0, [1, 2], 1100),  # two whole blocks and 76 tokens of its own
            block_request(1.0, [7], 600),
            block_request(2.0, [1, 2, 3, 4], 2048),  # goes on with the first
            block_request(3.0, [1, 2, 9], 1600),  # branches off it: a conversation of its own
            block_request(4.0, [1, 2, 3, 4, 5], 2600),  # goes on with the third
        ]
    )
    assert [[turn.wait_s for turn in c.turns] for c in load.conversations] == [[0.0, 2.0, 2.0], [0.0], [0.0]]
    first, second, third = (load.ids(turn) for turn in load.conversations[0].turns)
    branch = load.ids(load.conversations[2].turns[0])
    assert [len(ids) for ids in (first, second, third, branch)] == [1100, 2048, 2600, 1600]
    assert first[:1024] == second[:1024] == third[:1024] == branch[:1024]
    assert second == third[:2048]
    assert branch[1024:1536] != second[1024:1536]
    assert first[1024:] != second[1024:1100], "a partial block is nobody else's"


def test_the_same_seed_draws_the_same_tokens() -> None:
    turn = Turn((Segment(3, 40), Segment(4, 2)), False, 8, 0.0)
    one, again, other = Load((), 1), Load((), 1), Load((), 2)
    assert one.ids(turn) == again.ids(turn) != other.ids(turn)
    assert all(0 <= token < 256 for token in one.ids(turn))
    assert set(Load((), 1, vocabulary=2).ids(turn)) == {0, 1}


def test_chat_sends_the_texts_of_the_trace_and_otherwise_as_many_letters_as_tokens(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "What is a radix tree?"}, {"from": "gpt", "value": "A trie."}]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"id": "a", "conversations": [*said, {"from": "human", "value": "Why?"}]}]))
    load = load_from(open_trace(str(file), texts=True).requests)
    assert [load.messages(turn) for turn in load.conversations[0].turns] == [
        (("user", "What is a radix tree?"),),
        (("user", "Why?"),),
    ]
    ((role, text),) = Load(()).messages(Turn((Segment(3, 40),), False, 8, 0.0))
    assert role == "user"
    assert len(text) == 40
    assert text.isprintable()


def test_chat_mix_is_the_same_for_the_same_seed_and_a_larger_one_begins_with_the_smaller() -> None:
    def lengths(source: str) -> dict[str | None, list[tuple[float, int, int]]]:
        found: dict[str | None, list[tuple[float, int, int]]] = {}
        for request in open_trace(source).requests:
            turn = (request.arrival_s, request.prompt_tokens, request.output_tokens)
            found.setdefault(request.conversation, []).append(turn)
        return found

    mix = lengths("chat-mix:conversations=50,seed=7")
    assert mix == lengths("chat-mix:conversations=50,seed=7") != lengths("chat-mix:conversations=50,seed=8")
    larger = lengths("chat-mix:conversations=60,seed=7")
    assert {name: larger[name] for name in mix} == mix
    assert {len(turns) for turns in mix.values()} == set(range(1, 7))
    assert all(200 <= turns[0][1] <= 3000 for turns in mix.values())
    assert all(8 <= output <= 48 for turns in mix.values() for _, _, output in turns)


# ---- what is kept ----

RUN = Run(
    trace="t",
    requests=4,
    digest="d",
    arms={"stock lru": "", "ours": ""},
    repeats=2,
    api="generate",
    loop="ordered",
    speed=1.0,
    users=1,
    threshold=600,
    next_prompt_estimate=100,
    slo_ms=None,
)

FACTS = {
    "pool": 2000,
    "page_size": 1,
    "chunk": 8192,
    "policy": "lru",
    "threshold": None,
    "next_prompt_estimate": None,
    "version": "0",
    "model": "m",
    "device": "cpu",
    "attention_backend": "a",
    "replicas": 1,
}


def row(
    number: int, conversation: int, turn: int, prompt: int, cached: int, ttft_ms: float = 10.0, **more: object
) -> Row:
    base = {
        "number": number,
        "sent_s": float(number),
        "conversation": conversation,
        "turn": turn,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "uncached_tokens": prompt - cached,
        "output_tokens": 4,
        "ttft_ms": ttft_ms,
        "e2e_ms": 50.0,
        "itl_ms": (1.0, 3.0),
        "retries": 0,
        "error": None,
    }
    return Row(**{**base, **more})  # type: ignore[arg-type]


# Uncached: 1000, 200, 700, 600. With a threshold of 600 the first and the third violate, by 400 and 100 tokens.
ROWS = [
    row(0, 0, 0, 1000, 0, 40.0),
    row(1, 1, 0, 1200, 1000, 10.0),
    row(2, 0, 1, 1500, 800, 30.0),
    row(3, 1, 1, 1600, 1000, 20.0),
]
BETTER = [
    row(0, 0, 0, 1000, 0, 40.0),
    row(1, 1, 0, 1200, 1100, 5.0),
    row(2, 0, 1, 1500, 900, 20.0),
    row(3, 1, 1, 1600, 1100, 15.0),
]


def played(folder: Folder, arm: str, repeat: int, rows: Sequence[Row]) -> None:
    with folder.begin(arm, repeat) as file:
        for one in rows:
            file.append(one)
    folder.finish(Part(arm=arm, repeat=repeat, seconds=2.0, facts=FACTS, metrics={}))


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
    import msgspec

    other = msgspec.structs.replace(RUN, threshold=700)
    with pytest.raises(FolderError, match="holds a run with threshold 600, not 700; give another folder"):
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
    assert stock.figures["itl_p50"].value == 2
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


def test_the_table_shows_every_figure_with_its_interval(folder: Folder) -> None:
    arms = summarise(folder)
    console = Console(width=120)
    with console.capture() as captured:
        console.print(comparison_table(arms))
    text = captured.get()
    assert "…" not in text, "a cell was cut off"
    for figure in ("stock lru", "ours", "600", "500", "(0–1,000)", "52.8%", "−20%"):
        assert figure in text
    assert "| TEL (tokens) | 500 (0–1,000) |" in markdown(arms)
    tail, median, _ = sentences(arms)
    assert "TEL −20%" in tail
    assert median.startswith("The median gained too")


def test_the_units_of_what_was_sent_have_the_lengths_that_the_server_counted() -> None:
    turns = (Turn((Segment(1, 100), Segment(2, 20)), False, 4, 0.0), Turn((Segment(3, 30),), False, 4, 1.0))
    rows = [row(0, 0, 0, 125, 0), row(1, 0, 1, 160, 128)]  # a chat template added 5 tokens, then 1
    first, second = requests_of(rows, Load((Conversation(0, 0.0, turns),)))
    assert first.prompt.ids == (1, 2)
    assert tuple(first.prompt.ends) == (100, 125)
    assert len(first.context) == 125 + 4 - 1, "the last token of an answer was never an input"
    assert second.prompt_tokens == len(second.prompt) == 160
    assert second.prompt.common(first.context) == 128


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
        ({"eviction": "etlru", "median_weight": AUTO, "learns": True}, None),
    ],
)
def test_what_no_simulator_is_like_is_not_predicted(folder: Folder, said: dict[str, Any], reason: str | None) -> None:
    facts = Facts(**{**FACTS, "policy": "ours", **said})
    assert refusal(facts, folder, "ours") == reason


# ---- flags ----


def run_cli(capsys: pytest.CaptureFixture[str], text: str, out: Path) -> tuple[int, str]:
    parser = argparse.ArgumentParser()
    replay.add_arguments(parser)
    status = replay.run(parser.parse_args([*shlex.split(text), "--out", str(out)]))
    return status, capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--trace figure1 --users 0", "--users 0: must be 1 or more"),
        ("--trace figure1 --speed 0", "--speed 0: must be more than 0"),
        ("--trace figure1 --arm a= --arm a=", "every arm needs a name of its own"),
        ("--trace nowhere.jsonl", "trace nowhere.jsonl: no such file"),
        ("--trace figure1 --device gpu", "--device gpu: --model is needed"),
        ("--trace figure1 --router 2 --url a=http://x", "--router: starts its own servers"),
        ("--trace figure1 --disaggregated --url a=http://x", "--disaggregated: starts its own servers"),
        ("--trace figure1 --disaggregated --router 2", "--disaggregated: has one server of each kind"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: str, message: str
) -> None:
    status, error = run_cli(capsys, flags, tmp_path / "out")
    assert status == 2
    assert message in error
    assert error.count("\n") == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["ours", "=--radix-eviction tlru", "ours='--x"])
def test_an_arm_is_a_name_and_flags(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_arm(text)


@pytest.mark.parametrize("text", ["ours", "ours=127.0.0.1:3000", "=http://a", "ours=http://"])
def test_a_url_is_a_name_and_an_address(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_url(text)


def test_arms_are_parsed_as_a_shell_would() -> None:
    assert parse_arm("ours = --radix-eviction tlru --x 'a b'") == Arm(
        "ours", ("--radix-eviction", "tlru", "--x", "a b")
    )
    assert parse_url("ours=http://127.0.0.1:3000/") == Arm("ours", url="http://127.0.0.1:3000")
    assert [arm.name for arm in default_arms(600, 100)] == ["stock lru", "stock tlru", "radix-tlru"]


def test_a_run_is_known_by_its_load_and_its_servers() -> None:
    load = Load((Conversation(0, 0.0, (Turn((Segment(1, 9),), False, 4, 0.0),)),))
    settings = {**{name: getattr(RUN, name) for name in Run.__struct_fields__[4:]}}
    same = [run_of("t", load, [Arm("a")], ["--page-size", "1"], **settings) for _ in range(2)]
    assert same[0] == same[1]
    assert same[0] != run_of("t", load, [Arm("a")], ["--page-size", "2"], **settings)
    other = {**settings, "servers": "a prefill and a decode server"}
    assert same[0] != run_of("t", load, [Arm("a")], ["--page-size", "1"], **other)
    assert same[0] != run_of("t", Load(load.conversations, seed=1), [Arm("a")], ["--page-size", "1"], **settings)
