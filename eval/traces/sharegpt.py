"""ShareGPT: conversations that users shared. It has no times; they are stamped by the paper's arrival process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from eval.traces.conversations import Message, Settled, by_arrival, requests, token_count, turns
from eval.traces.options import Options
from eval.traces.records import Skips, decode, records
from eval.traces.request import Request, TraceError
from eval.traces.synthetic import Stamper

__all__ = ["detects", "read"]

# The cleaned release, which nearly all work with ShareGPT reads; its repository holds other files as well.
_DATA_FILES = {"anon8231489123/ShareGPT_Vicuna_unfiltered": "ShareGPT_V3_unfiltered_cleaned_split.json"}

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {"system": "system", "human": "user", "user": "user"}
# All others that the release knows are answers.


class _Message(msgspec.Struct):
    speaker: Literal["human", "user", "gpt", "chatgpt", "assistant", "bing", "bard", "system"] = msgspec.field(
        name="from"
    )
    value: str


class _Row(msgspec.Struct):
    id: str | int
    conversations: list[_Message]


def detects(record: Mapping[str, Any]) -> bool:
    """Whether a record is of this format."""
    return "conversations" in record


def read(source: str, options: Options, skips: Skips) -> Iterator[Request]:
    """Requests in order of arrival; conversations are born in the order of the file."""
    return by_arrival(_conversations(source, options, skips))


def _conversations(source: str, options: Options, skips: Skips) -> Iterator[Settled]:
    count = token_count(options)
    stamper = Stamper(options.arrivals)
    for record in records(source, _DATA_FILES.get(source)):
        try:
            row = decode(record, _Row)
        except TraceError as error:
            skips.bad(error)
            continue
        taken = turns(Message(_ROLES.get(each.speaker, "assistant"), each.value) for each in row.conversations)
        if not taken:
            skips.left_out(f"{record.where}: conversations: no message of a user")
            continue
        stamped = stamper.stamp(len(taken))
        made = requests(str(row.id), taken, stamped.times_s, count, stamped.return_rate, texts=options.texts)
        yield Settled(made[0].arrival_s, made)
