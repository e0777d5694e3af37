"""One streamed request to SGLang, the clock at the client: `/generate` with tokens, or chat completions with text."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import aiohttp

RETRY_AFTER_S = 0.5
_TRY_AGAIN = (429, 503)  # HTTP: the server is there, but not now


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt as token ids, or as messages of (role, text). If there are messages, they are sent."""

    conversation: int
    turn: int  # 0 for the first
    input_ids: tuple[int, ...]  # the whole prompt, history included
    output_tokens: int  # exact length of the answer: the end-of-sequence token is ignored
    messages: tuple[tuple[str, str], ...] = ()
    session: str | None = None  # name of its session


@dataclass(frozen=True, slots=True)
class RequestResult:
    """What happened to one request. With `error` set, the figures are those at its failure."""

    conversation: int
    turn: int
    prompt_tokens: int
    cached_tokens: int  # prompt tokens that were resident, as the server reports them
    ttft_ms: float | None  # from sending the request to its first streamed token; None: no token came
    e2e_ms: float  # from sending the request to the end of its stream
    output_tokens: int
    itl_ms: tuple[float, ...] = ()  # inter-token latency of each token but those of the first event
    output_ids: tuple[int, ...] = ()
    output_text: str = ""
    retries: int = 0
    error: str | None = None
    is_answered: bool = True  # by a server, if only with an error

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer by the time from sending the request to the end of its stream."""
        return self.output_tokens / self.e2e_ms * 1000.0 if self.e2e_ms else 0.0

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that had to be prefilled."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True)
class _Progress:
    """What has come of an answer so far."""

    ids: tuple[int, ...] = ()
    text: str = ""
    tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    arrivals: list[tuple[float, int]] = field(default_factory=list)  # (ms since sending, tokens so far)

    def arrived(self, sent: float, tokens: int) -> None:
        """So many tokens of the answer have come by now; ``sent``: when the request was sent, s."""
        self.tokens = tokens
        self.arrivals.append((_ms_since(sent), tokens))

    def inter_token_ms(self) -> tuple[float, ...]:
        """Time of each token since the one before; those that arrived at once share it evenly.

        Source: SGLang's ``benchmark/serving.py`` (``adjust_itl``).
        """
        found: list[float] = []
        for (early, less), (late, more) in pairwise(self.arrivals):
            if more > less:
                found += [round((late - early) / (more - less), 3)] * (more - less)
        return tuple(found)


class _RefusedError(Exception):
    """The server answered, but with an error."""


class _TryAgainError(_RefusedError):
    """The server is there, but not now."""


def session(timeout_s: float = 120.0) -> aiohttp.ClientSession:
    """A client for all requests of a run; ``timeout_s``: longest silence within a stream."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None, sock_read=timeout_s),
        # One event of a stream is one line and repeats the whole answer so far: the default limit is too short.
        read_bufsize=2**22,
        # The server closes idle connections, perhaps just as one is used again, and a POST is not sent twice.
        connector=aiohttp.TCPConnector(force_close=True, limit=0),
    )


async def send(session: aiohttp.ClientSession, base_url: str, request: Request, retries: int = 0) -> RequestResult:
    """Send ``request`` and follow its stream to the end. Raises nothing: failures are results with ``error`` set.

    A connection that is refused or lost, or a server that answers 429 or 503, is tried again up to ``retries`` times,
    as long as no token has come. The clock starts with the first try, as it does for a user.
    """
    sent = time.perf_counter()
    for number in range(retries + 1):
        result, again = await _once(session, base_url, request, sent)
        if result.error is None or not again or number == retries:
            break
        await asyncio.sleep(RETRY_AFTER_S)
    return replace(result, retries=number)


async def close_session(session: aiohttp.ClientSession, base_url: str, name: str) -> str | None:
    """Close a session of the server; returns the error if that failed."""
    try:
        async with session.post(f"{base_url}/close_session", json={"session_id": name}) as response:
            return None if response.status == 200 else f"HTTP {response.status}: {(await response.text()).strip()}"
    except (aiohttp.ClientError, TimeoutError) as failure:
        return f"{type(failure).__name__}: {failure}".rstrip(": ")


async def _once(
    session: aiohttp.ClientSession, base_url: str, request: Request, sent: float
) -> tuple[RequestResult, bool]:
    progress = _Progress()
    error, again, is_answered = None, False, True
    try:
        if request.messages:
            await _chat(session, base_url, request, sent, progress)
        else:
            await _generate(session, base_url, request, sent, progress)
        if progress.tokens != request.output_tokens:
            raise _RefusedError(f"{progress.tokens} of {request.output_tokens} tokens came")
    except (aiohttp.ClientError, TimeoutError, ValueError, _RefusedError) as failure:
        error = f"{type(failure).__name__}: {failure}".rstrip(": ")
        error = error.removeprefix("_RefusedError: ").removeprefix("_TryAgainError: ")
        lost = isinstance(failure, aiohttp.ClientConnectionError) and not isinstance(failure, TimeoutError)
        is_answered = bool(progress.arrivals) or isinstance(failure, _RefusedError)
        again = not progress.arrivals and (lost or isinstance(failure, _TryAgainError))
    known = len(request.input_ids) if progress.prompt_tokens is None else progress.prompt_tokens
    return (
        RequestResult(
            conversation=request.conversation,
            turn=request.turn,
            prompt_tokens=known,
            cached_tokens=progress.cached_tokens,
            ttft_ms=progress.arrivals[0][0] if progress.arrivals else None,
            e2e_ms=_ms_since(sent),
            output_tokens=progress.tokens,
            itl_ms=progress.inter_token_ms(),
            output_ids=progress.ids,
            output_text=progress.text,
            error=error,
            is_answered=is_answered,
        ),
        again,
    )


async def _generate(
    session: aiohttp.ClientSession, base_url: str, request: Request, sent: float, progress: _Progress
) -> None:
    body = {
        "input_ids": request.input_ids,
        "stream": True,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": request.output_tokens, "ignore_eos": True},
    }
    if request.session is not None:
        body["session_id"] = request.session
    async for event in _events(session, f"{base_url}/generate", body):
        finish = event["meta_info"].get("finish_reason") or {}
        if finish.get("type") == "abort":
            raise _RefusedError(f"aborted: {finish.get('message', 'no reason given')}")
        progress.ids = tuple(event.get("output_ids", ()))
        progress.text = event.get("text", "")
        progress.cached_tokens = event["meta_info"].get("cached_tokens", 0)
        progress.arrived(sent, len(progress.ids))


async def _chat(
    session: aiohttp.ClientSession, base_url: str, request: Request, sent: float, progress: _Progress
) -> None:
    body = {
        "model": "default",
        "messages": [{"role": role, "content": text} for role, text in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "temperature": 0.0,
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
    }
    if request.session is not None:
        body["session_id"] = request.session
    async for event in _events(session, f"{base_url}/v1/chat/completions", body):
        for choice in event.get("choices", ()):
            if choice.get("finish_reason") == "abort":
                raise _RefusedError("aborted")
            progress.text += choice.get("delta", {}).get("content") or ""
        usage = event.get("usage") or {}
        if usage:
            progress.prompt_tokens = usage["prompt_tokens"]
            details = usage.get("prompt_tokens_details") or {}
            progress.cached_tokens = details.get("cached_tokens") or progress.cached_tokens
            if usage.get("completion_tokens", 0) > progress.tokens:
                progress.arrived(sent, usage["completion_tokens"])


async def _events(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with session.post(url, json=body) as response:
        if response.status != 200:
            kind = _TryAgainError if response.status in _TRY_AGAIN else _RefusedError
            raise kind(f"HTTP {response.status}: {(await response.text()).strip()}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue  # blank lines between events, and [DONE]
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                error = event["error"]
                raise _RefusedError(str(error.get("message", error) if isinstance(error, dict) else error))
            yield event


def _ms_since(start: float) -> float:
    return (time.perf_counter() - start) * 1000.0
