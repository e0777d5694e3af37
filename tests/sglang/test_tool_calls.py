"""A server with a tool-call parser knows which answers are calls of tools, from the first one on."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN
from sglang.srt.mem_cache.radix_cache import RadixKey
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
    assert call_tokens(parser, tokenizer(END, marker, "<think>")) == (2,)


def test_where_no_token_begins_a_call_none_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert call_tokens("pythonic", tokenizer(END, "<tool_call>")) == (), "a call is a list of Python calls"
    assert call_tokens(None, tokenizer(END, "<tool_call>")) == call_tokens("hermes", None) == ()
    assert not caplog.records
    assert call_tokens("response_template", tokenizer(END)) == (), "the tokenizer has to hold the template"
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
