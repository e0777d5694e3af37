"""A real server that nobody tells which answers are calls of tools."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import requests

from eval.live.server import Server, cpu_flags
from tests.helpers.models import small_model

POOL, ANSWER = 6_000, 6

GIVEN = ("--tlru-median-weight", "1")  # is in force at once, not when lru is seen to be worse


@pytest.mark.live
@pytest.mark.parametrize(
    ("count", "asks", "tool_s", "given"),
    [(150, 40, 0.0, GIVEN), pytest.param(420, 300, 2.0, (), marks=pytest.mark.long)],
)
def test_who_called_a_tool_is_waited_for_and_who_was_answered_is_not(
    count: int, asks: int, tool_s: float, given: tuple[str, ...]
) -> None:
    """Told no w it has to win something first: calls whose tools take so long that lru has forgotten them."""
    rng = random.Random(0)

    def prompt(tokens: int) -> list[int]:
        return [rng.randrange(256) for _ in range(tokens)]

    def ask(tokens: list[int], calls: bool) -> Any:
        # What a grammar constrains ends with the token that ends it; what does not, with whatever comes last.
        ends = {"regex": "[a-z]{4}"} if calls else {"ignore_eos": True}
        sampling = {"max_new_tokens": 4 * ANSWER if calls else ANSWER, "temperature": 0, **ends}
        body = {"input_ids": tokens, "sampling_params": sampling}
        return requests.post(f"{server.base_url}/generate", json=body, timeout=60).json()

    def lesson(one: tuple[list[int], list[int], bool]) -> None:
        asked, answered, calls = one
        reply = ask(asked, calls)
        if calls:  # the tool has answered
            assert reply["meta_info"]["finish_reason"]["type"] == "stop"
            time.sleep(tool_s)
            ask(asked + reply["output_ids"] + answered, calls=False)

    ours = ("--radix-eviction", "etlru", "--tlru-threshold", "400", "--tlru-next-prompt-estimate", "100")
    with Server([*cpu_flags(small_model(), POOL), *ours, *given], name="test-endings", grace_s=0) as server:
        lessons = [(prompt(asks), prompt(20), number % 2 == 0) for number in range(count)]
        with ThreadPoolExecutor(24) as clients:
            for _ in clients.map(lesson, lessons):
                pass
        waits, read, new = prompt(1_600), prompt(1_600), prompt(4_000)
        ask(waits, calls=True)
        ask(read, calls=False)
        ask(new, calls=False)
        assert ask(waits, calls=True)["meta_info"]["cached_tokens"] > 1_200
        assert ask(read, calls=False)["meta_info"]["cached_tokens"] < 1_200
