"""The server of the harness: started, played against, and gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

import eval.server
from eval.client import RequestResult
from eval.replay import WARM_UP_TOKENS, replay
from eval.server import Server, ServerError, cpu_flags, ensure_demo_model, live_members
from eval.workload import Conversation, Turn

# Stands in for SGLang: answers /health, has a child process, and does not care about SIGTERM.
STUBBORN = """
import http.server, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
# Leaves a child behind and dies with a message.
DYING = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("no such model: /nowhere", flush=True)
sys.exit(3)
"""
# Speaks the protocol of /generate: half of every prompt is cached, answers are 900, 901, ... and take 0.1 s, a prompt
# of 13 tokens is refused and one of 14 is aborted within its stream. It prints the length of each prompt.
SCRIPTED = """
import asyncio, json, sys
from aiohttp import web
async def generate(request):
    body = await request.json()
    prompt, answer = len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
    print("prompt", prompt, flush=True)
    if prompt == 13:
        return web.Response(status=400, text="thirteen")
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(0.1)
    for count in range(1, answer + 1):
        finish = {"type": "abort", "message": "fourteen"} if prompt == 14 else None
        meta = {"cached_tokens": prompt // 2, "finish_reason": finish}
        event = {"output_ids": [900 + i for i in range(count)], "meta_info": meta}
        await response.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    await response.write(b"data: [DONE]\\n\\n")
    return response
async def ok(request):
    return web.Response()
app = web.Application(client_max_size=2**24)
app.add_routes([web.post("/generate", generate), web.get("/health", ok), web.post("/flush_cache", ok)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[-1]), print=None)
"""
SILENT = "import time; print('loading', flush=True); time.sleep(600)"


@pytest.fixture(autouse=True)
def _logs_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval.server, "LOG_DIRECTORY", tmp_path)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def stand_in(script: str, *, startup_s: float = 30.0, grace_s: float = 2.0) -> Server:
    return Server([], command=[sys.executable, "-c", script], startup_s=startup_s, grace_s=grace_s)


def test_a_server_that_dies_at_start_shows_the_end_of_its_log_and_leaves_no_process() -> None:
    server = stand_in(DYING)
    with pytest.raises(ServerError, match=r"ended with status 3 .*\n(.*\n)*no such model: /nowhere"), server:
        pytest.fail("the block must not be entered")
    assert live_members(server.process_group) == []


def test_a_server_that_is_never_healthy_is_given_up_and_leaves_no_process() -> None:
    server = stand_in(SILENT, startup_s=0.5)
    with pytest.raises(ServerError, match=r"not healthy after 0.5 s.*\nloading"), server:
        pytest.fail("the block must not be entered")
    assert live_members(server.process_group) == []


@pytest.mark.parametrize("reason", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_block_ends_every_process_even_one_that_ignores_sigterm(
    reason: type[BaseException], bystander: subprocess.Popen[bytes]
) -> None:
    server = stand_in(STUBBORN, grace_s=0.3)

    def use() -> None:
        with server:
            assert requests.get(f"{server.base_url}/health", timeout=5).ok
            assert len(live_members(server.process_group)) == 2
            raise reason

    with pytest.raises(reason):
        use()
    assert live_members(server.process_group) == []
    assert bystander.poll() is None, "a process of somebody else was ended"
    server.stop()  # harmless when there is nothing left to stop


def conversation(index: int, start_s: float, *turns: tuple[int, float]) -> Conversation:
    """Each turn adds (tokens, seconds after the turn before) and asks for an answer of 3 tokens."""
    return Conversation(index, start_s, tuple(Turn((index,) * tokens, 3, wait_s) for tokens, wait_s in turns))


def test_a_slow_server_sees_the_same_order_and_each_prompt_holds_the_real_answers() -> None:
    # Due at 0.00 (10 tokens), 0.01 (20) and 0.02 s, but each takes 0.1 s: the third is 10 + 3 of the answer + 4 new.
    workload = [conversation(0, 0.0, (10, 0.0), (4, 0.02)), conversation(1, 0.01, (20, 0.0))]
    seen: list[RequestResult] = []
    with stand_in(SCRIPTED) as server:
        results = replay(server, workload, concurrency=1, on_result=seen.append)
        prompts = [int(line.split()[1]) for line in server.log_tail().splitlines() if line.startswith("prompt")]
    assert prompts[len(WARM_UP_TOKENS) :] == [10, 20, 10 + 3 + 4]
    assert [(result.conversation, result.turn) for result in results] == [(0, 0), (1, 0), (0, 1)]
    assert [result.uncached_tokens for result in results] == [5, 10, 17 - 8]
    assert all(result.output_ids == (900, 901, 902) and result.error is None for result in results)
    assert all(100 <= (result.ttft_ms or 0) <= result.e2e_ms for result in results)
    assert seen == results


def test_failed_requests_are_results_with_their_reason_and_end_their_conversation() -> None:
    workload = [
        conversation(0, 0.0, (13, 0.0), (1, 0.1), (1, 0.1)),
        conversation(1, 0.0, (14, 0.0)),
        conversation(2, 0.0, (15, 0.0), (1, 0.1)),
    ]
    with stand_in(SCRIPTED) as server:
        results = replay(server, workload, concurrency=3)
    errors = {(result.conversation, result.turn): result.error for result in results}
    assert errors == {
        (0, 0): "HTTP 400: thirteen",
        (0, 1): "not sent: an earlier turn of the conversation failed",
        (0, 2): "not sent: an earlier turn of the conversation failed",
        (1, 0): "aborted: fourteen",
        (2, 0): None,
        (2, 1): None,
    }


@pytest.mark.live
def test_a_real_server_plays_two_turns_and_reuses_the_first() -> None:
    first = Turn(new_ids=tuple(range(200)), output_tokens=8, wait_s=0.0)
    second = Turn(new_ids=(5,) * 50, output_tokens=8, wait_s=0.1)
    with Server([*cpu_flags(ensure_demo_model(), pool_tokens=4096), "--radix-eviction-policy", "lru"]) as server:
        results = replay(server, [Conversation(0, 0.0, (first, second))], concurrency=1)
        assert [result.error for result in results] == [None, None]
        assert [result.prompt_tokens for result in results] == [200, 200 + 8 + 50]
        assert results[0].cached_tokens == 0, "the cache was not flushed after the warm-up"
        assert results[1].cached_tokens == 200 + 8 - 1  # the last answer token was never an input
        assert all(0 < (result.ttft_ms or 0) <= result.e2e_ms for result in results)

        too_long = Conversation(1, 0.0, (Turn((1,) * 5000, 8, 0.0), second))
        failed, not_sent = replay(server, [too_long], concurrency=1)
        assert "5000" in (failed.error or "")
        assert "not sent" in (not_sent.error or "")

        assert server.server_info()["radix_eviction_policy"] == "lru"
        assert server.get_metrics()["sglang:num_requests_total"] > 2
    assert live_members(server.process_group) == []
