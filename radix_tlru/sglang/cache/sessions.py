"""The order of a cache with sessions (``--enable-session-radix-cache``): what no open session refers to goes first.

A request may name its session (``session_id``), and a client closes it when it is done (``POST /close_session``).
SGLang counts for each node the open sessions with a context that ends in it or below, and promises two things: what
none refers to is evicted before what one does, and what a closed session leaves is still there until its turn comes.
Here both parts are evicted by our order, one after the other; and of a closed session nobody comes back for what it
alone had, so that goes before whatever else no session refers to (:meth:`~radix_tlru.learning.learner.Learner.ended`).

Source: ``unified_cache/session_ref_tracker.py``, ``FullComponent._session_ref_eviction_strategy``. Of two leaves that
are referred to, stock evicts the one with fewer sessions; a leaf of several is a text that they share to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from radix_tlru.policy.models import Leaf, Policy
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.victims import Upcoming, Victim

__all__ = ["Order", "SessionOrder"]


class SessionOrder:
    """An ``EvictionOrder`` of the leaves that open sessions refer to, behind one of the others.

    Args:
        policy, page_size, leaf_of: as of an :class:`~radix_tlru.policy.order.EvictionOrder`.
        is_referred_to: whether an open session refers to the leaf of that id; must not change while a leaf is here.
    """

    def __init__(
        self,
        policy: Policy,
        page_size: int,
        leaf_of: Callable[[int], Leaf | None],
        is_referred_to: Callable[[int], bool],
    ) -> None:
        self._is_referred_to = is_referred_to
        self.referred: set[int] = set()
        """Ids of the leaves that an open session refers to."""
        # A part may still have a stale entry of a leaf that has gone to the other.
        self._free = EvictionOrder(policy, page_size, lambda each: None if each in self.referred else leaf_of(each))
        self._held = EvictionOrder(policy, page_size, lambda each: leaf_of(each) if each in self.referred else None)

    def __len__(self) -> int:
        """Evictable leaves."""
        return len(self._free) + len(self._held)

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._free.policy

    @property
    def over_budget(self) -> int:
        """Tokens that could go now at no cost to the tail; what paths share below it counts for each of them."""
        return self._free.over_budget + self._held.over_budget

    @property
    def entries(self) -> int:
        """Entries held, stale ones included."""
        return self._free.entries + self._held.entries

    def tel_safe(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail."""
        return self._free.tel_safe(leaf)

    def add(self, leaf_id: int) -> None:
        """A leaf became evictable."""
        if self._is_referred_to(leaf_id):
            self.referred.add(leaf_id)
            self._held.add(leaf_id)
        else:
            self._free.add(leaf_id)

    def discard(self, leaf_id: int) -> None:
        """A leaf that was added will not be evictable any more, or be so in the other part; to be told before that."""
        if leaf_id in self.referred:
            self._held.discard(leaf_id)
            self.referred.remove(leaf_id)
        else:
            self._free.discard(leaf_id)

    def use(self, policy: Policy) -> None:
        """Order the same leaves by ``policy``."""
        self._free.use(policy)
        self._held.use(policy)

    def victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from; None: no leaves."""
        self._free.advance(self._held.advance(self._free.advance(0.0)))  # time passes for both
        return self._free.victim(tokens) or self._held.victim(tokens)

    def upcoming(self, count: int) -> list[Upcoming]:
        """The next ``count`` victims, without a change to anything."""
        found = self._free.upcoming(count)
        return found + self._held.upcoming(count - len(found)) if len(found) < count else found


Order = EvictionOrder | SessionOrder
"""What a tier of a cache evicts by."""
