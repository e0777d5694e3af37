"""What the doctor found, as data: a check is one line of its report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Section", "State"]

State = Literal["info", "ok", "refused", "failed"]
"""``info``: worth knowing. ``refused``: SGLang or we decline it, as we may. ``failed``: with this nothing works."""

_MARKS: dict[State, str] = {"info": "", "ok": "ok", "refused": "no", "failed": "FAIL"}


@dataclass(frozen=True)
class Check:
    """One thing looked at, and what was found."""

    name: str
    result: str
    state: State = "info"


@dataclass(frozen=True)
class Section:
    """Checks under one heading."""

    title: str
    checks: tuple[Check, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing failed."""
        return all(check.state != "failed" for check in self.checks)

    def __str__(self) -> str:
        mark = max(map(len, _MARKS.values()))
        name = max(len(check.name) for check in self.checks)
        lines = (f"  {_MARKS[check.state]:{mark}}  {check.name:{name}}  {check.result}" for check in self.checks)
        return "\n".join([self.title, *lines])
