"""Streaming sessions, which hold their KV outside the tree: what a session holds stays, whatever else has to go."""

from __future__ import annotations

import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from sglang.test.kits.streaming_session_kit import StreamingSessionKitMixin
from sglang.test.server_fixtures import streaming_session_fixture
from transformers import AutoTokenizer

from eval.live.server import Server
from tests.helpers.servers import OURS, POOL, assert_all_is_given_back, complaints, serve
from tests.helpers.talk import ANSWER, Conversation, answer_to

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def server(weighted_model: Path) -> Iterator[Server]:
    context = ("--context-length", "131072")  # of the model that the kit is written for: it asks for 100,000 tokens
    given = (*OURS, "--enable-streaming-session", *context)
    with serve(weighted_model, "sessions", *given, SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN="1") as server:
        yield server
        assert complaints(server) == []


def post(server: Server, path: str, **body: Any) -> Any:
    reply = requests.post(f"{server.base_url}/{path}", json=body, timeout=120)
    assert reply.ok, reply.text
    return reply.json() if reply.content else None


def test_what_a_session_holds_is_not_evicted(server: Server, stock_server: Server) -> None:
    server.flush_cache()
    session = post(server, "open_session", capacity_of_str_len=10_000, streaming=True)
    rng, history, found = Conversation(0), (), []
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    for length in (1_000, 100, 100):
        said = rng.ask(length)[-length:]
        body = {"input_ids": said, "session_params": {"id": session, "rid": None}, "return_logprob": True}
        reply = post(server, "generate", sampling_params=sampling, **body)
        found.append(reply["meta_info"]["cached_tokens"])
        prompt, history = history + said, history + said + tuple(reply["output_ids"])
        for seed in (1, 2, 3):  # which are too many for what is left of the pool
            Conversation(seed).turn(server, 1_500)
    assert found == [0, 1_000 + ANSWER - 1, 1_100 + 2 * ANSWER - 1]
    stock_server.flush_cache()
    ours = [value for value, *_ in reply["meta_info"]["output_token_logprobs"]]
    assert ours == pytest.approx(answer_to(stock_server, prompt).log_probabilities, abs=1e-4)
    assert server.get_metrics()["sglang:tlru_splits_total"] > 0
    post(server, "close_session", session_id=session)
    assert_all_is_given_back(server, POOL)


class TestSGLangsOwnKit(StreamingSessionKitMixin, unittest.TestCase):
    """Sessions at once, and turns that are aborted, at any moment."""

    rounds = 2  # of sessions that are opened at once; SGLang's own are 10

    test_stress_concurrent_sessions = None  # holds ten times the pool, of which a session gives back nothing

    @pytest.fixture(autouse=True)
    def point_at_the_server(self, server: Server, weighted_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(streaming_session_fixture, "CONCURRENT_LOGPROB_ROUNDS", self.rounds)
        self.server, self.base_url = server, server.base_url
        self.tokenizer = AutoTokenizer.from_pretrained(weighted_model)

    def tearDown(self) -> None:
        self.server.flush_cache()
        assert_all_is_given_back(self.server, POOL)


@pytest.mark.long
class TestSGLangsOwnKitAtItsLength(TestSGLangsOwnKit):
    rounds = 10
