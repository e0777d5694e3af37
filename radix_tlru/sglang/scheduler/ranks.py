"""After a fault all ranks of a replica evict by lru from the same step on, or the server ends.

Each rank evicts from a tree of its own, and all have to evict the same. A fault that all meet, an error of ours, leaves
all with lru at the same call, and the server goes on. One that a rank meets alone, as it has no memory left, leaves
that rank alone with lru. Ranks that hold different prefixes form batches of different shapes, and a collective of two
shapes fails, or waits for good. So the server ends before that, and says why. An operator sees it, and starts it again.

To have the others follow to lru would be kinder, and cannot be done. Until they are told they evict by their policy,
and a rank that failed cannot name their victims. Nor can it tell them: in each step SGLang sends what the first rank of
a replica received to the others, and nothing the other way.

With that the first rank sends that it has fallen back, and the others compare: no collective is added, and no rank
waits. It is sent before a batch is formed, and what is evicted for a batch is looked up for a later one. Not so where a
host tier is loaded from or a request is preempted for the batch, and with ``--scheduler-recv-interval`` above 1: there
a lone fault may be found too late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.managers.io_struct import AbortReq

from radix_tlru.config import FLAGS
from radix_tlru.sglang.hooks import hook

if TYPE_CHECKING:
    from collections.abc import Callable

    from radix_tlru.sglang.cache.component import TailComponent

__all__ = ["HOOKED", "Rank", "install"]

HOOKED = (
    "sglang.srt.managers.scheduler_components.request_receiver.SchedulerRequestReceiver._broadcast_reqs_across_ranks"
)
"""Function of SGLang that is hooked."""

_NO_REQUEST = "radix_tlru fell back"


def install(tail: TailComponent) -> None:
    """Put the hook in place, in a scheduler process, which has one cache; not where a replica has one rank.

    Raises:
        ConfigError: this SGLang does not take it.
    """
    if torch.distributed.get_world_size() == 1:
        return
    without = f"{FLAGS['policy']} {tail.config.policy}: after a fault ranks could evict differently"
    hook(HOOKED, Rank(torch.distributed.get_rank(), tail).share_requests, without, "around")


class FellBack(AbortReq):
    """The first rank of a replica has fallen back to lru.

    An abort, as SGLang sends these along with what was received, through all stages; its ``rid`` is of no request.
    """

    rank: int
    since: tuple[int, int]  # as TailComponent.lru_since
    fault: str


class Rank:
    """One rank of a replica, by its number in the server."""

    def __init__(self, number: int, tail: TailComponent) -> None:
        self._number, self._tail = number, tail
        self._have_agreed = False  # that all have fallen back

    def share_requests(
        self,
        original: Callable[..., list[Any]],
        receiver: Any,
        recv_reqs: list[Any] | None,
        local_reqs: list[Any] | None = None,
    ) -> list[Any]:
        """Around ``_broadcast_reqs_across_ranks``; ``recv_reqs`` is None on all ranks but the first of each stage.

        Raises:
            RuntimeError: a rank has fallen back alone.
        """
        own = None if self._have_agreed else self._fallen_back()
        if own is not None and recv_reqs is not None and self._tail.cache.pp_rank == 0:
            local_reqs = [*(local_reqs or ()), own]
        shared = original(receiver, recv_reqs, local_reqs)
        if own is None and not shared:  # most steps, and each token waits for one
            return shared
        told = next((request for request in shared if isinstance(request, FellBack)), None)
        alone = own or told
        if alone is not None:
            if own is None or told is None or own.since != told.since:
                raise RuntimeError(
                    f"radix_tlru: rank {alone.rank} alone failed {alone.fault} and evicts by lru; ranks that evict "
                    "differently form batches of different shapes, so this server ends"
                )
            self._have_agreed = True
        return shared

    def _fallen_back(self) -> FellBack | None:
        """What this rank says if it is the first."""
        since, fault = self._tail.lru_since, self._tail.breaker.fault
        return None if since is None else FellBack(rid=_NO_REQUEST, rank=self._number, since=since, fault=fault)
