"""What a format is: a reader with a name, a test for its records, and a function that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eval.traces.reading.files import Source
from eval.traces.reading.notes import Notes
from eval.traces.reading.options import Options
from eval.traces.request import Request


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of files and data sets."""

    name: str
    about: str
    """What is in it, and where it comes from; one line for ``eval trace --list``."""

    detects: Callable[[Mapping[str, Any]], bool]
    """Whether a record, one of the first of a file, is of this format."""

    read: Callable[[Source, Options, Notes], Iterator[Request]]
    """The requests of a source, in any order; what was done to the data goes to the notes.

    Raises TraceError where the source cannot be read, or a record of it is bad and bad ones are not skipped.
    """

    texts: bool = True
    """Prompts may be texts, which a tokenizer counts."""

    blocks: bool = False
    """Prompts may be ids of blocks, whose size can be given."""

    in_order: bool = False
    """Records come in order of arrival, or nearly: with a limit, reading stops early."""
