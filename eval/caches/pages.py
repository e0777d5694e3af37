"""Numbers for the pages of a context, for caches that look up page by page or token by token.

A page is named by the unit that its last token lies in and by its place in the context. Two contexts that are equal up
to the end of a page have equal numbers for it.
"""

from __future__ import annotations

from array import array

from eval.traces.request import Path

_PAGES_PER_PATH = 1 << 24


def page_ids(path: Path, page_size: int, units: dict[int, int]) -> list[int]:
    """One number for each whole page of a context.

    Args:
        page_size: tokens.
        units: numbers of the units met so far; new ones are added. A unit id may have more bits than a token id.
    """
    pages = len(path) // page_size
    ids: list[int] = []
    for unit, end in zip(path.ids, path.ends, strict=True):
        last = min(end // page_size, pages)
        first = units.setdefault(unit, len(units)) * _PAGES_PER_PATH
        ids.extend(range(first + len(ids), first + last))
    return ids


def token_ids(path: Path, page_size: int, units: dict[int, int]) -> array[int]:
    """One number for each token of the whole pages of a context; arguments as for :func:`page_ids`."""
    return array("q", page_ids(path, 1, units)[: len(path) // page_size * page_size])
