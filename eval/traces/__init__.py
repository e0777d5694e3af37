"""Traces of any format as one stream of requests: read from files and hub data sets, or generated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from eval.traces import agents, chat_mix, figure1, mooncake, sharegpt, synthetic, wildchat
from eval.traces.options import Options
from eval.traces.records import Skips, decode, records
from eval.traces.request import Request, TraceError
from eval.traces.synthetic import Arrivals, Synthetic

__all__ = [
    "FORMATS",
    "GENERATORS",
    "READERS",
    "SOURCES",
    "Arrivals",
    "Reader",
    "Request",
    "Trace",
    "TraceError",
    "open_trace",
]


class Reader(Protocol):
    """A format of files and data sets; a module is one."""

    def detects(self, record: Mapping[str, Any]) -> bool:
        """Whether a record, the first of a file, is of this format."""

    def read(self, source: str, options: Options, skips: Skips) -> Iterator[Request]:
        """The requests of a file or data set in order of arrival; what is left out goes to ``skips``.

        Raises:
            TraceError: the source cannot be read, or a record of it is bad and bad ones are not skipped.
        """


READERS: dict[str, Reader] = {"mooncake": mooncake, "wildchat": wildchat, "sharegpt": sharegpt}
"""By format."""

GENERATORS: dict[str, Callable[[str], Iterator[Request]]] = {
    "synthetic": lambda parameters: synthetic.generate(synthetic.parse(Synthetic, parameters)),
    "chat-mix": lambda parameters: chat_mix.generate(synthetic.parse(chat_mix.ChatMix, parameters)),
    "agents": lambda parameters: agents.generate(synthetic.parse(agents.Agents, parameters)),
    "figure1": figure1.generate,
}
"""By name, which may be followed by a colon and parameters."""

FORMATS = (*READERS, *GENERATORS)

SOURCES = (
    "a file (Mooncake JSONL; WildChat or ShareGPT as JSON, JSONL or Parquet) or a name: allenai/WildChat-1M, "
    f"or what is generated: {', '.join(GENERATORS)}; all but figure1 take parameters (agents:runs=500,seed=1)"
)
"""What can be named where a trace is wanted, for the help of a flag."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace as read."""

    name: str
    format: str
    requests: list[Request]  # in order of arrival
    skipped: int = 0  # records that gave no request: bad ones, and sound ones without any
    skip_reasons: tuple[str, ...] = ()  # of the first few of them, a line each


def open_trace(
    source: str,
    *,
    format: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    block_size: int = 512,
    tokenizer: str | None = None,
    characters_per_token: float = 4.0,
    arrivals: Arrivals | None = None,
    texts: bool = False,
) -> Trace:
    """Read or generate a trace.

    Args:
        source: a file (JSONL, JSON or Parquet), the name of a data set on the Hugging Face hub, ``figure1``, or
            ``synthetic``, ``chat-mix`` or ``agents``, which take parameters: ``synthetic:conversations=500,seed=3``.
        format: one of FORMATS; by default it is told from the first record of a file, or from the name.
        limit: of requests: only the first to arrive.
        skip_bad: count bad records instead of stopping at the first.
        block_size: tokens of a block of a block trace.
        tokenizer: name or path of a Hugging Face tokenizer that counts tokens; by default texts are measured.
        characters_per_token: of texts that are measured.
        arrivals: when turns arrive, for data sets that do not tell.
        texts: keep the messages that each turn adds, where the trace has them.

    Raises:
        TraceError: one line that says what cannot be read, where and why, or which argument is out of range.
    """
    options = Options(limit, block_size, tokenizer, characters_per_token, arrivals or Arrivals(), texts)
    skips = Skips(skip_bad)
    if format is not None and format not in FORMATS:
        raise TraceError(f"format {format}: not one of {', '.join(FORMATS)}")
    head, _, parameters = source.partition(":")
    if head in GENERATORS and not Path(source).exists():
        name, kind, stream = source, head, GENERATORS[head](parameters)
    elif format in GENERATORS:
        raise TraceError(f"trace {source}: is not made by {format}, whose source is '{format}'")
    else:
        name = Path(source).stem if Path(source).exists() else source
        kind = format or _detect(source)
        stream = READERS[kind].read(source, options, skips)
    requests = list(itertools.islice(stream, limit))
    if not requests:
        reasons = f": {skips.reasons[0]}" if skips.reasons else ""
        raise TraceError(f"trace {source}: holds no request, {skips.count} records skipped{reasons}")
    return Trace(name, kind, requests, skips.count, tuple(skips.reasons))


def _detect(source: str) -> str:
    """The format of a file by its first record that is one, and of a data set by its name."""
    if not Path(source).exists():
        for name in READERS:
            if name in source.lower():
                return name
    first_error: TraceError | None = None
    for record in records(source):
        try:
            fields = decode(record, dict[str, Any])
        except TraceError as error:
            first_error = first_error or error
            continue
        for name, reader in READERS.items():
            if reader.detects(fields):
                return name
        raise TraceError(f"{record.where}: of no known format ({', '.join(READERS)}): {', '.join(fields)[:200]}")
    raise first_error or TraceError(f"trace {source}: empty")
