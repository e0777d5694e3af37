"""What tests say to servers: single requests, conversations, and crowds of them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import requests

from eval.live.replay.client import Request, RequestResult, send
from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY

ANSWER = 8  # tokens; the last one is sent off without ever being computed upon, so 7 of them are cached

# Three conversations: A and B fit into the pool, C is 421 tokens too many.
A, B, C = 2_000, 1_500, 900

Fields = dict[str, Any]
"""What a request says beside its tokens."""


@dataclass
class Conversation:
    """Random prompts and the answers to them; a turn sends all that was said so far."""

    seed: int
    history: tuple[int, ...] = ()
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def ask(self, tokens: int) -> tuple[int, ...]:
        self.history += tuple(self._random.randrange(VOCABULARY) for _ in range(tokens))
        return self.history

    def turn(self, server: Server, tokens: int) -> int:
        """The next turn adds a prompt of so many tokens; returns how many it found cached."""

        async def asked() -> RequestResult:
            async with aiohttp.ClientSession() as session:
                return await send(session, server.base_url, Request(self.seed, 0, self.ask(tokens), ANSWER))

        result = asyncio.run(asked())
        assert result.error is None
        self.history += result.output_ids
        return result.cached_tokens


@dataclass(frozen=True)
class Answer:
    cached_tokens: int  # of the prompt
    log_probabilities: list[float]  # of the answer's tokens


def answer_to(server: Server, prompt: tuple[int, ...]) -> Answer:
    sampling = {"temperature": 0.0, "max_new_tokens": ANSWER, "ignore_eos": True}
    body = {"input_ids": prompt, "sampling_params": sampling, "return_logprob": True}
    said = requests.post(f"{server.base_url}/generate", json=body, timeout=60).json()["meta_info"]
    return Answer(said["cached_tokens"], [value for value, *_ in said["output_token_logprobs"]])


def body(tokens: Sequence[int], answer: int = ANSWER, **fields: Any) -> Fields:
    sampling = {"temperature": 0.0, "max_new_tokens": answer, "ignore_eos": True}
    return {"input_ids": list(tokens), "sampling_params": sampling, **fields}


async def ask_all(server: Server, bodies: Sequence[Fields], begun: list[Fields] | None = None) -> list[Any]:
    """The answers to requests that are sent at once, each on a connection of its own.

    With `begun` they are streamed, and each is put there when the first piece of its answer comes.
    """
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:

        async def ask(body: Fields) -> Any:
            async with session.post(f"{server.base_url}/generate", json=body) as reply:
                return await reply.json()

        async def stream(body: Fields, begun: list[Fields]) -> Any:
            async with session.post(f"{server.base_url}/generate", json={**body, "stream": True}) as reply:
                latest = None
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        if latest is None:
                            begun.append(body)
                        latest = json.loads(line.removeprefix(b"data: "))
                return latest

        return await asyncio.gather(*(ask(body) if begun is None else stream(body, begun) for body in bodies))


async def have_begun(begun: list[Fields], count: int, answers: asyncio.Future[Any]) -> None:
    """Waits until so many requests have begun to be answered, or these answers are through."""
    while len(begun) < count and not answers.done():
        await asyncio.sleep(0.001)


def ask(server: Server, bodies: Sequence[Fields]) -> list[Any]:
    """The answers to requests that are sent at once."""
    return asyncio.run(ask_all(server, bodies))


def cached(reply: Any) -> int:
    found: int = reply["meta_info"]["cached_tokens"]
    return found


Told = Callable[[int], list[tuple[int, ...]]]
"""The histories of a crowd of so many, as the fixture `told_by_stock` has them."""

TURNS, CROWD_ANSWER = 3, 24


def crowd(server: Server, named: Sequence[Fields], seed: int = 0) -> list[Conversation]:
    """A conversation for each of them, all at once, in turns of up to 400 tokens; they know all that was said."""
    conversations = [Conversation(1_000 * seed + number) for number in range(len(named))]
    for turn in range(TURNS):
        lengths = random.Random(turn)
        asked = [
            body(one.ask(lengths.randrange(50, 400)), CROWD_ANSWER, **fields)
            for one, fields in zip(conversations, named, strict=True)
        ]
        for one, reply in zip(conversations, ask(server, asked), strict=True):
            assert len(reply["output_ids"]) == CROWD_ANSWER
            one.history += tuple(reply["output_ids"])
    return conversations


def histories(conversations: Sequence[Conversation]) -> list[tuple[int, ...]]:
    return [one.history for one in conversations]
