"""The shapes that a server makes of its flags, as many as go together in one: adapters, tenants, priorities, sessions.

And two replicas in one server (`--dp 2`), of which each has a cache of its own.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import unittest
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import requests
import torch
import zmq
from safetensors.torch import save_file
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from sglang.test.kits.streaming_session_kit import StreamingSessionKitMixin
from transformers import AutoConfig, AutoTokenizer

from eval.server import Server, ensure_demo_model, free_port
from radix_tlru.demo_model import VOCABULARY
from tests.conftest import ALL_CHECKS, NEXT_PROMPT, POOL, REAL_WEIGHTS, THRESHOLD, flags
from tests.test_live import ANSWER, CACHED_A, COMPLAINTS, TOO_MANY, A, B, C, assert_all_is_given_back

pytestmark = pytest.mark.live

OURS = ("--radix-eviction", "tlru", "--tlru-threshold", str(THRESHOLD), "--tlru-next-prompt-estimate", str(NEXT_PROMPT))

ADAPTERS = ("one", "two")
CHUNK = 256  # tokens of a prefill
AT_ONCE = 4  # requests


def write_adapter(directory: Path, model: Path, seed: int, rank: int = 4) -> Path:
    """A LoRA adapter of random weights, in peft's format."""
    config = AutoConfig.from_pretrained(model)
    heads = config.num_attention_heads * config.head_dim
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config.num_hidden_layers):
        for projection in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{projection}"
            weights[f"{name}.lora_A.weight"] = torch.randn(rank, config.hidden_size, generator=generator)
            weights[f"{name}.lora_B.weight"] = torch.randn(heads, rank, generator=generator)
    directory.mkdir()
    save_file(weights, directory / "adapter_model.safetensors", {"format": "pt"})
    settings = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "lora_dropout": 0.0}
    settings |= {"bias": "none", "target_modules": ["q_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="module")
def events_port() -> int:
    return free_port()


@pytest.fixture
def subscriber(server: Server, events_port: int) -> Iterator[Subscriber]:
    """One that has heard of an empty cache, and of nothing since."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(f"tcp://127.0.0.1:{events_port}")
        socket.subscribe("kv")
        subscriber = Subscriber(socket)
        subscriber.flush(server)
        yield subscriber


@pytest.fixture(scope="module")
def server(weighted_model: Path, events_port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours with adapters, priorities, streaming sessions, events, mixed batches, and no overlap scheduling."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [f"{name}={write_adapter(folder / name, weighted_model, i)}" for i, name in enumerate(ADAPTERS)]
    events = json.dumps({"publisher": "zmq", "topic": "kv", "endpoint": f"tcp://*:{events_port}"})
    shapes = [
        *("--lora-paths", *paths, "--lora-backend", "torch_native", "--max-loras-per-batch", str(len(ADAPTERS) + 1)),
        *("--enable-priority-scheduling", "--default-priority-value", "0", "--schedule-policy", "fcfs"),
        *("--max-running-requests", str(AT_ONCE)),
        *("--kv-events-config", events),
        "--enable-streaming-session",
        "--enable-mixed-chunk",
        "--disable-overlap-schedule",
    ]
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS, *OURS, *shapes]
    with Server(given, name="test-shapes", environment=ALL_CHECKS) as started:
        yield started
        assert not [complaint for complaint in COMPLAINTS if complaint in started.log_path.read_text(errors="replace")]


@dataclass(frozen=True)
class Answer:
    cached_tokens: int  # of the prompt
    prompt_tokens: int
    output_ids: tuple[int, ...]
    log_probabilities: tuple[float, ...]


def ask(server: Server, prompt: tuple[int, ...], answer: int = ANSWER, **options: Any) -> Answer:
    """One request; ``options`` are of `/generate`, such as an adapter or a salt."""
    sampling = {"temperature": 0.0, "max_new_tokens": answer, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True, **options}
    said = requests.post(f"{server.base_url}/generate", json=body, timeout=120).json()
    about = said["meta_info"]
    assert about["finish_reason"]["type"] == "length", about
    values = tuple(value for value, *_ in about["output_token_logprobs"])
    return Answer(about["cached_tokens"], about["prompt_tokens"], tuple(said["output_ids"]), values)


@dataclass
class Conversation:
    """What was said so far, all of which each turn sends, with the same options."""

    options: dict[str, Any] = field(default_factory=dict)
    history: tuple[int, ...] = ()

    def turn(self, server: Server, prompt: tuple[int, ...], answer: int = ANSWER) -> int:
        """The next turn; returns how many tokens it found cached."""
        answered = ask(server, self.history + prompt, answer, **self.options)
        self.history += prompt + answered.output_ids
        return answered.cached_tokens


def words(seed: int, tokens: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(VOCABULARY) for _ in range(tokens))


def test_adapters_and_tenants_share_nothing_and_are_trimmed_as_one(server: Server) -> None:
    """The conversations of `test_live` in three namespaces, though all begin with the same tokens."""
    server.flush_cache()
    said = words(0, A)
    a = Conversation({"lora_path": "one"})
    b = Conversation({"cache_salt": "tenant"})
    c = Conversation({"lora_path": "two", "cache_salt": "tenant"})
    assert (a.turn(server, said), b.turn(server, said[:B]), c.turn(server, said[:C])) == (0, 0, 0)
    assert a.turn(server, words(1, 100)) == CACHED_A - TOO_MANY


def test_an_adapter_answers_from_what_it_computed_itself(server: Server) -> None:
    prompt = words(2, 600)
    answers = {}
    for adapter in (None, *ADAPTERS):
        server.flush_cache()
        for other in (None, *ADAPTERS):
            if other != adapter:
                ask(server, prompt, lora_path=other)
        fresh, again = (ask(server, prompt, lora_path=adapter) for _ in range(2))
        assert (fresh.cached_tokens, again.cached_tokens) == (0, len(prompt) - 1)
        assert again.log_probabilities == pytest.approx(fresh.log_probabilities, abs=1e-4)
        answers[adapter] = fresh
    base, one, two = (answers[adapter].log_probabilities for adapter in (None, *ADAPTERS))
    assert base != pytest.approx(one, abs=1e-3)
    assert base != pytest.approx(two, abs=1e-3)
    assert one != pytest.approx(two, abs=1e-3)


class Subscriber:
    """Reads the events of a server, and knows from them alone what is resident of any prompt."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(KVEventBatch)
        self._next: int | None = None
        self.flushes = 0
        self._clear()

    def _clear(self) -> None:
        self.blocks: dict[int, tuple[object, int]] = {}  # hash → what it follows, and its token
        self._after: dict[tuple[object, int], int] = {}

    def read(self, patience_ms: int) -> bool:
        """Take in what the server publishes next; False if that is nothing."""
        if not self._socket.poll(patience_ms):
            return False
        _, number, payload = self._socket.recv_multipart()
        sequence = int.from_bytes(number, "big")
        assert self._next in (None, sequence), "a message was lost"
        self._next = sequence + 1
        for event in self._decoder.decode(payload).events:
            self._take(event)
        return True

    def _take(self, event: KVCacheEvent) -> None:
        match event:
            case BlockStored():
                # The first block of a path follows the salt of its namespace.
                before: object = event.cache_salt if event.parent_block_hash is None else event.parent_block_hash
                for block, token in zip(event.block_hashes, event.token_ids, strict=True):
                    assert block not in self.blocks, "stored twice"
                    self.blocks[block] = before, token
                    self._after[before, token] = block
                    before = block
            case BlockRemoved():
                for block in event.block_hashes:
                    del self._after[self.blocks.pop(block)]
            case AllBlocksCleared():
                self._clear()
                self.flushes += 1

    def resident(self, prompt: tuple[int, ...], cache_salt: str | None) -> int:
        """Tokens of a prompt that are cached, as far as the events tell."""
        before: object = cache_salt
        for number, token in enumerate(prompt):
            before = self._after.get((before, token))
            if before is None:
                return number
        return len(prompt)

    def flush(self, server: Server) -> None:
        """Begin with an empty cache, once what the server publishes arrives here."""
        deadline, flushes = time.monotonic() + 60, self.flushes
        while self.flushes == flushes:
            assert time.monotonic() < deadline, "no event arrives"
            server.flush_cache()
            while self.read(1_000):
                pass

    def catch_up(self, server: Server, number: int) -> None:
        """Read all that has been published: events come in order, so those of one more request are the last."""
        marker = words(10_000 + number, 5)
        ask(server, marker, 1)
        while self.resident(marker, None) < len(marker):
            assert self.read(60_000), "the event of a request does not arrive"


def test_a_subscriber_knows_what_every_turn_will_find(server: Server, subscriber: Subscriber) -> None:
    """Some 3 times the pool, of three tenants that begin alike: conversations are trimmed, dropped and come back."""
    rng, salts, found = random.Random(0), (None, "tenant", "other"), []
    conversations = [
        Conversation({"cache_salt": salt}, words(30 + branch, 200)) for branch in range(3) for salt in salts
    ]
    for number in range(32):
        conversation = rng.choice(conversations)
        prompt = words(100 + number, rng.randrange(100, 400))
        subscriber.catch_up(server, number)
        known = subscriber.resident(conversation.history + prompt, conversation.options["cache_salt"])
        found.append(conversation.turn(server, prompt))
        assert found[-1] == known, number
    assert len(set(found)) > 8
    subscriber.catch_up(server, number + 1)
    assert 0 < len(subscriber.blocks) <= POOL
    server.flush_cache()
    while subscriber.blocks:
        assert subscriber.read(60_000)


def test_a_more_urgent_request_takes_the_place_of_another_and_nothing_is_lost(server: Server) -> None:
    """As many as may run are running when it comes; without preemption it would wait until one of them has ended."""
    server.flush_cache()
    ended = asyncio.run(urgent_among_patient(server))
    assert sorted(ended) == [0] * AT_ONCE + [100]
    assert ended[0] == 100
    assert_all_is_given_back(server, POOL)


async def urgent_among_patient(server: Server) -> list[int]:
    """The priorities of the requests, in the order in which they ended."""
    ended: list[int] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def stream(prompt: tuple[int, ...], tokens: int, priority: int, running: asyncio.Event) -> None:
            sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
            body = {"input_ids": prompt, "stream": True, "sampling_params": sampling, "priority": priority}
            output: list[int] = []
            async with session.post(f"{server.base_url}/generate", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        output = json.loads(line.removeprefix(b"data: "))["output_ids"]
                        if len(output) > 3:
                            running.set()
            assert len(output) == tokens
            ended.append(priority)

        signs = [asyncio.Event() for _ in range(AT_ONCE)]
        patient = [
            asyncio.create_task(stream(words(200 + number, 400), 300, 0, sign)) for number, sign in enumerate(signs)
        ]
        await asyncio.gather(*(sign.wait() for sign in signs))
        await stream(words(300, 1_000), 4, 100, asyncio.Event())
        await asyncio.gather(*patient)
    return ended


def test_a_streaming_session_keeps_what_it_holds_whatever_others_want(server: Server) -> None:
    """Its tokens are not in the tree, but for its first prompt, which it locks: nothing of it can be taken."""
    server.flush_cache()
    opened = requests.post(f"{server.base_url}/open_session", json={"capacity_of_str_len": 10_000, "streaming": True})
    session = {"session_params": {"id": opened.json()}}
    turns = [ask(server, words(400, 1_000), **session)]
    for number in range(2):
        for other in range(3):
            ask(server, words(410 + 3 * number + other, 2_000))
        turns.append(ask(server, words(420 + number, 100), **session))
    # A turn finds all before it but the last token of the answer, which nothing was computed upon.
    lengths = [turn.prompt_tokens + ANSWER for turn in turns]
    assert lengths == [1_008, 1_116, 1_224]
    assert [turn.cached_tokens for turn in turns] == [0, lengths[0] - 1, lengths[1] - 1]
    closed = requests.post(f"{server.base_url}/close_session", json={"session_id": session["session_params"]["id"]})
    assert closed.ok
    assert_all_is_given_back(server, POOL)


class TestStreamingSessions(StreamingSessionKitMixin, unittest.TestCase):
    """SGLang's own kit; what it says, this model's tokenizer makes tokens of bytes of."""

    @pytest.fixture(autouse=True)
    def point_at_the_server(self, server: Server) -> None:
        self.server, self.base_url = server, server.base_url
        self.tokenizer = AutoTokenizer.from_pretrained(ensure_demo_model())

    def tearDown(self) -> None:
        assert_all_is_given_back(self.server, POOL)

    test_leak_logprob_concurrent = None
    test_stress_concurrent_sessions = None


def test_a_crowd_of_all_kinds_is_served_and_nothing_is_lost(server: Server) -> None:
    """12 clients at once of 3 turns each, with and without an adapter, a salt and a priority."""
    server.flush_cache()
    before = server.get_metrics()["sglang:tlru_evicted_tokens_total"]
    found = asyncio.run(crowd(server))
    assert len(found) == 36
    assert sum(found) > 0
    assert server.get_metrics()["sglang:tlru_evicted_tokens_total"] > before
    assert_all_is_given_back(server, POOL)


async def crowd(server: Server) -> list[int]:
    async def client(number: int) -> list[int]:
        options = {
            "lora_path": (None, *ADAPTERS)[number % 3],
            "cache_salt": (None, "tenant")[number // 3 % 2],
            "priority": 20 * (number % 4),
        }
        conversation = Conversation(options)
        prompts = [words(500 + number + turn, 200) for turn in range(3)]
        return [await asyncio.to_thread(conversation.turn, server, prompt) for prompt in prompts]

    return [cached for turns in await asyncio.gather(*map(client, range(12))) for cached in turns]


@pytest.fixture(scope="module")
def replicas() -> Iterator[Server]:
    """Two replicas of ours in one server, which serve the longest prefix first."""
    shapes = ("--dp", "2", "--schedule-policy", "lpm")
    given = [*flags(ensure_demo_model(), POOL, 1, A), *OURS, *shapes]
    with Server(given, name="test-replicas", environment=ALL_CHECKS) as started:
        yield started
        assert not [complaint for complaint in COMPLAINTS if complaint in started.log_path.read_text(errors="replace")]


def test_two_replicas_have_a_cache_each(replicas: Server) -> None:
    """A, B and C of `test_live` go to one, where A is trimmed; the other has A alone, and all of it."""
    replicas.flush_cache()
    full, spacious = (Conversation({"routed_dp_rank": rank}) for rank in (0, 1))
    assert (full.turn(replicas, words(0, A)), spacious.turn(replicas, words(0, A))) == (0, 0)
    for number, tokens in enumerate((B, C), 1):
        assert Conversation({"routed_dp_rank": 0}).turn(replicas, words(number, tokens)) == 0
    assert full.turn(replicas, words(3, 100)) == CACHED_A - TOO_MANY
    assert spacious.turn(replicas, words(3, 100)) == CACHED_A
