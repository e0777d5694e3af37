"""A server with storage behind its host tier: answers on what came back are those of a server that computed it all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import requests

from eval.live.server import Server, cpu_flags
from tests.helpers.models import small_model
from tests.helpers.ranks import ENVIRONMENT as RANKS
from tests.helpers.ranks import replay, settled
from tests.helpers.servers import (
    NEXT_PROMPT,
    PAGE_SIZE,
    PAGED_CHUNK,
    assert_all_is_given_back,
    complaints,
    serve,
)
from tests.helpers.talk import ANSWER, Conversation

pytestmark = pytest.mark.live

POOL = 2_048
HOST = POOL * 3 // 2  # tokens of the host tier
TALKS, PROMPTS = 12, (450, 75)  # conversations, half as much again as memory holds, and their turns in tokens
OURS = ("--tlru-threshold", "300", "--tlru-next-prompt-estimate", str(NEXT_PROMPT))
CONFIG = '{"prefetch_threshold": 64}'  # tokens that storage must have of a request to be read
KEY = {"Authorization": "Bearer of-the-operator"}


SHAPES = {
    "write_through": ("--hicache-write-policy", "write_through"),
    "write_back": ("--hicache-write-policy", "write_back"),
    "buffer_only": ("--hicache-host-memory-mode", "buffer_only"),  # the host holds what is on its way, and nothing else
    "nixl": ("--hicache-storage-backend", "nixl"),  # files as well, through NVIDIA's library
}


def tiers(shape: str) -> list[str]:
    """Flags of a server with a host tier, which SGLang copies with where there is no GPU, and storage behind it."""
    return [
        *("--enable-hierarchical-cache", "--hicache-ratio", str(HOST / POOL)),
        *("--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"),
        *("--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config", CONFIG),
        *("--hicache-storage-prefetch-policy", "wait_complete", *SHAPES[shape]),
    ]


def kept_in(directory: Path) -> dict[str, str]:
    """The environment of a server whose storage is in that directory."""
    backends = ("FILE_BACKEND_STORAGE_DIR", "NIXL_BACKEND_STORAGE_DIR")
    return {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "POSIX"} | {
        f"SGLANG_HICACHE_{name}": str(directory) for name in backends
    }


@pytest.fixture(scope="module", params=SHAPES)
def server(
    request: pytest.FixtureRequest, weighted_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    given = [
        *tiers(request.param),
        *("--radix-eviction", "tlru", *OURS),
        *("--admin-api-key", KEY["Authorization"].removeprefix("Bearer ")),
    ]
    shape = {"pool": POOL, "page_size": PAGE_SIZE, "chunk": PAGED_CHUNK}
    kept = kept_in(tmp_path_factory.mktemp("storage"))
    with serve(weighted_model, f"storage-{request.param}", *given, **shape, **kept) as server:
        yield server
        assert complaints(server) == []


class Answer(NamedTuple):
    output: list[int]
    log_probabilities: list[float]
    cached: int  # tokens of the prompt, on whatever tier
    stored: int  # of them those that came from storage


def ask(server: Server, prompt: tuple[int, ...]) -> Answer:
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    reply = requests.post(f"{server.base_url}/generate", json=body, timeout=120).json()
    said = reply["meta_info"]
    log_probabilities = [value for value, *_ in said["output_token_logprobs"]]
    stored = (said["cached_tokens_details"] or {}).get("storage", 0)
    return Answer(reply["output_ids"], log_probabilities, said["cached_tokens"], stored)


def flush(server: Server) -> None:
    """Empty both tiers of memory; storage keeps what it has."""
    reply = requests.post(f"{server.base_url}/flush_cache", params={"timeout": 30}, headers=KEY, timeout=40)
    assert reply.ok, reply.text


def attach(server: Server, config: str | None) -> None:
    """Give a server that runs its storage back; None: take it away."""
    backend = "nixl" if "nixl" in server.flags else "file"
    body = {"hicache_storage_backend": backend, "hicache_storage_backend_extra_config_json": config}
    method, body = ("PUT", body) if config is not None else ("DELETE", {})
    reply = requests.request(method, f"{server.base_url}/hicache/storage-backend", json=body, headers=KEY, timeout=60)
    assert reply.ok, reply.text


def talk(server: Server) -> list[Conversation]:
    """Conversations that are too many for memory; each turn is sent when all others have had theirs."""
    talks = [Conversation(seed) for seed in range(TALKS)]
    for tokens in PROMPTS:
        for conversation in talks:
            conversation.turn(server, tokens)
    assert_all_is_given_back(server, POOL)
    return talks


def stored_in(server: Server, prompts: Sequence[tuple[int, ...]]) -> int:
    """Tokens of the prompts that came from storage."""
    return sum(ask(server, prompt).stored for prompt in prompts)


@pytest.mark.long
def test_answers_on_what_storage_gave_back_are_those_of_a_server_without_a_cache(
    server: Server, stock_server: Server
) -> None:
    stored = 0
    for conversation in talk(server):
        computed = (len(conversation.history) - 1) // PAGE_SIZE * PAGE_SIZE
        prompt = conversation.ask(50)
        stock_server.flush_cache()
        ours, stock = ask(server, prompt), ask(stock_server, prompt)
        assert (ours.cached, stock.cached) == (computed, 0)
        assert ours.output == stock.output
        assert ours.log_probabilities == pytest.approx(stock.log_probabilities, abs=1e-4)
        stored += ours.stored
    assert stored > 0
    metrics = server.get_metrics()
    for name in ("tlru_splits", "prefetched_tokens"):
        assert metrics[f"sglang:{name}_total"] > 0, name
    dropped = metrics.get("sglang:tlru_host_dropped_tokens_total", 0)
    assert (dropped > 0) == ("buffer_only" not in server.flags)
    assert_all_is_given_back(server, POOL)


@pytest.mark.long
def test_storage_is_detached_and_attached_while_the_server_runs(server: Server) -> None:
    talks = talk(server)
    for config, found in ((None, False), (CONFIG, True)):
        flush(server)
        attach(server, config)
        assert (stored_in(server, [conversation.ask(50) for conversation in talks[:3]]) > 0) == found
    assert_all_is_given_back(server, POOL)


@pytest.mark.long
def test_clients_that_leave_while_storage_is_read_take_nothing_with_them(server: Server) -> None:
    prompts = [conversation.ask(50) for conversation in talk(server)]
    flush(server)
    with ThreadPoolExecutor(TALKS) as clients:
        answers = [clients.submit(leave, server, prompt, number) for number, prompt in enumerate(prompts)]
        assert all(answer.result() for answer in answers)
    assert_all_is_given_back(server, POOL)
    flush(server)
    assert stored_in(server, prompts) > 0
    assert_all_is_given_back(server, POOL)


def leave(server: Server, prompt: tuple[int, ...], number: int) -> bool:
    """Ask, and be gone a little later, each client at another moment; whether it went before the answer came."""
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 1_000, "ignore_eos": True}}
    try:
        requests.post(f"{server.base_url}/generate", json=body, timeout=(30, 0.01 * (number + 1)))
    except requests.ReadTimeout:
        return True
    return False


@pytest.mark.long
@pytest.mark.parametrize("asked", [64, 150])
def test_two_ranks_with_storage_evict_the_same_at_every_step(tmp_path: Path, asked: int) -> None:
    """Each rank reads files of its own, and each file takes as long as it takes."""
    given = [
        *("--tp", "2", *cpu_flags(small_model(), POOL, PAGE_SIZE), *tiers("write_through")),
        *("--radix-eviction", "etlru", *OURS),
    ]
    apart = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.05"}  # s at most, drawn by each rank for itself
    with Server(given, name="test-storage-ranks", environment={**RANKS, **kept_in(tmp_path), **apart}) as server:
        for _ in range(2):  # the second time, what memory has long dropped is read from storage
            results = asyncio.run(replay(server, asked))
            assert {result.error for result in results} == {None}
        first, second = settled(server)
        metrics = server.get_metrics()
    assert first == second
    assert len(first) > asked
    for name in ("tlru_host_dropped_tokens", "prefetched_tokens"):
        assert metrics[f"sglang:{name}_total"] > 0, name
    assert "Found rank divergence" not in server.log_path.read_text(errors="replace")
