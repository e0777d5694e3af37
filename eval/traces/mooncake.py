"""Mooncake JSONL, the exchange format of KV-cache traces: lengths, and one id for each block of the input.

Only full blocks of the input can be cached. The answer cannot: which tokens it holds is not in the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import msgspec

from eval.traces.options import Options
from eval.traces.records import Count, Record, Skips, decode, records
from eval.traces.request import Path, Request, TraceError

__all__ = ["detects", "read"]


class _Line(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=2**53)]  # ms
    input_length: Count
    output_length: Count
    hash_ids: list[int]  # of all blocks of the input, the last one partly filled


def detects(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this format."""
    return "hash_ids" in record


def read(source: str, options: Options, skips: Skips) -> Iterator[Request]:
    """Requests in the order of the file, which is that of their arrival."""
    last_ms = 0.0
    parents: dict[int, int] = {}  # of each id, the one before it; -1 at the start
    for record in records(source):
        try:
            line = decode(record, _Line)
            request = _request(record, line, options.block_size)
            if line.timestamp < last_ms:
                raise _error(record, "timestamp", f"{line.timestamp:g} ms comes after {last_ms:g} ms")
            parents.update(_new_blocks(record, request.prompt, parents))
        except TraceError as error:
            skips.bad(error)
            continue
        last_ms = line.timestamp
        yield request


def _request(record: Record, line: _Line, block_size: int) -> Request:
    full, blocks = line.input_length // block_size, -(-line.input_length // block_size)
    if not full <= len(line.hash_ids) <= blocks:
        needed = f"{blocks} blocks of {block_size}"
        raise _error(record, "hash_ids", f"{len(line.hash_ids)} ids, but {line.input_length} tokens are {needed}")
    prompt = Path(tuple(line.hash_ids[:full]), range(block_size, block_size * full + 1, block_size))
    return Request(line.timestamp / 1000, None, prompt, prompt, line.input_length, line.output_length)


def _new_blocks(record: Record, prompt: Path, parents: Mapping[int, int]) -> dict[int, int]:
    """Blocks that no line before had, with their parents; each id must stand for the whole prefix it ends."""
    new: dict[int, int] = {}
    parent = -1
    for number, block in enumerate(prompt.ids):
        known = parents.get(block)
        if known is None:
            known = new.setdefault(block, parent)
        if known != parent:
            raise _error(record, f"hash_ids[{number}]", f"id {block} has two different prefixes")
        parent = block
    return new


def _error(record: Record, field: str, reason: str) -> TraceError:
    return TraceError(f"{record.where}: {field}: {reason}")
