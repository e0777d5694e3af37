"""One streamed request to SGLang's `/generate`, with the clock at the client."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import aiohttp


@dataclass(frozen=True, slots=True)
class Request:
    conversation: int
    turn: int  # 0 for the first
    input_ids: tuple[int, ...]  # the whole prompt, history included
    output_tokens: int  # exact length of the answer: the end-of-sequence token is ignored


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What one request met. With `error` set, the figures are what was known when it failed."""

    conversation: int
    turn: int
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that were resident, as the server reports them
    ttft_ms: float | None  # from sending the request to its first streamed token; None: no token came
    e2e_ms: float  # from sending the request to the end of its stream
    output_ids: tuple[int, ...]
    error: str | None = None

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that had to be prefilled."""
        return self.prompt_tokens - self.cached_tokens


class _RefusedError(Exception):
    """The server answered, but with an error."""


async def generate(session: aiohttp.ClientSession, base_url: str, request: Request) -> RequestResult:
    """Send `request` and follow its stream to the end. Raises nothing: failures are results with `error` set."""
    body = {
        "input_ids": request.input_ids,
        "stream": True,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": request.output_tokens, "ignore_eos": True},
    }
    last: dict[str, Any] = {}
    ttft_ms: float | None = None
    error: str | None = None
    sent = time.perf_counter()
    try:
        async with session.post(f"{base_url}/generate", json=body) as response:
            if response.status != 200:
                raise _RefusedError(f"HTTP {response.status}: {(await response.text()).strip()}")
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue  # blank lines between events, and [DONE]
                event = json.loads(line.removeprefix(b"data: "))
                _raise_if_failed(event)
                if ttft_ms is None:
                    ttft_ms = _ms_since(sent)
                last = event
        if len(last.get("output_ids", ())) != request.output_tokens:
            raise _RefusedError(f"{len(last.get('output_ids', ()))} of {request.output_tokens} tokens came")
    except (aiohttp.ClientError, TimeoutError, ValueError, _RefusedError) as failure:
        error = f"{type(failure).__name__}: {failure}".removeprefix("_RefusedError: ")
    return RequestResult(
        conversation=request.conversation,
        turn=request.turn,
        prompt_tokens=len(request.input_ids),
        cached_tokens=last.get("meta_info", {}).get("cached_tokens", 0),
        ttft_ms=ttft_ms,
        e2e_ms=_ms_since(sent),
        output_ids=tuple(last.get("output_ids", ())),
        error=error,
    )


def _raise_if_failed(event: dict[str, Any]) -> None:
    if "error" in event:
        raise _RefusedError(str(event["error"].get("message", event["error"])))
    finish = event["meta_info"].get("finish_reason") or {}
    if finish.get("type") == "abort":
        raise _RefusedError(f"aborted: {finish.get('message', 'no reason given')}")


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000.0
