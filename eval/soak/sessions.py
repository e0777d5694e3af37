"""Which prefixes open sessions refer to, by the dictionary of an audit."""

from __future__ import annotations

from collections.abc import Iterable


class OpenSessions:
    """The resident prefixes that each session refers to. A prefix that was evicted is forgotten."""

    def __init__(self) -> None:
        self._open: dict[str, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    @property
    def referred(self) -> set[int]:
        """Prefixes that any open session refers to."""
        return set[int]().union(*self._open.values())

    def refer(self, session: str, prefixes: Iterable[int]) -> None:
        """A session served a context of these prefixes."""
        self._open.setdefault(session, set()).update(prefixes)

    def close(self, session: str) -> None:
        """A client closes a session, which need not exist."""
        self._open.pop(session, None)

    def keep_only(self, resident: set[int]) -> None:
        """All other prefixes were evicted."""
        for prefixes in self._open.values():
            prefixes &= resident
