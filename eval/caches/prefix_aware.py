"""SGLang's own router: requests go where a prefix like theirs went before, while load is balanced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from eval.traces.request import Path, Request


@dataclass(frozen=True, slots=True)
class CacheAware:
    """Settings of SGLang's router, with the defaults of ``python -m sglang_router.launch_router``."""

    cache_threshold: float = 0.3  # share of the prompt that must be known, or load decides
    balance_abs_threshold: int = 64  # load decides if busiest and idlest differ by more requests than this
    balance_rel_threshold: float = 1.5  # and the busiest has more than so many times those of the idlest
    eviction_interval_s: float = 60.0
    max_tree_tokens: int = 2**26 // 4  # of a replica; the router counts 2^26 characters, here 4 a token


class PrefixAware:
    """The routing policy ``cache_aware``.

    The router sees no cache. It keeps a radix tree of the prompts that it sent: each node knows the replicas that were
    sent it, and which was the first. Answers are not in the tree.

    1. If the load is out of balance by both thresholds, the replica with the fewest requests in flight is chosen.
    2. Else, if the longest known prefix is more than ``cache_threshold`` of the prompt, the first replica that was sent
       that prefix is chosen.
    3. Else the replica with the fewest requests in flight is chosen. Of several the first is taken, so an idle fleet
       sends all that is new to replica 0.

    The prompt is then entered as sent there. Every ``eviction_interval_s``, the least recent leaves of each replica
    with more than ``max_tree_tokens`` are removed, as whole nodes.

    Source: sglang-router 0.3.2, ``sgl-model-gateway/src/policies/cache_aware.rs`` and ``tree.rs``; defaults from
    ``router_args.py``. (By its documentation, 3 goes to the smallest tree; the code goes by load.) A match is measured
    in characters there and in whole units of the trace here. Where the first owner of a node was removed, the router
    takes any by the order of a hash map, this class the lowest index.
    """

    def __init__(self, settings: CacheAware | None = None) -> None:
        self.settings = settings or CacheAware()
        self.tree = PrefixTree()
        self._start_s: float | None = None
        self._evictions = 0

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        """Index of the replica for a request, given how many each has in flight."""
        self._evict_at_intervals(request.arrival_s)
        idlest, busiest = min(in_flight), max(in_flight)
        chosen = in_flight.index(idlest)
        out_of_balance = (
            busiest - idlest > self.settings.balance_abs_threshold
            and busiest > self.settings.balance_rel_threshold * idlest
        )
        if not out_of_balance:
            match = self.tree.match(request.prompt)
            if match.tokens and match.tokens / request.prompt_tokens > self.settings.cache_threshold:
                chosen = match.replica
        self.tree.insert(request.prompt, chosen)
        return chosen

    def _evict_at_intervals(self, now_s: float) -> None:
        if self._start_s is None:
            self._start_s = now_s
        intervals = int((now_s - self._start_s) // self.settings.eviction_interval_s)
        if intervals > self._evictions:
            self.tree.evict(self.settings.max_tree_tokens)
            self._evictions = intervals


class Match(NamedTuple):
    """The longest prefix of a prompt that is known."""

    tokens: int
    replica: int  # the first that was sent it; without meaning if tokens is 0


class _Node:
    __slots__ = ("children", "end", "first", "parent", "path", "sent", "start")

    def __init__(self, path: Path, start: int, end: int, parent: _Node | None, first: int) -> None:
        self.path = path  # of the request that brought the tokens: they are path[start:end]
        self.start, self.end = start, end
        self.parent = parent
        self.children: dict[int, _Node] = {}  # by the id of the first unit
        self.first = first  # the first replica that was sent it
        self.sent: dict[int, int] = {}  # by replica: the time of its last use


class PrefixTree:
    """Which replica was sent which prompts: the router's approximate radix tree, on whole units."""

    def __init__(self) -> None:
        self.sizes: Counter[int] = Counter()  # tokens by replica
        self._root = _Node(Path((), ()), 0, 0, None, 0)
        self._clock = 0

    def match(self, prompt: Path) -> Match:
        """The longest known prefix. One match in eight counts as a use of what it matched."""
        node, tokens = self._root, 0
        while tokens == node.end < len(prompt) and (child := node.children.get(_unit(prompt, tokens))) is not None:
            node, tokens = child, min(child.path.common(prompt), child.end)
        now = self._tick()
        if node is self._root:
            return Match(0, 0)
        if node.first not in node.sent:
            node.first = min(node.sent)
        if now % 8 == 0:
            node.sent[node.first] = now
        return Match(tokens, node.first)

    def insert(self, prompt: Path, replica: int) -> None:
        """Enter a prompt as sent to a replica."""
        node = self._root
        while node.end < len(prompt):
            unit = _unit(prompt, node.end)
            child = node.children.get(unit)
            if child is None:
                child = node.children[unit] = _Node(prompt, node.end, len(prompt), node, replica)
            elif (shared := child.path.common(prompt)) < child.end:
                child = self._split(child, shared)
            if replica not in child.sent:
                child.sent[replica] = 0  # only the node at the end of the prompt counts as used
                self.sizes[replica] += child.end - child.start
            node = child
        if node is not self._root:
            node.sent[replica] = self._tick()

    def evict(self, most: int) -> None:
        """Remove least recent leaves of each replica until it has at most ``most`` tokens."""
        if max(self.sizes.values(), default=0) <= most:
            return
        leaves = [
            (node.sent[replica], number, replica, node)
            for number, node in enumerate(self._nodes())
            for replica in node.sent
            if _is_leaf_of(node, replica)
        ]
        heapify(leaves)
        while leaves:
            _, number, replica, node = heappop(leaves)
            if self.sizes[replica] <= most:
                continue
            del node.sent[replica]
            self.sizes[replica] -= node.end - node.start
            parent = node.parent
            assert parent is not None
            if not node.children and not node.sent:
                del parent.children[_unit(node.path, node.start)]
            if parent is not self._root and _is_leaf_of(parent, replica):
                heappush(leaves, (parent.sent[replica], number, replica, parent))

    def _split(self, node: _Node, end: int) -> _Node:
        """Split a node and return the upper half, which has the same replicas and times of use."""
        parent = node.parent
        assert parent is not None
        upper = _Node(node.path, node.start, end, parent, node.first)
        upper.sent = dict(node.sent)
        parent.children[_unit(node.path, node.start)] = upper
        node.start, node.parent = end, upper
        upper.children[_unit(node.path, end)] = node
        return upper

    def _nodes(self) -> Iterator[_Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _tick(self) -> int:
        self._clock += 1
        return self._clock - 1


def _unit(path: Path, start: int) -> int:
    """Id of the unit that starts after so many tokens."""
    return path.ids[path.unit_at(start)]


def _is_leaf_of(node: _Node, replica: int) -> bool:
    return replica in node.sent and not any(replica in child.sent for child in node.children.values())
