"""What broken, impatient or hostile clients do to a server: it answers as stock does, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from typing import Any

import aiohttp
import pytest
import requests

from eval.server import Server
from radix_tlru.demo_model import VOCABULARY
from tests.conftest import POOL
from tests.test_live import ANSWER, COMPLAINTS, Conversation, assert_all_is_given_back

pytestmark = pytest.mark.live

SAMPLING = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}


def post(server: Server, path: str, **body: Any) -> tuple[int, str]:
    """Status and text of an answer, without what differs from one to the next: ids and times."""
    reply = requests.post(f"{server.base_url}{path}", json=body, timeout=120)
    return reply.status_code, re.sub(r'"(id|e2e_latency|[a-z_]*_time|[a-z_]*_ts)":[^,}]+', "", reply.text)


def assert_unharmed(server: Server) -> None:
    """Everything is given back, it serves from its cache, and the log has no complaint."""
    assert_all_is_given_back(server, POOL)
    server.flush_cache()
    conversation = Conversation(77)
    conversation.turn(server, 500)
    assert conversation.turn(server, 10) == 500 + ANSWER - 1
    log = server.log_path.read_text(errors="replace")
    assert not [complaint for complaint in COMPLAINTS if complaint in log]


WRONG: dict[str, dict[str, Any]] = {
    "a token beyond the vocabulary": {"input_ids": [1, 2, VOCABULARY]},
    "a token far beyond it": {"input_ids": [1, 2**31]},
    "no tokens": {"input_ids": []},
    "half a megabyte of tokens": {"input_ids": [200] * 2**17},
    "a megabyte of text": {"text": "a" * 2**20},
    "a prompt larger than the pool": {"input_ids": [7] * (POOL + 1)},
    "an answer larger than the pool": {"input_ids": [7] * 100, "sampling_params": {"max_new_tokens": 10**6}},
    "words for tokens": {"input_ids": ["one", "two"]},
    "neither text nor tokens": {},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_wrong_request_is_answered_as_stock_answers_it(
    body: dict[str, Any], our_server: Server, stock_server: Server
) -> None:
    for server in (our_server, stock_server):
        server.flush_cache()
    body = {"sampling_params": SAMPLING, **body}
    (status, ours), (stock_status, stock) = (post(server, "/generate", **body) for server in (our_server, stock_server))
    assert status == stock_status
    if status != 200:
        assert ours == stock
    for server in (our_server, stock_server):
        assert server.alive()
        assert_all_is_given_back(server, POOL)


CLIENT = """
import json, sys, requests
url, tokens = sys.argv[1:]
sampling = {"max_new_tokens": int(tokens), "ignore_eos": True}
body = {"input_ids": list(range(100, 400)), "sampling_params": sampling, "stream": True}
for line in requests.post(url, json=body, stream=True).iter_lines():
    print(line[:9], flush=True)
"""


def test_a_client_killed_in_the_middle_of_its_answer_leaves_nothing_behind(our_server: Server) -> None:
    our_server.flush_cache()
    command = [sys.executable, "-c", CLIENT, f"{our_server.base_url}/generate", str(POOL // 2)]
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    for client in clients:
        assert client.stdout is not None
        for _ in range(10):
            assert client.stdout.readline()
        os.kill(client.pid, signal.SIGKILL)
    for client in clients:
        assert client.wait() == -signal.SIGKILL
        client.communicate()
    assert_unharmed(our_server)


async def abort_all_of(server: Server, count: int) -> list[int]:
    """Long answers by the hundred, each aborted by its id a little later than the one before it; their statuses."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def one(number: int) -> int:
            sampling = {"max_new_tokens": POOL // 2, "ignore_eos": True}
            prompt = Conversation(1_000 + number).ask(20 + number)
            body = {"input_ids": prompt, "sampling_params": sampling, "rid": f"abuse-{number}"}
            asked = asyncio.ensure_future(session.post(f"{server.base_url}/generate", json=body))
            await asyncio.sleep(0.02 * number)
            while not asked.done():
                async with session.post(f"{server.base_url}/abort_request", json={"rid": f"abuse-{number}"}):
                    await asyncio.sleep(0.5)
            return (await asked).status

        return await asyncio.gather(*map(one, range(count)))


def test_two_hundred_aborts_leave_nothing_behind(our_server: Server) -> None:
    our_server.flush_cache()
    statuses = asyncio.run(abort_all_of(our_server, 200))
    assert len(statuses) == 200
    assert_unharmed(our_server)


async def flush_under_load(server: Server) -> list[int]:
    """Flushes while answers are being written; their statuses."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def ask(number: int) -> int:
            sampling = {"max_new_tokens": 200, "ignore_eos": True}
            body = {"input_ids": Conversation(2_000 + number).ask(300), "sampling_params": sampling}
            async with session.post(f"{server.base_url}/generate", json=body) as reply:
                return len((await reply.json())["output_ids"])

        asked = [asyncio.ensure_future(ask(number)) for number in range(4)]
        await asyncio.sleep(0.5)
        statuses = []
        for _ in range(5):
            async with session.post(f"{server.base_url}/flush_cache") as reply:
                statuses.append(reply.status)
        assert await asyncio.gather(*asked) == [200] * 4
        return statuses


def test_a_flush_under_load_is_refused_as_stock_refuses_it(our_server: Server, stock_server: Server) -> None:
    statuses = [asyncio.run(flush_under_load(server)) for server in (our_server, stock_server)]
    assert statuses == [[400] * 5] * 2
    assert_unharmed(our_server)


async def decode_beyond_the_pool(server: Server) -> list[int]:
    """Answers that all began, and together do not fit; tokens of each."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def ask(number: int) -> int:
            sampling = {"max_new_tokens": 700, "ignore_eos": True}
            body = {"input_ids": Conversation(3_000 + number).ask(100), "sampling_params": sampling}
            async with session.post(f"{server.base_url}/generate", json=body) as reply:
                return len((await reply.json())["output_ids"])

        return await asyncio.gather(*map(ask, range(8)))


def test_answers_that_do_not_fit_together_are_retracted_and_end_well(our_server: Server) -> None:
    assert POOL < 8 * (100 + 700)
    our_server.flush_cache()
    assert asyncio.run(decode_beyond_the_pool(our_server)) == [700] * 8
    assert "KV cache pool is full. Retract requests" in our_server.log_path.read_text(errors="replace")
    assert_unharmed(our_server)
