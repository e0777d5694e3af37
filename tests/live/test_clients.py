"""Clients of others on a server of ours: SGLang's benchmark, with conversations and with a Mooncake trace; openai's."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from eval.live.server import CPU_PLATFORM, Server

pytestmark = pytest.mark.live

ANSWER = 8  # tokens


def bench_serving(server: Server, model: Path, folder: Path, *flags: str) -> dict[str, Any]:
    """Run ``python -m sglang.bench_serving`` without a network; returns the line of results that it writes."""
    results = folder / "results.jsonl"
    command = [
        *(sys.executable, "-m", "sglang.bench_serving", "--base-url", server.base_url),
        *("--model", str(model), "--tokenizer", str(model), "--output-file", str(results)),
        *("--flush-cache", "--cache-report", "--disable-tqdm", *flags),
    ]
    environment = {**os.environ, **CPU_PLATFORM, "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    log = folder / "bench.log"
    process = Server.start_process(command, environment, log)
    while (status := process.poll()) is None:  # pytest's timeout bounds this
        time.sleep(0.1)
    assert status == 0, log.read_text()[-3000:]
    (line,) = results.read_text().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_bench_serving_talks_in_turns_and_finds_what_was_said(
    our_server: Server, weighted_model: Path, tmp_path: Path
) -> None:
    # 3 conversations of 3 turns, each adding a question of 300 bytes, that is 300 tokens: they fit into the pool.
    conversations, turns, question = 3, 3, 300
    file = tmp_path / "conversations.json"
    said = [
        [{"messages": [{"role": "user", "content": f"{number}.{turn} ".ljust(question, "?")}]} for turn in range(turns)]
        for number in range(conversations)
    ]
    file.write_text(json.dumps({"conversations": said}))
    flags = ("--dataset-name", "agentic-trace", "--dataset-path", str(file), "--sharegpt-output-len", str(ANSWER))
    result = bench_serving(
        our_server, weighted_model, tmp_path, "--backend", "sglang-oai-chat", *flags, "--max-concurrency", "2"
    )
    assert result["completed"] == conversations * turns
    assert result["total_output_tokens"] == conversations * turns * ANSWER
    assert result["median_ttft_ms"] > 0
    # Turn 2 finds the question of turn 1, turn 3 those of both. An answer comes back as text, maybe as other tokens.
    assert result["cache_report"]["total_prompt_tokens"] >= conversations * question * (1 + 2 + 3)
    assert result["cache_report"]["total_cached_tokens"] >= conversations * question * (1 + 2)


def test_bench_serving_replays_a_mooncake_trace_through_evictions(
    our_server: Server, weighted_model: Path, tmp_path: Path
) -> None:
    # A block becomes 128 times "hi", 383 bytes. 10 sessions of 2 rounds, the second half like the first: with their
    # answers more than fits.
    file = tmp_path / "trace.jsonl"
    records = [
        {"timestamp": 200 * number, "input_length": 512, "output_length": ANSWER, "hash_ids": [number % 5]}
        for number in range(10)
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    before = our_server.get_metrics()["sglang:tlru_evicted_tokens_total"]
    flags = ("--dataset-name", "mooncake", "--dataset-path", str(file), "--mooncake-num-rounds", "2")
    result = bench_serving(our_server, weighted_model, tmp_path, "--backend", "sglang", *flags)
    assert result["completed"] == 10 * 2
    assert result["total_input_tokens"] >= 10 * (1 + 2) * 383
    assert 0 < result["cache_report"]["total_cached_tokens"] < result["cache_report"]["total_prompt_tokens"]
    assert our_server.get_metrics()["sglang:tlru_evicted_tokens_total"] > before


def test_the_openai_client_streams_a_conversation_and_is_told_what_was_cached(our_server: Server) -> None:
    our_server.flush_cache()
    messages: list[dict[str, str]] = []
    prompt_tokens = 0  # of the turn before
    with openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none") as client:
        for turn in range(3):
            messages.append({"role": "user", "content": f"{turn} ".ljust(400, "?")})
            stream = client.chat.completions.create(
                model="any",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=ANSWER,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            *chunks, last = stream
            assert last.usage is not None
            assert last.usage.completion_tokens == ANSWER
            assert last.usage.prompt_tokens >= prompt_tokens + 400
            assert last.usage.prompt_tokens_details is not None
            cached = last.usage.prompt_tokens_details.cached_tokens
            assert cached is not None
            assert prompt_tokens <= cached < last.usage.prompt_tokens
            prompt_tokens = last.usage.prompt_tokens
            parts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            assert len(parts) > 1, "the answer came in one piece"
            messages.append({"role": "assistant", "content": "".join(parts)})
