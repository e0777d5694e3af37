"""A real server with a reasoning parser, and chats whose templates leave out what was thought, or nothing."""

from __future__ import annotations

from typing import Any

import openai
import pytest
import requests

from eval.live.server import Server, cpu_flags
from radix_tlru.tools.scrape import read
from tests.helpers.models import small_model

TURNS, THOUGHT = 4, 40


@pytest.mark.live
def test_thoughts_are_counted_and_cached_and_in_no_later_prompt() -> None:
    given = [*cpu_flags(small_model(), 4_000), "--reasoning-parser", "qwen3", "--radix-eviction", "etlru"]
    with Server(given, name="test-thoughts", grace_s=0) as server:
        before = server.get_metrics()
        client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
        messages: list[Any] = []
        asked, found = [], []
        for turn in range(TURNS):
            messages.append({"role": "user", "content": f"Turn {turn} of a chat. " * 10})
            reply = client.chat.completions.create(
                model="default", messages=messages, max_tokens=THOUGHT, extra_body={"ignore_eos": True}
            )
            usage = reply.usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            assert usage.model_extra is not None
            assert usage.model_extra["reasoning_tokens"] == THOUGHT, "it never gets beyond thinking"
            asked.append(usage.prompt_tokens)
            found.append(usage.prompt_tokens_details.cached_tokens)
            messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        client.close()
        assert continued(server) == {"as_cached": 0, "otherwise": TURNS - 1}
        # What was thought is cached, and no next prompt has it.
        assert asked[-1] < asked[0] * TURNS + THOUGHT
        assert all(asked[turn] <= (found[turn + 1] or 0) + 1 < asked[turn + 1] for turn in range(TURNS - 1))
        served = "sglang:tlru_requests_total"
        assert server.get_metrics()[served] - before[served] == TURNS
        assert server.alive()
        # Who sends tokens back as they came has his answers found.
        tokens = list(range(100, 200))
        for _ in range(TURNS):
            reply = requests.post(
                f"{server.base_url}/generate",
                json={"input_ids": tokens, "sampling_params": {"max_new_tokens": THOUGHT, "ignore_eos": True}},
                timeout=60,
            ).json()
            tokens += [*reply["output_ids"], *tokens[:20]]
        assert continued(server) == {"as_cached": TURNS - 1, "otherwise": TURNS - 1}


def continued(server: Server) -> dict[str, float]:
    """Conversations that went on, by whether with what was cached of their last answer."""
    rank = read(server.metrics_text(), server.base_url).ranks[0]
    return rank.by("continued_total", "answer")
