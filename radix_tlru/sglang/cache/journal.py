"""A running digest of every eviction, by which the ranks of one model replica are compared. For debugging.

With ``RADIX_TLRU_JOURNAL=1`` each rank logs a line for each victim. It has the number of victims, the span of the leaf,
how deep it stays, and a digest of all victims so far. Two ranks that ever evicted differently differ from then on.

SGLang's own checker (``SGLANG_ENABLE_RANK_CONSENSUS_CHECKER=1``) compares the same lines among its decisions. A server
whose ranks differ in one ends itself.
"""

from __future__ import annotations

import logging
import os
from hashlib import blake2b
from typing import TYPE_CHECKING

from sglang.srt.utils import rank_consensus_checker

if TYPE_CHECKING:
    from radix_tlru.policy.order import Victim

__all__ = ["JOURNAL_VARIABLE", "Journal"]

JOURNAL_VARIABLE = "RADIX_TLRU_JOURNAL"

logger = logging.getLogger(__name__)


class Journal:
    """Of one rank's cache, from its start. A flush does not restart it."""

    def __init__(self, *, log: bool) -> None:
        self._log = log
        self._count = 0
        self._digest = blake2b(digest_size=8)

    @classmethod
    def if_wanted(cls) -> Journal | None:
        """A journal if anybody would read it, as the environment says."""
        log = os.environ.get(JOURNAL_VARIABLE, "0") not in ("", "0")
        checked = rank_consensus_checker.envs.SGLANG_ENABLE_RANK_CONSENSUS_CHECKER.get()
        return cls(log=log) if log or checked else None

    def record(self, victim: Victim) -> None:
        """One more eviction, before it happens."""
        self._count += 1
        leaf = victim.leaf
        self._digest.update(b"%d %d %d %d;" % (victim.leaf_id, leaf.start, leaf.end, victim.keep))
        line = "eviction %d: [%d, %d) keeps %d, digest %s"
        values = (self._count, leaf.start, leaf.end, victim.keep, self._digest.hexdigest())
        rank_consensus_checker.assert_same(f"radix_tlru {line}", *values)
        if self._log:
            logger.info(f"radix_tlru: {line}", *values)
