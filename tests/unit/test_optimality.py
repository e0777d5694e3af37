"""Tail-Optimized Belady against the exact program that it is said to solve (paper, problem (7) and Theorem 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import coo_array

from eval.caches.knowledge import TraceKnowledge
from eval.caches.policies import simulated_cache
from eval.caches.simulator import simulate
from eval.traces.request import Request
from tests.helpers.random_traces import Turn, branching, conversations_in_line, random_tree, random_turns, tel

CACHING = pytest.mark.parametrize("forced", [True, False], ids=["forced", "optional"])


class Program:
    """A linear program: minimise the sum of some of its variables, all of which are at least 0."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.bounds: list[tuple[float, float]] = []
        self.rows: list[list[tuple[int, float]]] = []
        self.limits: list[float] = []

    def variable(self, low: float, high: float, cost: float = 0) -> int:
        self.costs.append(cost)
        self.bounds.append((low, high))
        return len(self.costs) - 1

    def at_most(self, limit: float, row: list[tuple[int, float]]) -> None:
        """Σ factor · variable ≤ limit."""
        self.rows.append(row)
        self.limits.append(limit)

    def minimum(self) -> float:
        entries = [(number, column, factor) for number, row in enumerate(self.rows) for column, factor in row]
        numbers, columns, factors = zip(*entries, strict=True)
        matrix = coo_array((factors, (numbers, columns)), shape=(len(self.rows), len(self.costs))).tocsr()
        solution = linprog(self.costs, A_ub=matrix, b_ub=self.limits, bounds=np.array(self.bounds), method="highs")
        assert solution.success, solution.message
        return float(solution.fun)


def least_tel(requests: Sequence[Request], capacity: int, threshold: int, forced: bool) -> float:
    """The least TEL of any plan for conversations that share nothing: problem (7), with the integers relaxed.

    Variables, for each conversation i and each request t: x[i,t] tokens of i are resident when t has been served. They
    are a prefix, so a number says which. For each request t of a conversation s: z[t] tokens of it are beyond ξ.

        minimise    Σ z[t]
        subject to  z[t] ≥ L + Q - x[s,t-1] - ξ  and  z[t] ≥ 0                    L + Q is the length of its prompt
                    x[s,t] ≤ C[t]                                                 what it has said and heard by then
                    x[s,t] = C[t]                  under forced caching: all of it is resident while it is served
                    x[i,t] ≤ x[i,t-1]              for all other i: they can only lose
                    Σ x[i,t] over i ≤ capacity     (a context longer than that counts as that long)

    Without integers the minimum can only be lower, and every cache is a plan in integers. One that has this TEL is
    therefore optimal in integers too. (That the two minima agree is no accident: what is kept of a conversation from
    one request to its next is an interval, and interval matrices are totally unimodular. The relaxation is solved, and
    not the program in integers, because HiGHS's presolve for those, in scipy 1.17.1, loses optima of some instances.)
    """
    program = Program()
    resident: dict[str | None, tuple[int, int]] = {}  # conversation → (variable of its last x, its context)
    for request in requests:
        tokens = min(len(request.context), capacity)
        missed = program.variable(0, math.inf, cost=1)
        before = [(resident[request.conversation][0], -1.0)] if request.conversation in resident else []
        program.at_most(threshold - request.prompt_tokens, [(missed, -1.0), *before])
        for other, (last, length) in resident.items():
            if other != request.conversation:
                kept = program.variable(0, length)
                program.at_most(0, [(kept, 1.0), (last, -1.0)])
                resident[other] = kept, length
        resident[request.conversation] = program.variable(tokens if forced else 0, tokens), tokens
        program.at_most(capacity, [(variable, 1.0) for variable, _ in resident.values()])
    return program.minimum()


def least_tel_of_tree(requests: Sequence[Request], capacity: int, threshold: int, forced: bool) -> float:
    """The same where contexts share prefixes: one variable for each token (a unit) of the tree and each request.

    A token is resident no more than its parent; those of the request's own context may appear (forced: are there), all
    others can only be lost; at most ``capacity`` are resident.
    """
    program = Program()
    resident: dict[int, int] = {}  # token → variable of its last x
    parents: dict[int, int | None] = {}
    for request in requests:
        context = request.context.ids[:capacity]
        parents.update(zip(context, (None, *context[:-1]), strict=True))
        missed = program.variable(0, math.inf, cost=1)
        before = [(resident[token], -1.0) for token in request.prompt.ids if token in resident]
        program.at_most(threshold - request.prompt_tokens, [(missed, -1.0), *before])
        for token, last in resident.items():
            resident[token] = program.variable(0, 1)
            if token not in context:
                program.at_most(0, [(resident[token], 1.0), (last, -1.0)])
        for token in context:
            resident[token] = program.variable(1 if forced else 0, 1)
        for token, variable in resident.items():
            parent = parents[token]
            if parent is not None:
                program.at_most(0, [(variable, 1.0), (resident[parent], -1.0)])
        program.at_most(capacity, [(variable, 1.0) for variable in resident.values()])
    return program.minimum()


def tel_of(policy: str, requests: Sequence[Request], capacity: int, threshold: int, forced: bool = True) -> int:
    cache = simulated_cache(
        policy,
        capacity,
        threshold=threshold,
        next_prompt_estimate=0,
        knowledge=TraceKnowledge(requests),
        forced=forced,
    )
    return tel(requests, simulate(cache, requests), threshold)


def test_the_program_says_what_a_reader_can_work_out() -> None:
    # A says 4, B says 3, A adds 1, B adds 1; ξ = 2. Uncached, the prompts 4, 3, 5 and 4 miss it by 2, 1, 3 and 2.
    requests = conversations_in_line([Turn(0, 4, 0), Turn(1, 3, 0), Turn(0, 1, 0), Turn(1, 1, 0)])
    # All is kept, so A and B only have their 1 new token to prefill: 2 + 1 + 0 + 0.
    assert least_tel(requests, 9, 2, forced=True) == 3
    # A (5) is served beside all of B (3): nothing is lost at a capacity of 8.
    assert least_tel(requests, 8, 2, forced=True) == 3
    # At 6 only 1 token of B stays while A is served, and A has lost 1 of its 4 when B comes: A prefills 2, which ξ
    # allows, B then prefills 4 - 1 = 3: 2 + 1 + 0 + 1.
    assert least_tel(requests, 6, 2, forced=True) == 4
    # Optional: nobody needs 5 of A after its last turn, and of A's 4 and B's 3 together 6 stay: 4 - 2 = 2 is enough.
    assert least_tel(requests, 6, 2, forced=False) == 3
    assert [tel_of("tail-belady", requests, 6, 2, forced=forced) for forced in (True, False)] == [4, 3]


@CACHING
def test_tail_optimised_belady_has_the_least_tel_of_all_plans(forced: bool) -> None:
    told_apart = 0
    for seed in range(400):
        random = Random(seed)
        requests = conversations_in_line(random_turns(random))
        capacity, threshold = random.randint(1, 40), random.randint(0, 10)
        least = least_tel(requests, capacity, threshold, forced)
        assert tel_of("tail-belady", requests, capacity, threshold, forced) == pytest.approx(least), f"{seed = }"
        told_apart += tel_of("lru", requests, capacity, threshold, forced) > least + 1e-6
    assert told_apart > 100


@CACHING
def test_without_a_threshold_belady_is_optimal_on_shared_prefixes_too(forced: bool) -> None:
    """As long as no two answers are alike: the second would bring back what the first left, and nobody looked up."""
    told_apart = 0
    for seed in range(150):
        random = Random(seed)
        requests, capacity = random_tree(random), random.randint(1, 14)
        least = least_tel_of_tree(requests, capacity, 0, forced)
        assert tel_of("belady", requests, capacity, 0, forced) == pytest.approx(least), f"{seed = }"
        told_apart += tel_of("lru", requests, capacity, 0, forced) > least + 1e-6
    assert told_apart > 40


@CACHING
def test_without_a_threshold_tail_optimised_belady_is_belady(forced: bool) -> None:
    for seed in range(200):
        random = Random(seed)
        requests, capacity = random_tree(random), random.randint(1, 14)
        knowledge = TraceKnowledge(requests)
        tail, plain = (
            simulated_cache(
                policy, capacity, threshold=0, next_prompt_estimate=seed % 6, knowledge=knowledge, forced=forced
            )
            for policy in ("tail-belady", "belady")
        )
        assert simulate(tail, requests) == simulate(plain, requests), f"{seed = }"


def test_theorem_1_is_about_conversations_that_share_nothing() -> None:
    """What a short prompt shares with a long one has no value of its own and must stay for the long one's sake.

    ξ = 4, capacity 11. P (7 tokens) leaves room for 4 of "aaad" and "eee". Furthest in the future are the e's, so
    Belady drops them: 3 of their prompt of 7 miss ξ at the end. But of "aaad" only the d is worth anything, as "aaay"
    brings the a's back before "aaadqqqq" needs them (and is itself no longer than ξ): to drop d and two a's costs 1.
    """
    said = ["aaad", "eee", "PPPPPPP", "aaay", "aaadqqqq", "eeeffff"]
    requests = branching(said, [len(context) for context in said], whole_messages=False)
    assert tel_of("tail-belady", requests, 11, 4) == 3 + 0 + 3  # P itself misses ξ by 3
    assert tel_of("end-aware", requests, 11, 4) == 3 + 1 + 0
    assert math.ceil(least_tel_of_tree(requests, 11, 4, forced=True)) == 4
