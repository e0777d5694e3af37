"""A fault of ours must not end a server: after the first, its cache evicts as stock lru does."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["Breaker"]

logger = logging.getLogger(__name__)


class Breaker:
    """Of one cache. Ranks that are shown the same fail alike, and fall back at the same call.

    A fault of one rank alone ends the server instead (:mod:`~radix_tlru.sglang.scheduler.ranks`).

    Args:
        fall_back: leaves the cache with stock lru.
    """

    def __init__(self, fall_back: Callable[[], None]) -> None:
        self._fall_back = fall_back
        self.is_armed = False
        """Whether faults are survived: on a server. Elsewhere, in a test or a study, they are raised."""
        self.fault = ""
        """What failed, once something has."""

    @property
    def has_tripped(self) -> bool:
        """Whether the cache has fallen back."""
        return bool(self.fault)

    def trip(self, doing: str, error: Exception) -> None:
        """Something of ours failed. Says so and falls back, once.

        Raises:
            Exception: ``error``, if faults are not survived, or the cache has fallen back before.
        """
        if not self.is_armed or self.has_tripped:
            raise error
        self.fault = f"{doing} ({error!r})"
        logger.error("radix_tlru: %s failed; from now on this cache evicts by lru, as stock", doing, exc_info=error)
        self._fall_back()

    def survive(self, doing: str, error: Exception, left: str) -> None:
        """What one rank alone does failed, and decides on no eviction. Says what is left; nothing falls back.

        Ranks that fell back alone would evict otherwise than the others.

        Raises:
            Exception: ``error``, if faults are not survived.
        """
        if not self.is_armed:
            raise error
        logger.error("radix_tlru: %s failed; from now on %s", doing, left, exc_info=error)
