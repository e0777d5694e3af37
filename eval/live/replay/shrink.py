"""The same requests with shorter contexts, so that sessions of 100,000 tokens can be played on a small machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eval.traces.request import Path, Request


def shrunk(requests: Sequence[Request], by: int) -> list[Request]:
    """Lengths are divided by ``by``, rounded up; who shares what with whom, times and ends stay.

    What is left of a token joins what follows, so contexts that differ in less than a token become equal.
    """
    return [
        replace(
            each,
            prompt=(prompt := _path(each.prompt, by)),
            context=_path(each.context, by),
            prompt_tokens=max(len(prompt), _part(each.prompt_tokens, by)),
            output_tokens=_part(each.output_tokens, by),
            thought_tokens=_part(each.thought_tokens, by),
        )
        for each in requests
    ]


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
