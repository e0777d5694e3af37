"""Servers of several ranks: what they are asked, and what each of them says that it evicted."""

from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import replace

import aiohttp

from eval.live.replay.client import Request, RequestResult, close_session, send
from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY

CLIENTS, ANSWER = 8, 4

ENVIRONMENT = {
    "SGLANG_CPU_OMP_THREADS_BIND": "0|1",
    "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
    "RADIX_TLRU_JOURNAL": "1",
}

EVICTION, THRESHOLD = (re.compile(rf"[TP]P(\d)\] radix_tlru: ({what} .*)") for what in (r"eviction \d+:", "threshold"))


def logged(server: Server, line: re.Pattern[str], ranks: str = "01") -> tuple[list[str], ...]:
    """What each rank logged in such lines."""
    found = line.findall(server.log_path.read_text(errors="replace"))
    return tuple([text for of, text in found if of == rank] for rank in ranks)


def journals(server: Server, ranks: str = "01") -> tuple[list[str], ...]:
    """The evictions of each rank, as it logged them."""
    return logged(server, EVICTION, ranks)


def settled(server: Server, ranks: str = "01") -> tuple[list[str], ...]:
    """The journals once the slower ranks have written what the faster ones have; of those that are equal, by pairs.

    Thresholds are written by then, too.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, thresholds = journals(server, ranks), logged(server, THRESHOLD, ranks)
        counts = [(len(evictions), len(moves)) for evictions, moves in zip(found, thresholds, strict=True)]
        if counts[::2] == counts[1::2]:
            return found
        time.sleep(0.1)
    return journals(server, ranks)


async def replay(server: Server, requests: int) -> list[RequestResult]:
    """Conversations of a few clients at once, four turns each, in sessions, of which two in three are closed."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:

        async def client(number: int) -> list[RequestResult]:
            rng, history, results = random.Random(number), (), []
            for turn in range(requests // CLIENTS):
                if turn % 4 == 0:
                    history = ()
                history += tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(20, 300)))
                name = f"{number}, {turn // 4}"
                asked = Request(number, turn, history, ANSWER, session=name)
                results.append(await send(session, server.base_url, asked))
                if results[-1].error is not None:
                    break
                if turn % 4 == 3 and turn // 4 % 3:
                    error = await close_session(session, server.base_url, name)
                    if error is not None:  # of a server that ends, too
                        results[-1] = replace(results[-1], error=error)
                        break
                history += results[-1].output_ids
            return results

        return [result for results in await asyncio.gather(*map(client, range(CLIENTS))) for result in results]
