"""The same requests with shorter contexts, so that sessions of 100,000 tokens can be played on a small machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.traces.request import Path, Request


def shrunk(requests: Sequence[Request], by: int) -> list[Request]:
    """Lengths are divided by ``by``, rounded up; who shares what with whom, times and ends stay.

    What is left of a token joins what follows, so contexts that differ in less than a token become equal. An answer
    that is in its context is as long as it is there, which may be a token less.
    """
    return [_shorter(each, by) for each in requests]


def _shorter(request: Request, by: int) -> Request:
    prompt, context = _path(request.prompt, by), _path(request.context, by)
    tokens = max(len(prompt), _part(request.prompt_tokens, by))
    holds_answer = len(request.context) == request.prompt_tokens + request.output_tokens
    return replace(
        request,
        prompt=prompt,
        context=context,
        prompt_tokens=tokens,
        output_tokens=len(context) - tokens if holds_answer else _part(request.output_tokens, by),
        thought_tokens=_part(request.thought_tokens, by),
    )


def _part(tokens: int, by: int) -> int:
    return -(-tokens // by)


def _path(path: Path, by: int) -> Path:
    """A unit's end is a token of the whole context, so the same units end at the same token everywhere."""
    ids, ends = [], [0]
    for unit, end in zip(path.ids, path.ends, strict=True):
        if (shorter := _part(end, by)) > ends[-1]:
            ids.append(unit)
            ends.append(shorter)
    return Path(tuple(ids), tuple(ends[1:]))
