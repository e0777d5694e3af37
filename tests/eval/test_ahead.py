"""`python -m eval ahead`: what the next prompt will have, on conversations that can be worked out by hand."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path as FilePath

import pytest

from eval.__main__ import main
from eval.studies.ahead import WAYS, Way, compare, next_beginnings, serve
from eval.traces.request import Path, Request
from tests.helpers.trace_files import write_lines

ASKED, THOUGHT, ANSWER = 100, 300, 50


def chat(turns: int, thinks: bool) -> list[Request]:
    """Each answer is thought over, and the next prompt has it without; or as it was said."""
    requests, prompt = [], Path((1,), (ASKED,))
    for number in range(turns):
        said = THOUGHT * thinks + ANSWER
        context = Path((*prompt.ids, 1_000 + number), (*prompt.ends, len(prompt) + said))
        requests.append(
            Request(
                100.0 * number, "chat", prompt, context, len(prompt), said, thought_tokens=THOUGHT * thinks, stop="stop"
            )
        )
        before = Path((*prompt.ids, 2_000 + number), (*prompt.ends, len(prompt) + ANSWER)) if thinks else context
        prompt = Path((*before.ids, 3_000 + number), (*before.ends, len(before) + ASKED))
    return requests


def test_the_next_prompt_begins_with_the_last_one_and_the_answer_without_its_thoughts() -> None:
    first, second, last = next_beginnings(chat(3, thinks=True))
    assert first == Path((1, 2_000), (ASKED, ASKED + ANSWER))
    assert second is not None
    assert second.ids == (1, 2_000, 3_000, 2_001)
    # Nobody asks again, which a server does not know: it would prefill an answer that no prompt has.
    assert last is not None
    assert last.ids == (1, 2_000, 3_000, 2_001, 3_001, 3_002)
    assert list(next_beginnings(chat(3, thinks=False))) == [None, None, None]


@pytest.mark.parametrize(
    ("way", "new", "prefilled"),
    [
        (WAYS[0], ASKED + ANSWER, 0),
        (WAYS[1], ASKED + ANSWER, 0),
        (WAYS[2], ASKED, 3 * ANSWER),
        (WAYS[3], ASKED, 3 * ANSWER),
    ],
)
def test_what_was_prefilled_ahead_is_found(way: Way, new: int, prefilled: int) -> None:
    requests = chat(3, thinks=True)
    served = serve(requests, "lru", way, 10_000, 600, 1)
    uncached = [request.prompt_tokens - cached for request, cached in zip(requests, served.cached, strict=True)]
    assert uncached == [ASKED, new, new]
    assert served.prefilled == prefilled


def test_what_prefilling_ahead_gains_and_costs() -> None:
    args = Namespace(policy=["lru"], capacity=10_000, threshold=600, page_size=1)
    found = compare(chat(3, thinks=True), args)
    shown = {str(column.header): [*column.cells] for column in found.columns}
    # Prompts of 100, 250 and 400 tokens wait for 100, 150 and 150 of them, or for 100 each, with 3 · 50 ahead.
    assert shown["mean"] == ["+0.0%", "+0.0%", "-25.0%", "-25.0%"]
    assert shown["hits"] == ["46.7%", "46.7%", "60.0%", "60.0%"]
    assert shown["prefilled in all"] == ["+0.0%", "+0.0%", "+12.5%", "+12.5%"]


def test_what_is_dropped_leaves_room_for_others() -> None:
    def other(at_s: float, unit: int, tokens: int) -> Request:
        path = Path((unit,), (tokens,))
        return Request(at_s, f"other {unit}", path, path, tokens, 0)

    first, second = chat(2, thinks=True)
    # 150 and 450 tokens are cached when 300 come. 700 hold all of them only without the 350 of the answer.
    order = [other(-10.0, 8, 150), first, other(50.0, 9, 300), other(60.0, 8, 150), second]
    found = {way: serve(order, "lru", way, 700, 600, 1).cached for way in WAYS}
    assert [cached[3] for cached in found.values()] == [0, 150, 0, 150]
    assert [cached[4] for cached in found.values()] == [ASKED, ASKED, ASKED + ANSWER, ASKED + ANSWER]


def test_the_command_prints_a_row_for_each_policy_and_way(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--capacity", "100k", "--threshold", "2048", "--policy", "lru", "tlru"]
    assert main(["ahead", "--trace", "thinking:sessions=60,span_s=600", *sizes]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"{way.name} ") for way in WAYS[1:]] == [2, 2, 2]
    assert main(["ahead", "--trace", "thinking", "--capacity", "0", "--threshold", "2048"]) == 2


def test_a_trace_without_a_token_has_no_change(tmp_path: FilePath, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"timestamp": at_ms, "input_length": 0, "output_length": 0, "hash_ids": []} for at_ms in (0, 10)]
    source = write_lines(tmp_path / "t.jsonl", *rows)
    assert main(["ahead", "--trace", source, "--capacity", "1k", "--threshold", "500", "--policy", "lru"]) == 0
    assert "2 requests; after 0 of them" in capsys.readouterr().out
    assert main(["trace", source]) == 0
    assert "would hold 0.0% of all prompt tokens" in capsys.readouterr().out


def test_nobody_prefills_ahead_what_is_said_later() -> None:
    # Of two new messages, results of tools and what a user says, only the answer before them is known.
    asked, results = Path((1,), (ASKED,)), ASKED + ANSWER + 400
    answered = asked.plus(THOUGHT + ANSWER, 2)
    later = Path((1, 3, 4, 5), (ASKED, ASKED + ANSWER, results, results + 70))
    first = Request(0.0, "a", asked, answered, ASKED, THOUGHT + ANSWER, thought_tokens=THOUGHT)
    second = Request(9.0, "a", later, later.plus(ANSWER, 6), len(later), ANSWER)
    assert list(next_beginnings([first, second])) == [Path((1, 3), (ASKED, ASKED + ANSWER)), None]


def test_of_a_trace_without_answers_nothing_is_prefilled_ahead(
    tmp_path: FilePath, capsys: pytest.CaptureFixture[str]
) -> None:
    # Three blocks and an answer of two, which a server has cached; the next prompt has eight blocks.
    rows: list[dict[str, object]] = [
        {
            "timestamp": at_ms,
            "input_length": 512 * blocks,
            "output_length": 1024,
            "hash_ids": list(range(blocks)),
            "session": "s",
            "agent": 0,
        }
        for at_ms, blocks in ((0, 3), (9_000, 8))
    ]
    source = write_lines(tmp_path / "t.jsonl", *rows)
    assert main(["ahead", "--trace", source, "--capacity", "9k", "--threshold", "500", "--page-size", "512"]) == 0
    told = capsys.readouterr()
    assert "2 requests; after 0 of them" in told.out
    assert told.err.startswith("t: has no answers, or does not tell conversations apart")


def test_nothing_can_be_prefilled_of_a_prompt_of_less_than_a_block() -> None:
    nothing = Path((), ())
    short = [Request(float(at_s), "a", nothing, nothing, 100, 1) for at_s in range(2)]
    assert list(next_beginnings(short)) == [None, None]
