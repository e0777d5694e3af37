"""The order of a cache with sessions (``--enable-session-radix-cache``): what no open session refers to goes first.

A request may name its session (``session_id``), and a client closes it when it is done (``POST /close_session``).
SGLang counts for each node the open sessions with a context that ends in it or below. It promises two things. What no
session refers to is evicted before what one does. What a closed session leaves stays until it is the next victim.
Here both parts are evicted by our order, one after the other. Nobody comes back for what a closed session alone had, so
that goes before whatever else no session refers to (``Learner.end_conversation``).

Source: ``unified_cache/session_ref_tracker.py``, ``FullComponent._session_ref_eviction_strategy``. Of two leaves that
are referred to, stock evicts the one with fewer sessions; a leaf of several is a text that they share to its end.
"""

from __future__ import annotations

from collections.abc import Callable

from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, TokenPrice, Victim
from radix_tlru.policy.policy import Policy

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
        self._free = EvictionOrder(policy, page_size, leaf_of)
        self._held = EvictionOrder(policy, page_size, leaf_of)

    def __len__(self) -> int:
        """Evictable leaves."""
        return len(self._free) + len(self._held)

    @property
    def policy(self) -> Policy:
        """The models that price a token."""
        return self._free.policy

    @property
    def over_budget(self) -> int | None:
        """TEL-safe tokens now; what paths share below it counts for each. None: the policy sees no threshold."""
        free, held = self._free.over_budget, self._held.over_budget
        return None if free is None or held is None else free + held

    @property
    def entries(self) -> int:
        """Entries held, old ones included."""
        return self._free.entries + self._held.entries

    def tel_safe_tokens(self, leaf: Leaf) -> int:
        """Tokens of the leaf's path that cost nothing at the tail."""
        return self._free.tel_safe_tokens(leaf)

    def add_leaf(self, leaf_id: int) -> None:
        """A leaf became evictable."""
        if self._is_referred_to(leaf_id):
            self.referred.add(leaf_id)
            self._held.add_leaf(leaf_id)
        else:
            self._free.add_leaf(leaf_id)

    def remove_leaf(self, leaf_id: int) -> None:
        """A leaf that was added will not be evictable any more, or will be in the other part. Call it before that."""
        if leaf_id in self.referred:
            self._held.remove_leaf(leaf_id)
            self.referred.remove(leaf_id)
        else:
            self._free.remove_leaf(leaf_id)

    def switch_policy(self, policy: Policy) -> None:
        """Order the same leaves by ``policy``."""
        self._free.switch_policy(policy)
        self._held.switch_policy(policy)

    def renew_prices(self) -> None:
        """A turn was served: some more leaves may get new prices."""
        self._free.renew_prices()
        self._held.renew_prices()

    def choose_victim(self, tokens: int) -> Victim | None:
        """The leaf to take up to ``tokens`` from; None: no leaves."""
        self._free.advance_clock(self._held.advance_clock(self._free.advance_clock(0.0)))  # time passes for both
        return self._free.choose_victim(tokens) or self._held.choose_victim(tokens)

    def price_of(self, victim: Victim) -> TokenPrice:
        """What a token of the victim that was just chosen costs."""
        return (self._held if victim.leaf_id in self.referred else self._free).price_of(victim)

    @property
    def parts(self) -> tuple[EvictionOrder, EvictionOrder]:
        """The two orders, in the order in which they are evicted."""
        return self._free, self._held


Order = EvictionOrder | SessionOrder
"""What a tier of a cache evicts by."""
