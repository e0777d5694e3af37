"""What one request lacked, and who had it evicted: kept of the last requests and evictions (``--tlru-explain``).

===========  =====================================================================================================
an eviction  is added up by the conversation that used the leaf last, until its next turn. What it shares with others
             is added up by the prefix, too
a turn       becomes an explanation: what was evicted of its conversation since the turn before. What a shadow cache
             under lru, of all conversations, would have had of its prompt is found later, step by step: room for a
             long context may take that cache thousands of evictions
a question   is answered by the explanation of a request, and is the time for some of these steps
===========  =====================================================================================================

Nothing here is read by a decision. So it may look at the clock, and a fault of it ends nothing but explanations.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_hexdigest

from radix_tlru.config import Config, one_line
from radix_tlru.learning.learner import steps_of_a_slice
from radix_tlru.learning.records import is_known
from radix_tlru.learning.shadow_cache import ShadowCache
from radix_tlru.learning.shared_prefixes import prefixes_of
from radix_tlru.policy.policy import policy_for
from radix_tlru.tools.explanation import Eviction, Explanation

if TYPE_CHECKING:
    from radix_tlru.learning.records import Conversation, Turn
    from radix_tlru.policy.order import Victim
    from radix_tlru.sglang.cache.sessions import Order

__all__ = ["MOST_REQUESTS", "Explainer", "decode_need", "prefill_need"]

MOST_REQUESTS = 4_096
"""Requests that can be explained, the newest: 0.9 kB each."""

_LONGEST_NAME = 128
"""Characters of a request's id, which a client may choose, that are kept of it."""

_MOST_EVICTIONS = 8_192
"""Conversations, and prefixes, whose evictions are known: 0.5 kB each. One that is silent for longer is not."""

logger = logging.getLogger(__name__)


class Explainer:
    """Of one rank's cache.

    Args:
        config: of the pool (:meth:`~radix_tlru.config.Config.for_pool`).
        capacity: of the cache, tokens.
        page_size: tokens.
    """

    def __init__(self, config: Config, capacity: int, page_size: int) -> None:
        lru = policy_for(Config("lru", trim_chunk=config.trim_chunk))
        self._new_shadow = partial(ShadowCache, lru, page_size=page_size)
        self._lru = self._new_shadow(capacity)
        # Turns that lru has not served; None: the cache was emptied then.
        self._unreplayed: deque[tuple[Explanation, Conversation, Turn] | None] = deque()
        self._steps: Generator[None, None, int] | None = None  # what is left of the first of them, if it has begun
        self._recorded = 0  # turns, since the last slice
        self._requests: dict[str, Explanation] = {}  # the oldest first
        self._evictions: dict[int, Eviction] = {}  # by number of the conversation, or -1 - that of the prefix
        self.needed_for: Callable[[], str] | None = None
        """Says what room is made for, while that is known."""
        self._has_failed = False

    def count_eviction(self, victim: Victim, order: Order) -> None:
        """A victim was chosen, and is still in the order."""
        if self._has_failed:
            return
        try:
            self._count_eviction(victim, order)
        except Exception as error:
            self._fail(error)

    def resize(self, room: int) -> None:
        """Running requests leave that many tokens of the cache to others: so they would under lru."""
        self._lru.resize(room)

    def record_turn(self, rid: str, turn: Turn, conversation: Conversation, threshold: int, policy: str) -> None:
        """A request was served, and is a turn of that conversation; ``threshold``, ``policy``: in force until then."""
        if self._has_failed:
            return
        try:
            self._record_turn(rid, turn, conversation, threshold, policy)
        except Exception as error:
            self._fail(error)

    def forget_tree(self) -> None:
        """The cache was emptied after the turns that were recorded until now: so it would have been under lru."""
        self._unreplayed.append(None)

    @property
    def unreplayed(self) -> int:
        """Turns that the shadow cache has not served yet."""
        return len(self._unreplayed)

    def replay(self, *, a_slice: bool = False) -> None:
        """Have the shadow cache serve the turns that wait for it, or do a slice of that: a few steps."""
        steps = math.inf
        if a_slice:
            a_turn = 2  # mostly: as many leaves go as come, 8 of them in a step
            steps = steps_of_a_slice(len(self._unreplayed), a_turn, self._recorded)
        self._recorded = 0
        try:
            while self._unreplayed and steps > 0:
                self._do_step()
                steps -= 1
        except Exception as error:
            self._fail(error)

    def explanation(self, rid: str) -> Explanation | None:
        """Of a request; None: it is not among the last that were served, and cached.

        What lru would have had may not be known yet. Who asks again and again gets it in the end.
        """
        told = self._requests.get(_name_of(rid))
        if told is not None and told.lru_cached is None:
            self.replay(a_slice=True)
        return told

    def _count_eviction(self, victim: Victim, order: Order) -> None:
        leaf, keep = victim.leaf, victim.keep
        conversation: Conversation | None = leaf.conversation
        if conversation is None or not is_known(conversation):
            return
        tokens, now = leaf.end - keep, time.time()
        price = order.price_of(victim)
        needed_for = "another need than a batch" if self.needed_for is None else self.needed_for()
        for key in _keys(conversation) if keep < conversation.common else (conversation.number,):
            known = self._evictions.get(key)
            if known is None:
                self._evictions[key] = Eviction(now, now, 1, tokens, tokens, needed_for, *price)
                if len(self._evictions) > _MOST_EVICTIONS:
                    del self._evictions[next(iter(self._evictions))]
                continue
            known.last_at, known.cuts, known.tokens = now, known.cuts + 1, known.tokens + tokens
            if tokens > known.largest:
                known.largest, known.needed_for = tokens, needed_for
                known.cost, known.return_rate, known.exceed_probability, known.median_weight = price

    def _record_turn(self, rid: str, turn: Turn, conversation: Conversation, threshold: int, policy: str) -> None:
        found = [self._evictions.pop(key, None) for key in _keys(conversation)]
        lacked = turn.prompt_len - turn.cached_len > conversation.new_len
        name = _name_of(rid)
        self._requests.pop(name, None)
        self._requests[name] = told = Explanation(
            name,
            time.time(),
            turn.prompt_len,
            turn.cached_len,
            conversation.new_len,
            threshold,
            policy,
            conversation.wait,
            None,
            next(filter(None, found), None) if lacked else None,
        )
        self._unreplayed.append((told, conversation, turn.without_tokens()))
        self._recorded += 1
        if len(self._requests) > MOST_REQUESTS:
            del self._requests[next(iter(self._requests))]

    def _do_step(self) -> None:
        waiting = self._unreplayed[0]
        if waiting is None:
            self._lru = self._new_shadow(self._lru.capacity)
            self._unreplayed.popleft()
            return
        told, conversation, turn = waiting
        if self._steps is None:
            self._steps = self._lru.serve_in_steps(conversation, turn)
        try:
            next(self._steps)
        except StopIteration as end:
            told.lru_cached = end.value
            self._steps = None
            self._unreplayed.popleft()

    def _fail(self, error: Exception) -> None:
        self._has_failed = True
        self._requests.clear()
        self._unreplayed.clear()
        logger.error("radix_tlru: to explain requests failed; from now on none is explained", exc_info=error)


def _keys(conversation: Conversation) -> Iterator[int]:
    """Under which evictions of what it used are added up: its own, and those of what it shares, 64 prefixes at most."""
    yield conversation.number
    yield from (-1 - prefix.number for prefix in prefixes_of(conversation))


def _name_of(rid: str) -> str:
    """An id as it is kept and shown: in one line, and of a long one its beginning and a hash."""
    if len(rid) > _LONGEST_NAME:
        rid = f"{rid[: _LONGEST_NAME // 2]}… {xxh3_128_hexdigest(rid.encode(errors='surrogatepass'))}"
    return one_line(rid)


def prefill_need(batch: Any) -> Callable[[], str]:
    """What room is made for while SGLang prepares a batch of prefills, in words."""

    def in_words() -> str:
        largest = max(batch.reqs, key=lambda req: int(req.extend_len))
        others = f" and {len(batch.reqs) - 1:,} others" if len(batch.reqs) > 1 else ""
        return f"the prefill of {largest.extend_len:,} tokens of request {_name_of(str(largest.rid))}{others}"

    return in_words


def decode_need(batch: Any) -> Callable[[], str]:
    """What room is made for before a batch decodes, in words."""

    def in_words() -> str:
        count = len(batch.reqs)
        return f"the next token of {count:,} running {'request' if count == 1 else 'requests'}"

    return in_words
