"""What a kind of workload is: a name, parameters in a dataclass, and a function that makes its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from eval.traces.parameters import parse
from eval.traces.request import Request, TraceError


@dataclass(frozen=True, slots=True)
class Workload:
    """One kind that is made from parameters and a seed."""

    name: str
    about: str
    """What it is, in one line."""

    parameters: type[Any] | None
    """Their dataclass, with defaults; None: it takes none."""

    generate: Callable[[Any], Iterator[Request]]
    """From parameters to requests in order of arrival; the same for the same parameters."""

    def __call__(self, text: str) -> Iterator[Request]:
        """The requests for parameters as they are written: ``sessions=500,seed=1``.

        Raises:
            TraceError: a parameter is unknown or out of range.
        """
        if self.parameters is None:
            if text:
                raise TraceError(f"{self.name}: {text!r}: takes no parameters")
            return self.generate(None)
        return self.generate(parse(self.parameters, text))

    def defaults(self) -> dict[str, Any]:
        """Every parameter with its default."""
        return {field.name: field.default for field in fields(self.parameters)} if self.parameters else {}
