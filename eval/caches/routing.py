"""N caches behind a router, as one cache: each request of a trace goes to one replica, and finds what that one holds.

============  =========================================================================================================
name          where a request goes
============  =========================================================================================================
round-robin   to the replicas in turn
least-loaded  to the one with the fewest requests in flight; of several, to the one that was sent the fewest so far
prefix-aware  as SGLang's own router decides it under ``--policy cache_aware``: :class:`PrefixAware`
============  =========================================================================================================

What is in flight is a matter of time, and a trace has only arrivals: :class:`Service` says how long a request stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from eval.caches.simulator import Cache
from eval.traces.request import Path, Request

__all__ = ["ROUTINGS", "CacheAware", "LeastLoaded", "PrefixAware", "RoundRobin", "RoutedCache", "Router", "Service"]


@dataclass(frozen=True, slots=True)
class Service:
    """How long a request occupies its replica: β + α·uncached + TPOT·output, from its arrival on.

    Requests do not slow each other down and do not wait for each other, so this is a lower bound on a busy machine.
    The defaults are assumed, not measured: about a 7B model on an A100 (2,048 uncached tokens in 200 ms; 40 tokens a
    second to each user).
    """

    alpha_ms: float = 200 / 2048  # an uncached token of the prompt
    beta_ms: float = 0.0  # any request
    tpot_ms: float = 25.0  # a token of the answer

    def seconds(self, uncached: int, output: int) -> float:
        """Of a request with so many uncached tokens and so many tokens of answer."""
        return (self.beta_ms + self.alpha_ms * uncached + self.tpot_ms * output) / 1000


class Router(Protocol):
    """Decides where requests go."""

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        """Index of the replica for the next request to arrive, given how many each is busy with."""


class RoundRobin:
    """To the replicas in turn."""

    def __init__(self) -> None:
        self._sent = 0

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        self._sent += 1
        return (self._sent - 1) % len(in_flight)


class LeastLoaded:
    """To the replica with the fewest requests in flight; of several, to the one that was sent the fewest so far."""

    def __init__(self) -> None:
        self._sent: Counter[int] = Counter()

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        chosen = min(range(len(in_flight)), key=lambda replica: (in_flight[replica], self._sent[replica]))
        self._sent[chosen] += 1
        return chosen


@dataclass(frozen=True, slots=True)
class CacheAware:
    """Settings of SGLang's router, with the defaults of ``python -m sglang_router.launch_router``."""

    cache_threshold: float = 0.3  # a longer share of the prompt than this must be known, or load decides
    balance_abs_threshold: int = 64  # requests between the busiest and the idlest replica beyond which load decides ...
    balance_rel_threshold: float = 1.5  # ... if the busiest has more than so many times those of the idlest
    eviction_interval_s: float = 60.0
    max_tree_tokens: int = 2**26 // 4  # of a replica; the router counts 2^26 characters: at 4 a token


class PrefixAware:
    """SGLang's router: to the replica that a prefix like this one was sent to, while load is balanced.

    It knows no cache, only what it has sent where: a radix tree of prompts, each node with the replicas that were sent
    it and the one that was sent it first. Answers are not in it.

    1. Is the load out of balance by both thresholds: to the replica with the fewest requests in flight.
    2. Is the longest known prefix more than ``cache_threshold`` of the prompt: to the one who had its end first.
    3. Else to the replica with the fewest requests in flight, too.

    Of several with the fewest the first is taken: an idle fleet sends all that is new to replica 0. Wherever it goes,
    the prompt is entered as sent there. Every ``eviction_interval_s`` each replica that was sent more than
    ``max_tree_tokens`` forgets its least recent leaves, whole nodes of the tree.

    Source: sglang-router 0.3.2, ``sgl-model-gateway/src/policies/cache_aware.rs`` and ``tree.rs``; defaults from
    ``router_args.py``. (Its documentation has 3 go to the smallest tree; the code goes by load.) A match is measured in
    characters there and in whole units of the trace here. Where the first owner of a node has been forgotten, the order
    of a hash map chooses there, the lowest index here.
    """

    def __init__(self, settings: CacheAware | None = None) -> None:
        self.settings = settings or CacheAware()
        self.tree = PrefixTree()
        self._start_s: float | None = None
        self._evictions = 0

    def route(self, request: Request, in_flight: Sequence[int]) -> int:
        self._evict_when_due(request.arrival_s)
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

    def _evict_when_due(self, now_s: float) -> None:
        if self._start_s is None:
            self._start_s = now_s
        due = int((now_s - self._start_s) // self.settings.eviction_interval_s)
        if due > self._evictions:
            self.tree.evict(self.settings.max_tree_tokens)
            self._evictions = due


class Match(NamedTuple):
    """The longest prefix of a prompt that is known."""

    tokens: int
    replica: int  # that it goes by; of no meaning with 0 tokens


class _Node:
    __slots__ = ("children", "end", "first", "parent", "path", "sent", "start")

    def __init__(self, path: Path, start: int, end: int, parent: _Node | None, first: int) -> None:
        self.path = path  # of the request that brought the tokens: they are path[start:end]
        self.start, self.end = start, end
        self.parent = parent
        self.children: dict[int, _Node] = {}  # by the id of the first unit
        self.first = first  # the replica that was sent it first
        self.sent: dict[int, int] = {}  # replicas that were sent it, and when they were last matched or sent it whole


class PrefixTree:
    """Who was sent which prompts: the router's approximate radix tree, on whole units."""

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
                child.sent[replica] = 0  # in passing; a use is of the end of a prompt
                self.sizes[replica] += child.end - child.start
            node = child
        if node is not self._root:
            node.sent[replica] = self._tick()

    def evict(self, most: int) -> None:
        """Forget least recent leaves of each replica that was sent more than so many tokens, until it is no more."""
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
        """Cut a node in two and return the upper half, which was sent to the same replicas as lately."""
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


ROUTINGS: dict[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}
"""By name."""


class RoutedCache:
    """Replicas of a cache behind a router, as one cache.

    Args:
        build: makes the cache of one replica from the list in which the numbers of the requests that it is sent will
            stand, from 0 as in the trace: knowledge of the trace is by these numbers.
        replicas: how many.
        router: decides where a request goes.
        service: how long it stays there.

    Raises:
        ValueError: fewer than one replica.
    """

    def __init__(
        self,
        build: Callable[[Sequence[int]], Cache],
        replicas: int,
        router: Router,
        service: Service | None = None,
    ) -> None:
        if replicas < 1:
            raise ValueError(f"--replicas {replicas}: must be 1 or more")
        self.sent: list[list[int]] = [[] for _ in range(replicas)]  # numbers of the requests, by replica
        self.in_flight = [0] * replicas  # requests
        self.replicas = [build(numbers) for numbers in self.sent]
        self._router = router
        self._service = service or Service()
        self._done: list[tuple[float, int]] = []  # a heap of (when, on which replica)
        self._requests = 0

    @property
    def evicted(self) -> Counter[str]:
        """Tokens by phase, of all replicas; empty where the caches do not tell."""
        total = Counter[str]()
        for cache in self.replicas:
            total.update(getattr(cache, "evicted", {}))
        return total

    def request(self, request: Request) -> int:
        """Serve a request on one of the replicas; returns the tokens of its prompt that were cached there."""
        while self._done and self._done[0][0] <= request.arrival_s:
            _, replica = heappop(self._done)
            self.in_flight[replica] -= 1
        replica = self._router.route(request, self.in_flight)
        self.sent[replica].append(self._requests)  # before it is served: what is known of it is asked for then
        self._requests += 1
        cached = self.replicas[replica].request(request)
        stay = self._service.seconds(request.prompt_tokens - cached, request.output_tokens)
        self.in_flight[replica] += 1
        heappush(self._done, (request.arrival_s + stay, replica))
        return cached
