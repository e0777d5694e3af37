"""Several processes that take requests in (``--tokenizer-worker-num``): each stamps them, and checks hints."""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import requests

from eval.live.server import Server
from radix_tlru.objective.calibration import EVERY
from tests.helpers.servers import POOL, assert_unharmed, evicted, serve
from tests.helpers.talk import Conversation, Told, body, cached, crowd, histories

pytestmark = pytest.mark.live

WORKERS = 2
OURS = ("--radix-eviction", "etlru", "--tlru-ttft-slo", "60")


@pytest.fixture(scope="module")
def server(weighted_model: Path) -> Iterator[Server]:
    with serve(weighted_model, "tokenizers", *OURS, "--tokenizer-worker-num", str(WORKERS)) as server:
        yield server


def sessions(server: Server) -> dict[int, requests.Session]:
    """A connection to each of the processes that take requests in, by process id."""
    log = ""
    # The first one answers before the others are there, each of which serves itself a request before it is ready, too.
    while log.count("The server is fired up") < WORKERS:  # pytest's timeout bounds this
        time.sleep(0.1)
        log = server.log_path.read_text(errors="replace")
    workers = [int(pid) for pid in re.findall(r"Start multi-tokenizer worker process (\d+)", log)]
    assert len(workers) == WORKERS
    taken: dict[int, requests.Session] = {}
    for _ in range(200):
        before = {pid: connections(server, pid) for pid in workers}
        session = requests.Session()
        session.get(f"{server.base_url}/health", timeout=60)
        (pid,) = (pid for pid in workers if connections(server, pid) - before[pid])
        taken.setdefault(pid, session)
        if len(taken) == WORKERS:
            return taken
    raise AssertionError(f"200 connections were all taken by {list(taken)}")


def connections(server: Server, pid: int) -> set[int]:
    """Ports of the clients that a process talks with."""
    port = int(server.base_url.rpartition(":")[2])
    found = psutil.Process(pid).net_connections("tcp")
    return {each.raddr.port for each in found if each.raddr and each.laddr.port == port}


def test_each_process_stamps_and_checks(server: Server) -> None:
    each = sessions(server)
    before = server.get_metrics()["sglang:tlru_requests_total"]
    for number, session in enumerate(each.values()):

        def ask(tokens: tuple[int, ...], session: requests.Session = session, **said: object) -> requests.Response:
            asked = body(tokens, 4)
            asked["sampling_params"]["custom_params"] = {"tlru": said}
            return session.post(f"{server.base_url}/generate", json=asked, timeout=60)

        talk = Conversation(70 + number)
        first = talk.ask(300)
        assert cached(ask(first, next_prompt_tokens=20).json()) == 0
        assert cached(ask(talk.ask(50), conversation_ends=True).json()) >= 300
        wrong = ask(first, conversation_ends="yes")
        assert wrong.status_code == 400
        assert "tlru.conversation_ends" in wrong.text
    with contextlib.ExitStack() as stack:
        for session in each.values():
            stack.enter_context(session)
    assert server.get_metrics()["sglang:tlru_requests_total"] - before == 2 * WORKERS
    # It would say so once if a request had come without a stamp.
    assert "requests come without a stamp" not in server.log_path.read_text(errors="replace")


def test_a_crowd_under_pressure_is_answered_as_by_stock(server: Server, told_by_stock: Told) -> None:
    before = evicted(server)
    told = histories(crowd(server, [{}] * 12))
    assert evicted(server) - before > POOL / 2
    assert told == told_by_stock(12)
    assert_unharmed(server, POOL)


@pytest.mark.long
def test_what_first_tokens_wait_for_other_than_prefills_is_not_guessed(server: Server) -> None:
    lengths = random.Random(0)
    for number in range(2 * EVERY):  # one at a time, but of two processes neither knows that
        Conversation(100 + number).turn(server, lengths.randrange(50, 1_500))
    learned = server.get_metrics()
    assert learned["sglang:tlru_alpha_ms_per_token"] > 0
    assert learned["sglang:tlru_overhead_ms"] == 0
