"""Single prompts to an idle server: to warm it up, and to see how fast the machine is now."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable, Sequence

import aiohttp

from eval.live.replay.client import Request, send, session
from eval.live.replay.play import ReplayError

WARM_UP_TOKENS = (1, 64, 512, 1024, 2048, 64, 512, 1024, 2048, 2048)
"""Lengths of the warm-up prompts: the first prefill of a length pays for allocations that later ones reuse."""

AT_ONCE, SHORT, LONG = 4, 256, 512
"""Then AT_ONCE prompts of SHORT tokens at once, and again with more behind them, LONG in all. On a GPU the kernels for
batches and for cached prefixes are compiled at their first use, and all requests wait for seconds meanwhile."""

PROBES, PROBE_TOKENS = 8, 1024
"""Prompts of :func:`prefill_alone`, and tokens of each."""


def warm_up(base_url: str, timeout_s: float = 120.0) -> None:
    """Send some prompts of rising length, none of which finds another cached; then some at once, twice.

    Raises:
        ReplayError: the server does not answer one.
    """
    asyncio.run(_alone(base_url, "warm-up", enumerate(WARM_UP_TOKENS), timeout_s))
    first = len(WARM_UP_TOKENS) + PROBES
    for tokens in (SHORT, LONG):
        asyncio.run(_together(base_url, [(first + number, tokens) for number in range(AT_ONCE)], timeout_s))


def prefill_alone(base_url: str, timeout_s: float) -> float:
    """How fast the machine is now: the median TTFT in ms of prompts of ``PROBE_TOKENS``, one after the other.

    None finds another prompt cached, nor one of the warm-up.

    Raises:
        ReplayError: the server does not answer one.
    """
    probes = ((len(WARM_UP_TOKENS) + number, PROBE_TOKENS) for number in range(PROBES))
    return statistics.median(asyncio.run(_alone(base_url, "probe", probes, timeout_s)))


async def _alone(base_url: str, what: str, prompts: Iterable[tuple[int, int]], timeout_s: float) -> list[float]:
    """The TTFT in ms of prompts given as (token, how often it is repeated)."""
    async with session(timeout_s) as connection:
        return [await _ttft(connection, base_url, what, *prompt) for prompt in prompts]


async def _together(base_url: str, prompts: Sequence[tuple[int, int]], timeout_s: float) -> None:
    async with session(timeout_s) as connection:
        await asyncio.gather(*(_ttft(connection, base_url, "warm-up", *prompt) for prompt in prompts))


async def _ttft(connection: aiohttp.ClientSession, base_url: str, what: str, token: int, tokens: int) -> float:
    result = await send(connection, base_url, Request(-1, 0, (token,) * tokens, 8))
    if result.error is not None or result.ttft_ms is None:
        raise ReplayError(f"{what} with {tokens} tokens failed: {result.error}")
    return result.ttft_ms
