"""Plays conversations against one server, in the order in which their turns are due."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import aiohttp

from eval.client import Request, RequestResult, generate
from eval.server import Server
from eval.workload import Conversation

# Lengths of the warm-up prompts, in tokens: the first prefill of a size pays for allocations that later ones reuse.
WARM_UP_TOKENS = (1, 64, 512, 2048, 64, 512, 2048)


class ReplayError(RuntimeError):
    """The server could not even be warmed up."""


def replay(
    server: Server,
    workload: Sequence[Conversation],
    *,
    concurrency: int,
    on_result: Callable[[RequestResult], None] = lambda _: None,
) -> list[RequestResult]:
    """Warm up, empty the cache, then play `workload` in real time.

    Requests are sent in the order in which they are due, never early, and each after the answer to the turn before it.
    When a request has to wait, for that answer or because `concurrency` others are in flight, the clock of the workload
    stands still: a slow machine sees the same order as a fast one, and order is what a cache depends on. The waiting is
    done before the clock of the request starts, so TTFT measures prefill and not a queue.

    After a failed turn the rest of its conversation cannot be sent, for its history is unknown; those turns are
    reported as failed too.

    Returns:
        one result for each turn of the workload, in the order in which they were due.
    """
    asyncio.run(_warm_up(server.base_url))
    server.flush_cache()
    return asyncio.run(_play(server.base_url, workload, concurrency, on_result))


async def _warm_up(base_url: str) -> None:
    async with _session() as session:
        for tokens in WARM_UP_TOKENS:
            result = await generate(session, base_url, Request(-1, 0, (0,) * tokens, 8))
            if result.error is not None:
                raise ReplayError(f"warm-up with {tokens} tokens failed: {result.error}")


async def _play(
    base_url: str, workload: Sequence[Conversation], concurrency: int, on_result: Callable[[RequestResult], None]
) -> list[RequestResult]:
    slots = asyncio.Semaphore(concurrency)
    clock = asyncio.get_running_loop().time
    histories: dict[int, tuple[int, ...]] = {}  # by conversation: all tokens up to the answer that came last
    latest: dict[int, asyncio.Task[RequestResult]] = {}  # by conversation
    tasks: list[asyncio.Task[RequestResult]] = []

    async with _session() as session:

        async def send(request: Request) -> RequestResult:
            try:
                return await generate(session, base_url, request)
            finally:
                slots.release()

        async def report(request: Awaitable[RequestResult]) -> RequestResult:
            result = await request
            on_result(result)
            return result

        start = clock()
        for due_s, conversation, number in _in_order(workload):
            turn, index = conversation.turns[number], conversation.index
            await asyncio.sleep(start + due_s - clock())
            answer = await latest[index] if number > 0 else None
            if answer is not None and answer.error is not None:
                request = _not_sent(index, number)
            else:
                history = histories.get(index, ()) + (answer.output_ids if answer is not None else ())
                histories[index] = history + turn.new_ids
                await slots.acquire()
                request = send(Request(index, number, histories[index], turn.output_tokens))
            start = max(start, clock() - due_s)
            latest[index] = asyncio.create_task(report(request))
            tasks.append(latest[index])
        return list(await asyncio.gather(*tasks))


def _in_order(workload: Sequence[Conversation]) -> list[tuple[float, Conversation, int]]:
    """(when it is due in seconds, its conversation, its number) of every turn; ties by conversation."""
    turns = [
        (due_s, conversation, number) for conversation in workload for number, due_s in enumerate(conversation.times())
    ]
    return sorted(turns, key=lambda turn: (turn[0], turn[1].index, turn[2]))


async def _not_sent(conversation: int, turn: int) -> RequestResult:
    error = "not sent: an earlier turn of the conversation failed"
    return RequestResult(conversation, turn, 0, 0, None, 0.0, (), error)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_read=120),
        # One event of a stream is one line and repeats the whole answer so far: the default limit is too short.
        read_bufsize=2**22,
        # The server closes idle connections, perhaps just as one is used again, and a POST is not sent twice.
        connector=aiohttp.TCPConnector(force_close=True),
    )
