"""Calls of one function side by side in processes, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import joblib

from eval.terminal import track

_Result = TypeVar("_Result")


def in_parallel(
    function: Callable[..., _Result], calls: Sequence[tuple[Any, ...]], *, jobs: int, title: str, ordered: bool = True
) -> Iterator[_Result]:
    """The results of ``function(*call)`` for each call, as they are done.

    Args:
        jobs: processes; 1: this process.
        title: of the progress.
        ordered: in the order of the calls; else whichever is done first.
    """
    work = (joblib.delayed(function)(*call) for call in calls)
    if jobs == 1 or len(calls) < 2:
        results = (function(*call) for call in calls)
    else:
        results = joblib.Parallel(n_jobs=jobs, return_as="generator" if ordered else "generator_unordered")(work)
    yield from track(results, title, len(calls))
