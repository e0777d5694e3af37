"""Texts of logs are as long as their servers counted, and later prompts still begin with earlier ones."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.traces import Path as Units
from eval.traces import open_trace
from eval.traces.reading.fitted import Fitted
from tests.helpers.openai_rows import body, read
from tests.helpers.trace_files import said

EPOCH = 1_760_000_000
# At 4 characters a token: system 40 tokens, question 10, answer 20, more 5.
SYSTEM = {"role": "system", "content": "s" * 160}
QUESTION = {"role": "user", "content": "q" * 40}
ANSWER = {"role": "assistant", "content": "a" * 80}
MORE = {"role": "user", "content": "m" * 20}


def call(number: int, *messages: dict[str, Any], counted: int | None, answered: int, **details: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": counted, "completion_tokens": answered, "completion_tokens_details": details}
    response = {"choices": [{"message": ANSWER}], "usage": usage if counted is not None else {}}
    return {"timestamp": EPOCH + number, "request": body(*messages), "response": response}


def test_prompts_of_apis_are_as_long_as_counted_and_extend_each_other(tmp_path: Path) -> None:
    rows = [
        call(0, SYSTEM, QUESTION, counted=100, answered=30),
        call(1, SYSTEM, QUESTION, ANSWER, MORE, counted=142, answered=9),
        call(2, SYSTEM, MORE, counted=91, answered=9),
    ]
    trace = read(tmp_path, *rows)
    first, second, other = trace.requests
    # 40 and 10 of 50 tokens become 80 and 20; the answer has 30, and what is behind it 142 - 130.
    assert (list(first.prompt.ends), list(second.prompt.ends)) == ([80, 100], [80, 100, 130, 142])
    assert second.continues(first)
    # Another conversation with that system prompt: 91 - 80 tokens are its own.
    assert (list(other.prompt.ends), other.prompt.common(first.prompt)) == ([80, 91], 80)
    assert "lengths of parts of 3 prompts fit the tokens that their servers counted" in said(trace, "rebuilt")


def test_an_answer_that_only_the_next_prompt_shows_has_its_share_of_what_is_new_there(tmp_path: Path) -> None:
    rows = [
        body(*messages, timestamp=EPOCH + n, usage={"prompt_tokens": counted})
        for n, (counted, messages) in enumerate([(20, [QUESTION]), (70, [QUESTION, ANSWER, MORE])])
    ]
    first, second = read(tmp_path, *rows).requests
    # 70 - 20 new tokens: four in five are the answer's, 80 of 100 characters.
    assert (list(second.prompt.ends), len(first.context)) == ([20, 60, 70], 60)
    assert second.continues(first)


def test_hidden_thoughts_are_no_part_of_the_answer_that_is_cached(tmp_path: Path) -> None:
    (request,) = read(tmp_path, call(0, QUESTION, counted=20, answered=530, reasoning_tokens=500)).requests
    assert (len(request.context), request.output_tokens) == (20 + 30, 530)


def test_a_prompt_with_fewer_tokens_than_the_history_it_begins_with_is_said(tmp_path: Path) -> None:
    rows = [
        call(0, SYSTEM, QUESTION, counted=100, answered=30),
        call(1, SYSTEM, QUESTION, ANSWER, MORE, counted=90, answered=9),
    ]
    trace = read(tmp_path, *rows)
    # One token for the message that is new.
    assert trace.requests[1].prompt_tokens == 130 + 1
    assert "1 have fewer than their messages: those are longer here" in said(trace, "rebuilt")


@pytest.mark.parametrize("counted", [1000, 50])
def test_texts_of_a_server_are_as_long_as_it_counted_and_share_in_proportion(tmp_path: Path, counted: int) -> None:
    # 1,600 characters: 25 blocks of 64; the first 20 of them are the same in both prompts.
    lines = []
    for number in range(2):
        text = "x" * 1280 + str(number) * 320
        meta = f"{{'prompt_tokens': {counted}, 'completion_tokens': 8, 'id': 'r{number}'}}"
        lines.append(
            f"[2026-11-25 12:00:0{number}] Finish: obj=GenerateReqInput(rid='r{number}', text='{text}'), "
            f"out={{'text': '{'y' * 64}', 'meta_info': {meta}}}"
        )
    (tmp_path / "server.log").write_text("\n".join(lines))
    trace = open_trace(str(tmp_path / "server.log"))
    one, other = trace.requests
    assert (one.prompt_tokens, len(one.prompt), len(one.context)) == (counted, counted, counted + 8)
    assert one.prompt.common(other.prompt) == counted * 20 // 25


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.integers(1, 4000) | st.none()), max_size=20))
def test_equal_units_have_equal_ends_and_prompts_the_tokens_that_fit(
    prompts: list[tuple[int, int, int | None]],
) -> None:
    fitted, ends = Fitted(), dict[int, int]()
    for branch, units, tokens in prompts:
        # Units 0 to 9 are in all prompts, later ones in those of the same branch.
        ids = [unit if unit < 10 else 1000 * branch + unit for unit in range(units)]
        path = fitted.prompt(Units(ids, range(16, 16 * units + 1, 16)), 16 * units + 3, tokens)
        assert all(before < after for before, after in pairwise([0, *path.ends]))
        assert all(ends.setdefault(unit, end) == end for unit, end in zip(path.ids, path.ends, strict=True))
