"""How many examples Hypothesis looks at: in `make test` fewer than in `make test-all`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["examples"]

_USUAL = 100  # of Hypothesis, where a test names no number


def examples(most: int) -> int:
    """So many (or seeds, or steps), or as large a part of them as the profile in force has of the usual number."""
    return most * settings.default.max_examples // _USUAL  # type: ignore[union-attr]
