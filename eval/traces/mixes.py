"""Two traces in one server: does a verdict hold where loads of two kinds meet, or one follows the other?

=============  =========================================================================================================
mix            when the requests of the two come
=============  =========================================================================================================
``A then B``   the first request of B a minute after the last one of A
``A amid B``   as they were; the first request of A when half of the requests of B have come
``A with B``   from one start to one end: the times of the trace that takes less are stretched
=============  =========================================================================================================

The two have nothing in common: no prefix, no conversation, no session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from eval.traces.request import Path, Request
from eval.traces.trace import Trace, in_order
from eval.traces.variants import at_other_times

SYMMETRIC = "with"
"""The mix that is the same either way round."""

_BETWEEN_S = 60.0
"""From the last request of a trace to the first one of the trace that follows it."""


def mix_of(first: Trace, second: Trace, how: str) -> Trace:
    """The requests of both traces, named ``FIRST then SECOND``.

    Args:
        how: one of MIXES.
    """
    own, other = MIXES[how](_from_0(first.requests), _from_0(second.requests))
    requests = in_order([*_named(own, "1"), *_named(_apart(other, own), "2")])
    return Trace(f"{first.name} {how} {second.name}", "mix", requests)


def parts_of(name: str) -> list[str]:
    """The names of the two traces of a mix, and between them how they are mixed; of another trace its own name."""
    return re.split(f" ({'|'.join(MIXES)}) ", name)


def _from_0(requests: Sequence[Request]) -> list[Request]:
    """All requests, the first one at 0 s: generated ones may begin later."""
    return at_other_times(requests, later_s=-requests[0].arrival_s)


def _then(first: Sequence[Request], second: Sequence[Request]) -> tuple[Sequence[Request], Sequence[Request]]:
    return first, at_other_times(second, later_s=first[-1].arrival_s + _BETWEEN_S)


def _amid(first: Sequence[Request], second: Sequence[Request]) -> tuple[Sequence[Request], Sequence[Request]]:
    return at_other_times(first, later_s=second[len(second) // 2].arrival_s), second


def _with(first: Sequence[Request], second: Sequence[Request]) -> tuple[Sequence[Request], Sequence[Request]]:
    lasts = [requests[-1].arrival_s for requests in (first, second)]
    slower = [max(lasts) / last if last else 1.0 for last in lasts]
    return at_other_times(first, slower=slower[0]), at_other_times(second, slower=slower[1])


def _apart(requests: Sequence[Request], others: Sequence[Request]) -> list[Request]:
    """The requests with units that none of the others has."""
    paths = (path for other in others for path in (other.prompt, other.context))
    above = 1 + max((unit for path in paths for unit in path.ids), default=-1)

    def moved(path: Path) -> Path:
        return Path(tuple(above + unit for unit in path.ids), path.ends)

    return [replace(each, prompt=moved(each.prompt), context=moved(each.context)) for each in requests]


def _named(requests: Sequence[Request], trace: str) -> list[Request]:
    """The requests with names of conversations and sessions that only this trace has."""

    def name(given: str | None) -> str | None:
        return None if given is None else f"{trace} {given}"

    return [
        replace(each, conversation=name(each.conversation), session=name(each.session), parent=name(each.parent))
        for each in requests
    ]


MIXES: dict[str, Callable[[Sequence[Request], Sequence[Request]], tuple[Sequence[Request], Sequence[Request]]]] = {
    "then": _then,
    "amid": _amid,
    SYMMETRIC: _with,
}
"""When the requests of two traces come, each in order of arrival from 0 s on."""
