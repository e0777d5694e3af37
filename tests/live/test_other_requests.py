"""Requests that ask for more than an answer, or come by gRPC: with code of their client, in beams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from eval.live.server import Server, free_port
from tests.helpers.servers import POOL, assert_unharmed, serve
from tests.helpers.talk import Conversation, body, cached

pytestmark = pytest.mark.live

WANTED, ANSWER = 7, 4
SERVICE = "/sglang.runtime.v1.SglangService"


class OnlyToken(CustomLogitProcessor):
    """Answers with the token that a request wants, and as the model does where none is wanted."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        for row, params in enumerate(custom_param_list):
            if params is not None:
                logits[row] = -float("inf")
                logits[row, params["token_id"]] = 0.0
        return logits


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(weighted_model: Path, grpc_port: int) -> Iterator[Server]:
    ours = ("--radix-eviction", "etlru", "--tlru-threshold", "600", "--enable-custom-logit-processor")
    with serve(weighted_model, "others", *ours, "--grpc-port", str(grpc_port)) as server:
        yield server


def turns(server: Server) -> float:
    return server.get_metrics()["sglang:tlru_requests_total"]


def generate(server: Server, seed: int, **asked: Any) -> dict[str, Any]:
    """The answer to a prompt of 300 tokens; ``asked`` are fields of the body, and of the sampling parameters."""
    request = body(Conversation(seed).ask(300), ANSWER)
    for field in ("custom_params", "beam_width", "n"):
        if field in asked:
            request["sampling_params"][field] = asked.pop(field)
    reply = requests.post(f"{server.base_url}/generate", json={**request, **asked}, timeout=60)
    reply.raise_for_status()
    answered: dict[str, Any] = reply.json()
    return answered


def test_a_logit_processor_is_given_what_its_client_gave(server: Server) -> None:
    """Where that is nothing, the model answers."""
    before, plain, code = turns(server), generate(server, 5_101), OnlyToken.to_str()
    processed = generate(server, 5_101, custom_logit_processor=code, custom_params={"token_id": WANTED})
    assert processed["output_ids"] == [WANTED] * ANSWER
    assert generate(server, 5_101, custom_logit_processor=code)["output_ids"] == plain["output_ids"]
    assert turns(server) - before == 3
    assert_unharmed(server, POOL)


def test_of_a_search_in_beams_sglang_caches_nothing_and_it_is_no_turn(server: Server) -> None:
    before = turns(server)
    generate(server, 5_102, beam_width=3, n=2)
    assert turns(server) == before
    assert cached(generate(server, 5_102)) == 0
    assert turns(server) - before == 1
    assert_unharmed(server, POOL)


def complete(port: int, **said: Any) -> str:
    """What SGLang's gRPC server sends back for a completion. A request is a body in JSON: its first field."""
    asked = json.dumps(
        {"model": "default", "prompt": "Otherwise than by HTTP, one upon another", "max_tokens": ANSWER, **said}
    ).encode()
    length = len(asked)
    assert 1 << 7 <= length < 1 << 14, "a length of two bytes"
    message = bytes([1 << 3 | 2, length & 127 | 128, length >> 7]) + asked
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_stream(f"{SERVICE}/Complete", bytes, bytes)
        return b"".join(call(message, timeout=60)).decode(errors="replace")


def test_hints_of_requests_by_grpc_are_among_the_custom_parameters(server: Server, grpc_port: int) -> None:
    before = turns(server)
    assert "text_completion" in complete(grpc_port, custom_params={"tlru": {"returns_in_s": 5}})
    refused = complete(grpc_port, custom_params={"tlru": {"returns_in_m": 5}})
    assert "tlru.returns_in_m 5: must be left out" in refused
    assert "text_completion" in complete(grpc_port, tlru={"returns_in_m": 5, "why": "SGLang drops what it knows not"})
    assert turns(server) - before == 2
    assert "requests come without a stamp" not in server.log_path.read_text(errors="replace")
