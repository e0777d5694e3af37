"""Real servers, and chats whose next prompts do not repeat their answers as they are cached, or do."""

from __future__ import annotations

import time
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
    rank = read(requests.get(f"{server.base_url}/metrics", timeout=60).text, server.base_url).ranks[0]
    return rank.by("continued_total", "answer")


AHEAD = {"nvext": {"agent_hints": {"speculative_prefill": True}}}
ANSWER = 200


@pytest.mark.live
def test_what_the_next_prompt_will_have_is_prefilled_ahead_of_it() -> None:
    # Of random weights answers are no text that would be tokenized as it was written.
    given = [*cpu_flags(small_model(), 8_000), "--radix-eviction", "etlru", "--tlru-prefill-ahead"]
    with Server(given, name="test-ahead", grace_s=0) as server:
        before = server.get_metrics()
        client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)

        def chat(number: int, hint: dict[str, Any], *, streams: bool) -> tuple[int, int]:
            """Cached tokens of the second prompt of a chat, and how many it was known to have."""
            messages: list[Any] = [{"role": "user", "content": f"Chat {number}. " * 40}]
            asked: dict[str, Any] = {"model": "default", "max_tokens": ANSWER}
            extra = {"ignore_eos": True, **hint}
            if streams:
                chunks = client.chat.completions.create(**asked, messages=messages, extra_body=extra, stream=True)
                answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            else:
                reply = client.chat.completions.create(**asked, messages=messages, extra_body=extra)
                answer = reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            wait_for(server, answers=min(number, 2))
            whole = {"messages": messages, "add_generation_prompt": False}
            known = requests.post(f"{server.base_url}/v1/tokenize", json=whole, timeout=60).json()["count"]
            messages.append({"role": "user", "content": "Go on."})
            usage = client.chat.completions.create(model="default", messages=messages, max_tokens=8).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            return usage.prompt_tokens_details.cached_tokens or 0, known

        for number, streams in enumerate((False, True), start=1):
            cached, known = chat(number, AHEAD, streams=streams)
            assert cached >= known > ANSWER
        cached, known = chat(3, {}, streams=False)  # nobody asked for more of these
        assert cached < known - ANSWER / 2
        client.close()
        metrics = server.get_metrics()
        served = "sglang:tlru_requests_total"
        assert metrics[served] - before[served] == 6, "what is prefilled is no turn"
        assert metrics["sglang:tlru_ahead_prefilled_tokens_total"] >= 2 * ANSWER
        assert continued(server) == {"as_cached": 0, "otherwise": 3}
        assert server.alive()


def wait_for(server: Server, answers: int) -> None:
    """Until so many answers have had their next prompt prefilled."""
    deadline = time.monotonic() + 60
    while server.get_metrics().get("sglang:tlru_ahead_answers_total", 0.0) < answers:
        assert time.monotonic() < deadline
        time.sleep(0.02)
