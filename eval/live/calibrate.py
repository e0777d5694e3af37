"""α and β of a running SGLang server, from the TTFT of prompts of rising length of which nothing is cached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp
import numpy as np

from eval.live.replay.client import Request, send, session
from eval.simulate.timing import Point, Timing, TimingError, fit

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Uncached tokens. Lengths that the server refuses as too long are left out."""

REPEATS = 5
"""Measurements of each length."""

_VOCABULARY = range(10, 256)  # token ids that every model has; an unknown id would kill the server


def calibrate(url: str, lengths: Sequence[int] = LENGTHS, seed: int = 0) -> Timing:
    """Measure an idle server. Its cache is emptied before every request.

    Raises:
        TimingError: it cannot be reached, refuses fewer than two lengths, or its TTFT does not rise with length.
    """
    url = url.rstrip("/")
    try:
        points, refused = asyncio.run(_measure(url, lengths, np.random.default_rng(seed)))
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise TimingError(f"--calibrate {url}: must be the URL of a server, such as http://127.0.0.1:30000") from None
    except (aiohttp.ClientError, OSError) as error:
        raise TimingError(f"--calibrate {url}: {str(error) or type(error).__name__}") from None
    span = f"{points[0].uncached:,} to {points[-1].uncached:,} tokens"
    return fit(points, f"measured on {url}, {len(points)} requests of {span}{refused}")


class _Measured(NamedTuple):
    points: list[Point]
    refused: str  # the length that was refused, as the end of a sentence; empty: none


async def _measure(url: str, lengths: Sequence[int], rng: np.random.Generator) -> _Measured:
    points: list[Point] = []
    async with session() as connection:
        for length in sorted(lengths):  # a length that is refused as too long is the end of them
            for number in range(-1, REPEATS):  # the first prefill of a length pays for allocations: left out
                await _flush(connection, url)
                ids = tuple(rng.integers(_VOCABULARY.start, _VOCABULARY.stop, length).tolist())
                result = await send(connection, url, Request(0, 0, ids, output_tokens=1))
                if result.error is not None or result.ttft_ms is None:
                    if len({point.uncached for point in points}) < 2:
                        raise TimingError(f"--calibrate {url}: a prompt of {length:,} tokens: {result.error}")
                    return _Measured(points, f"; {length:,} tokens were refused ({result.error})")
                if number >= 0:
                    points.append(Point(result.uncached_tokens, result.ttft_ms))
    return _Measured(points, "")


async def _flush(connection: aiohttp.ClientSession, url: str) -> None:
    async with connection.post(f"{url}/flush_cache", params={"timeout": 30}) as reply:
        if reply.status != 200:
            raise TimingError(
                f"--calibrate {url}: /flush_cache answered {reply.status}: {(await reply.text()).strip()}"
            )
