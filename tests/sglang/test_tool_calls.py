"""A server with a tool-call parser knows which answers are calls of tools, from the first one on."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.parser.template_detection import resolve_auto_parsers
from sglang.srt.server_args import ServerArgs
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

from radix_tlru.sglang.requests.tool_calls import call_tokens
from radix_tlru.sglang.requests.turns import turn_of
from tests.helpers.served import served

END = "<|im_end|>"


def tokenizer(*added: str) -> Any:
    """One that knows a word, and these added tokens: ids 1, 2, …"""
    words = Tokenizer(models.WordLevel({"word": 0}, unk_token="word"))
    words.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    return PreTrainedTokenizerFast(tokenizer_object=words)


def told(parser: str | None, of: Any) -> tuple[int, ...]:
    """By a server with that ``--tool-call-parser``."""
    return call_tokens(ServerArgs(model_path="dummy", tool_call_parser=parser), of)


@pytest.mark.parametrize(
    ("parser", "marker"),
    [
        ("qwen25", "<tool_call>"),  # and a new line, which is no part of the token
        ("qwen3_coder", "<tool_call>"),
        ("glm47", "<tool_call>"),
        ("mistral", "[TOOL_CALLS]"),
        ("deepseekv31", "<｜tool▁calls▁begin｜>"),
        ("kimi_k2", "<|tool_calls_section_begin|>"),
        ("llama3", "<|python_tag|>"),
        ("minimax-m2", "<minimax:tool_call>"),
    ],
)
def test_the_parser_says_which_token_begins_a_call(parser: str, marker: str) -> None:
    assert told(parser, tokenizer(END, marker, "<think>")) == (2,)


def test_a_parser_that_sglang_finds_out_says_it_as_one_that_was_named(tmp_path: Path) -> None:
    """From the chat template. The flag itself stays auto."""
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}<|tool_call_start|><|tool_call_end|>"
    )
    of = tokenizer(END, "<|tool_call_start|>", "<|tool_call_end|>")
    of.save_pretrained(tmp_path)
    record = ServerArgs(
        model_path="dummy", tokenizer_path=str(tmp_path), chat_template=str(template), tool_call_parser="auto"
    )
    resolve_auto_parsers(record)
    assert record.tool_call_parser == "auto"
    assert call_tokens(record, of) == (2,)


def test_where_no_token_begins_a_call_none_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert told("pythonic", tokenizer(END, "<tool_call>")) == (), "a call is a list of Python calls"
    assert told(None, tokenizer(END, "<tool_call>")) == told("hermes", None) == ()
    assert not caplog.records
    assert told("response_template", tokenizer(END)) == (), "the tokenizer has to hold the template"
    assert "--tool-call-parser response_template cannot say" in caplog.text


def finish_of(answer: list[int], reason: Any, calls: tuple[int, ...]) -> str | None:
    req = served(range(100), answer, finished_reason=reason)
    return turn_of(req, RadixKey(array("q", range(100))), 0.0, call_tokens=calls).finish


def test_an_answer_with_that_token_is_a_call_wherever_it_stands() -> None:
    stop = FINISH_MATCHED_TOKEN(matched=7)
    assert finish_of([3, 3, 9, 3, 7], stop, (8, 9)) == "tool_calls"
    assert finish_of([3, 3, 3, 3, 7], stop, (8, 9)) == "stop"
    assert finish_of([9, 3, 3], FINISH_LENGTH(3), (9,)) == "length", "a call that was cut off is none"
    assert finish_of([3, 3], FINISH_ABORT(), (9,)) is None, "the client left"
    assert finish_of([3, 3, 9, 3, 7], stop, ()) is None, "nobody told which token it is"


def test_of_an_answer_that_goes_on_after_its_stop_no_more_is_thought_than_there_is() -> None:
    req = served(range(100), [3, 7, 4, 4], stop=7, reasoning_tokens=4)
    turn = turn_of(req, RadixKey(array("q", range(100))), 0.0)
    assert (turn.answer_len, turn.thought_len) == (2, 2)
