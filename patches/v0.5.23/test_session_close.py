"""A streaming session is closed while two turns of it overlap: one is refused, the other ends, and the server lives."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest
import requests

from eval.live.server import Server, cpu_flags, ensure_demo_model
from tests.helpers.servers import POOL
from tests.live.test_server import pytestmark

STARTUP_S = 1_800.0
CHUNK = 256

pytestmark = [pytestmark, pytest.mark.timeout(3_600)]


@pytest.fixture
def server() -> Iterator[Server]:
    """A stock one: the fault has nothing to do with eviction."""
    given = [*cpu_flags(ensure_demo_model(), POOL), "--enable-streaming-session", "--chunked-prefill-size", str(CHUNK)]
    with Server(given, name="test-patched-session", startup_s=STARTUP_S) as server:
        yield server


def post(server: Server, path: str, **body: object) -> requests.Response:
    return requests.post(f"{server.base_url}/{path}", json=body, timeout=60)


def test_a_close_beside_two_turns_waits_for_the_one_that_runs(server: Server) -> None:
    rng = random.Random(4)
    for _ in range(5):
        session = post(server, "open_session", capacity_of_str_len=10_000, streaming=True).json()
        statuses: list[int] = []

        def turn(tokens: int, answer: int, session: str = session, statuses: list[int] = statuses) -> None:
            prompt = [rng.randrange(500) for _ in range(tokens)]
            sampling = {"temperature": 0, "max_new_tokens": answer, "ignore_eos": True}
            given = {"input_ids": prompt, "sampling_params": sampling}
            statuses.append(post(server, "generate", **given, session_params={"id": session, "rid": None}).status_code)

        turn(100, 8)
        together = [threading.Thread(target=turn, args=(3 * CHUNK, 60)) for _ in range(2)]
        for one in together:
            one.start()
        while len(statuses) < 2:  # the one that is refused; the other has some chunks and an answer to go
            assert any(one.is_alive() for one in together)
            time.sleep(0.001)
        post(server, "close_session", session_id=session)
        for one in together:
            one.join()
        assert sorted(statuses) == [200, 200, 400]
        assert server.alive()
    assert "is_kv_released" not in server.log_path.read_text(errors="replace")
