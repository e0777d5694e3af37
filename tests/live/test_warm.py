"""Prompts that a server keeps warm from its start, and those that are warmed from outside."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from eval.live.server import Server
from radix_tlru.cli import main
from radix_tlru.tools.scrape import scrape
from tests.helpers.servers import POOL, assert_unharmed, serve

pytestmark = pytest.mark.live

SYSTEM = [{"role": "system", "content": "You are kind. " * 20}]
ROWS = [
    {"name": "support", "messages": SYSTEM},
    {"name": "story", "text": "Once upon a time " * 10},
    {"name": "salted", "input_ids": list(range(200)), "cache_salt": "tenant"},
]


def written(file: Path, *rows: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("warm") / "prompts.jsonl", *ROWS)


@pytest.fixture(scope="module")
def server(weighted_model: Path, file: Path) -> Iterator[Server]:
    given = ("--radix-eviction", "etlru", "--tlru-threshold", "600", "--tlru-warm", str(file))
    with serve(weighted_model, "warm", *given) as server:
        yield server
        assert_unharmed(server, POOL)


def chat(server: Server) -> Any:
    """What a first turn behind the system prompt is told of its tokens."""
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    messages: Any = [*SYSTEM, {"role": "user", "content": "Hi"}]
    return client.chat.completions.create(model="default", messages=messages, max_tokens=2).usage


def test_the_first_chat_of_a_server_finds_its_system_prompt(
    server: Server, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deadline = time.monotonic() + 60
    while not (warm := {prompt.name: prompt for prompt in scrape(server.base_url).warm}):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert list(warm) == ["support", "story", "salted"]
    assert (warm["story"].tokens, warm["salted"].tokens) == (len(ROWS[1]["text"]), 200)
    usage = chat(server)
    assert warm["support"].tokens == usage.prompt_tokens_details.cached_tokens
    assert warm["support"].tokens > len(SYSTEM[0]["content"])
    assert main(["top", server.base_url, "--once"]) == 0
    told = capsys.readouterr().out
    assert "Warm prompts" in told
    assert all(name in told for name in warm)
    # Of another salt nothing is found.
    body = {"input_ids": ROWS[2]["input_ids"], "sampling_params": {"max_new_tokens": 1}}
    for salt, found in (("tenant", 199), ("other", 0)):
        reply = requests.post(f"{server.base_url}/generate", json={**body, "cache_salt": salt}, timeout=60)
        assert reply.json()["meta_info"]["cached_tokens"] == found


def test_what_a_flush_takes_is_back_after_the_next_round(server: Server, file: Path) -> None:
    command = [sys.executable, "-m", "radix_tlru.cli", "warm", server.base_url, str(file), "--every", "0.3"]
    interruptible = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # where tests run in the background
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=interruptible) as warming:
        assert warming.stdout is not None
        try:
            lines = iter(warming.stdout.readline, "")
            assert any("% of the pool" in line for line in lines), "the table of the first round"
            for line in lines:
                if not line.startswith("0 of "):
                    break
                server.flush_cache()  # again, if the server's own round came first
            assert next(lines).startswith("0 of ")
            assert chat(server).prompt_tokens_details.cached_tokens > len(SYSTEM[0]["content"])
        finally:
            warming.send_signal(signal.SIGINT)
        assert warming.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": [1, 1 << 40]}, "row 2: input_ids: "),
        ({"text": "a" * (POOL // 4)}, "up to here: must be at most 1,000, 25% of the pool"),
        ({"text": "a" * POOL}, "row 2: 4,000 tokens: must be at most 3,"),
        ({"text": "a", "lora_path": "poet"}, "row 2: lora_path poet: must be left out: the server has no adapters"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "row 2: messages: "),
    ],
    ids=["vocabulary", "share", "length", "adapter", "role"],
)
def test_what_the_server_cannot_warm_is_said_before_it_is_asked_for_any(
    row: Any, said: str, server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = f"{said[::-1]} is what nobody has said before"
    wrong = written(tmp_path / "wrong.jsonl", {"text": new}, row)
    assert main(["warm", server.base_url, str(wrong)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    body = {"text": new, "sampling_params": {"max_new_tokens": 1}}
    reply = requests.post(f"{server.base_url}/generate", json=body, timeout=60)
    assert reply.json()["meta_info"]["cached_tokens"] < len(new) // 2


@pytest.mark.long
def test_a_server_that_drains_asks_itself_for_no_further_prompt(weighted_model: Path, tmp_path: Path) -> None:
    """250 prompts of four tokens fill a quarter of the pool. Half of a round after SIGTERM would be 125 more."""
    many = written(tmp_path / "many.jsonl", *({"input_ids": [number, 1, 2, 3]} for number in range(POOL // 4 // 4)))
    given = ("--radix-eviction", "etlru", "--tlru-warm", str(many))
    with serve(weighted_model, "drains", *given, "--log-level-http", "info") as server:
        deadline = time.monotonic() + 60
        while "keeps 250 prompts warm" not in (log := server.log_path.read_text(errors="replace")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        before = log.count("POST /generate")  # of which 250 checked ids
        os.kill(server.process_group, signal.SIGTERM)  # its first process alone, which asks the others to end
        while server.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not server.alive()
        log = server.log_path.read_text(errors="replace")
        assert "Gracefully exiting" in log
        assert log.count("POST /generate") < before + 125


def test_where_no_server_is_one_line_says_so(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warm", "127.0.0.1:1", str(file)]) == 2
    assert capsys.readouterr().err == "radix-tlru: error: no server answers at http://127.0.0.1:1\n"
