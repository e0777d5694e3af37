"""A radix cache without KV: a tree of contexts under the server's own ``EvictionOrder``.

It behaves as SGLang's cache does. Only whole pages are cached. The path of the request that is being served cannot be
evicted. Only leaves give up tokens, from their tails. Time is logical: the number of the request. A context is a few
units and not thousands of tokens, so it costs no more to serve a long one (``eval bench --only simulator``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from eval.caches.context_tree import ContextTree, Node
from eval.traces.request import Path, Request
from radix_tlru import EvictionOrder, Leaf, Policy
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.records import Turn


class Span(NamedTuple):
    """What a policy is told of a part of a context, which begins where the span before ends."""

    end: int  # tokens from the start of the context
    known: Any  # becomes ``Leaf.conversation``


Knowledge = Callable[[int], Sequence[Span]]
"""From the number of a request, from 0, to what is known of its context after it has been served, span by span."""


class Cache(Protocol):
    """Anything that serves requests one after the other."""

    def request(self, request: Request) -> int:
        """Serve a request; returns the tokens of its prompt that were cached."""


def simulate(cache: Cache, requests: Iterable[Request]) -> list[int]:
    """Cached tokens of each request in turn."""
    return [cache.request(request) for request in requests]


def known_prefix(names: Sequence[int], known: Container[int]) -> int:
    """How many of the names are known before the first that is not."""
    return next((index for index, name in enumerate(names) if name not in known), len(names))


class Hold(NamedTuple):
    """What a running request keeps of a cache."""

    deepest: Any  # node of the tree, with all above it


class SimulatedCache:
    """What a server's cache would hold under a policy.

    Args:
        policy: a policy, or a learner that changes its policy while it serves.
        capacity: tokens of the pool, rounded down to pages.
        page_size: tokens.
        knowledge: what the policy is told of each context beyond recency and history. Oracles are told the future.
        forced: every context is cached as it is served, as SGLang does. If false, a context may be trimmed as soon as
            it has been served (the paper's optional caching).
    """

    def __init__(
        self,
        policy: Policy | Learner,
        capacity: int,
        page_size: int = 1,
        *,
        knowledge: Knowledge | None = None,
        forced: bool = True,
    ) -> None:
        self.capacity, self.page_size, self.forced = capacity // page_size * page_size, page_size, forced
        self.resident = 0
        self.evicted: Counter[str] = Counter()  # tokens by phase
        self.learner = policy if isinstance(policy, Learner) else None
        """Says by which policy to evict; None: it is always the same."""
        self.order = EvictionOrder(policy.policy if isinstance(policy, Learner) else policy, page_size, self._leaf_of)
        self._knowledge = knowledge
        self._tree = ContextTree(page_size)
        self._in_use = self._tree.root  # deepest node of the path that is being served
        self._leaves: dict[int, Node] = {}
        self._last_id = 0
        self._served = self._touched = 0
        self.held = 0  # tokens that running requests hold

    def request(self, request: Request) -> int:
        """Serve one request; returns the tokens of its prompt that were cached."""
        path = self._tree.match(request.context)
        deepest = path[-1]
        cached = min(deepest.end, self._tree.whole_pages(len(request.prompt)))
        end = min(self._tree.whole_pages(len(request.context)), self.capacity)
        deepest = self._extend(path, request.context, end)
        # The history L is the whole context, even if the pool is too small for it.
        deepest.history = max(deepest.history, self._tree.whole_pages(len(request.context)))
        self._served += 1
        self._touched = 0
        for node in path:
            node.last_access = self._served
        if self._knowledge is not None:
            self._write_known(path, self._knowledge(self._served - 1))
        if end and self.learner is not None:  # as in a server, only turns that are in the tree
            self._tell(self.learner, request, path, cached)
        self._offer_if_free(deepest)
        if end:
            if self.learner is not None:
                self.learner.learn()
                if self.learner.policy is not self.order.policy:
                    self.order.switch_policy(self.learner.policy)
            self.order.renew_prices()
        if not self.forced:
            self._make_room(0)
        return cached

    def fits(self, request: Request) -> bool:
        """Whether the context of a request fits beside what is held."""
        end = min(self._tree.whole_pages(len(request.context)), self.capacity)
        node, shared = self._tree.deepest(request.context), 0
        while node.parent is not None:
            shared += node.end - node.start if node.holders else 0
            node = node.parent
        return self.held + end - shared <= self.capacity

    def hold(self, request: Request) -> Hold:
        """Keep what is cached of a context that was just served until it is released: it cannot be evicted."""
        deepest = self._tree.deepest(request.context)
        if deepest.leaf_id:
            self._withdraw(deepest)
        node = deepest
        while node.parent is not None:
            self.held += 0 if node.holders else node.end - node.start
            node.holders += 1
            node = node.parent
        return Hold(deepest)

    def release(self, held: Hold) -> None:
        """Give back what a request held."""
        node = held.deepest
        while node.parent is not None:
            node.holders -= 1
            self.held -= 0 if node.holders else node.end - node.start
            node = node.parent
        self._offer_if_free(held.deepest)

    def touch(self, request: Request) -> None:
        """Mark what is cached of a waiting request's prompt as used. SGLang does so while other requests prefill."""
        node = self._tree.deepest(request.prompt)
        if node is self._tree.root:
            return
        self._touched += 1
        node.last_access = max(node.last_access, self._served + self._touched / (self._touched + 1))
        if self.learner is not None and node.conversation is not None and not node.children:
            self.learner.mark_queued(node.conversation)

    def prefill(self, context: Path) -> int:
        """Cache a context that no request asks for, and learn nothing of it; returns the tokens that were prefilled."""
        self._served += 1
        return self._fill(context, len(context), self._served, None)

    def load_back(self, context: Path, end: int, last_access: float, known: Any) -> int:
        """Cache the first ``end`` tokens of a context as a host tier gives them back, which is no use of them.

        Args:
            last_access: the last use.
            known: what :meth:`known_of` had said then.

        Returns:
            the tokens that were not there.
        """
        return self._fill(context, end, last_access, known)

    def held_of(self, context: Path) -> int:
        """Tokens of a context that are cached, in whole nodes."""
        return self._tree.deepest(context).end

    def known_of(self, context: Path) -> Any:
        """What is known of the last of these: a conversation, or the future; None: nothing is cached."""
        node = self._tree.deepest(context)
        return None if node is self._tree.root else node.conversation

    def _fill(self, context: Path, end: int, last_access: float, known: Any) -> int:
        path = self._tree.match(context)
        found = path[-1].end
        end = min(self._tree.whole_pages(end), self.capacity)
        deepest = self._extend(path, context, end)
        if known is not None and end > found:
            deepest.conversation = known
        deepest.history = max(deepest.history, end)
        for node in path:
            node.last_access = max(node.last_access, last_access)
        self._offer_if_free(deepest)
        return max(end - found, 0)

    def drop(self, context: Path, keep: int) -> None:
        """Give up the last node of what is cached of a context, down to ``keep`` tokens, if nothing continues it."""
        leaf = self._tree.deepest(context)
        keep = self._tree.whole_pages(keep)
        if leaf.leaf_id and keep < leaf.end:
            self._withdraw(leaf)
            self._cut(leaf, max(keep, leaf.start))

    # ---- the tree ----

    def _extend(self, path: list[Node], context: Path, end: int) -> Node:
        """Have the first ``end`` tokens of a context cached behind its path; returns the last node, in no order."""
        deepest = path[-1]
        if deepest.leaf_id:
            self._withdraw(deepest)
        if self.forced:
            self._in_use = deepest
            self._make_room(max(end - deepest.end, 0))
            self._in_use = self._tree.root
        if end > deepest.end:
            self.resident += end - deepest.end
            deepest = self._tree.append(deepest, context, end)
            path.append(deepest)
        return deepest

    def _write_known(self, path: list[Node], spans: Sequence[Span]) -> None:
        """Write what is known onto the nodes of a path, splitting nodes where it changes."""
        position = 0
        for node in path[1:]:
            while position < len(spans) - 1 and spans[position].end < node.end:
                cut = self._tree.whole_pages(spans[position].end)
                if node.start < cut:
                    self._tree.split(node, cut).conversation = spans[position].known
                position += 1
            node.conversation = spans[position].known if spans else None

    def _tell(self, learner: Learner, request: Request, path: list[Node], cached: int) -> None:
        """Tell the learner of a turn, and write what it returns onto the nodes of the path."""
        ids, unit_at = request.context.ids, request.context.unit_at
        turn = Turn(
            request.arrival_s,
            request.prompt_tokens,
            request.output_tokens,
            self._tree.whole_pages(len(request.context)),
            cached,
            lambda start, end, above: ids[unit_at(end - 1)],
            thought_len=request.thought_tokens,
            session=request.session,
            finish=request.stop,
            answer_ids=request.ending,
        )
        is_leaf = not path[-1].children
        conversation = learner.record_turn(turn, is_leaf, self.held, learns_later=True)
        for node in path:
            node.conversation = conversation

    # ---- the order ----

    def _leaf_of(self, leaf_id: int) -> Leaf | None:
        node = self._leaves.get(leaf_id)
        return None if node is None else node.as_leaf()

    def _offer(self, node: Node) -> None:
        """Give a node to the order as an evictable leaf."""
        self._last_id += 1
        node.leaf_id = self._last_id
        self._leaves[node.leaf_id] = node
        self.order.add_leaf(node.leaf_id)

    def _offer_if_free(self, node: Node) -> None:
        """Offer a node if it is a leaf that no request holds."""
        if not (node.children or node.holders or node.leaf_id or node is self._tree.root):
            self._offer(node)

    def _withdraw(self, node: Node) -> None:
        """Take a leaf out of the order."""
        self.order.remove_leaf(node.leaf_id)
        del self._leaves[node.leaf_id]
        node.leaf_id = 0

    def _make_room(self, tokens: int) -> None:
        """Evict until ``tokens`` more fit and a trim chunk is gone, or nothing is left that may go."""
        missing = self.resident + tokens - self.capacity
        if missing <= 0:
            return
        aim = self.resident - max(missing, self.order.policy.trim_chunk)
        while self.resident > aim:
            victim = self.order.choose_victim(self.resident - aim)
            if victim is None:
                return
            node = self._leaves[victim.leaf_id]
            self._withdraw(node)
            self.evicted[victim.phase] += node.end - victim.keep
            self._cut(node, victim.keep)

    def _cut(self, node: Node, keep: int) -> None:
        """Free what a node that is in no order has beyond ``keep`` tokens of its context, or all of it."""
        self.resident -= node.end - keep
        if keep > node.start:
            node.end = keep
            self._offer(node)
            return
        parent = self._tree.remove(node)
        parent.history = max(parent.history, node.history)
        if node.last_access > parent.last_access:  # a waiting request looked it up, as the last node that is cached
            parent.last_access = node.last_access
            if self.learner is not None:
                parent.conversation = node.conversation
        if parent is not self._in_use:
            self._offer_if_free(parent)
