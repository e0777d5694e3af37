"""Agents: runs that begin with one of a few templates, some used all the time, and go on by themselves within seconds.

A template is a system prompt and the tools that it describes. What a run adds to it is its own; many runs are a single
call, the others take a call for each step, which comes when a tool has answered. All lengths and waits are log-normal.
An answer may come back otherwise than it was cached, as templates write tool calls in their own way. A run knows when
it is over: where requests name sessions it closes its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, default_rng

from eval.traces.generators.talk import drawn_s, drawn_tokens
from eval.traces.generators.workload import Workload
from eval.traces.parameters import check_ranges
from eval.traces.request import Path, Request, ending


@dataclass(frozen=True, slots=True)
class Agents:
    """Lengths in tokens, times in seconds.

    Raises:
        TraceError: a value is out of range.
    """

    runs: int = 8_600
    arrival_span_s: float = 3_600.0  # runs start at uniformly random times within this span
    templates: int = 60
    popularity: float = 1.1  # the k-th template is used in proportion to k to the power of minus this
    template_median: float = 4_600.0
    template_sigma: float = 0.6
    first_prompt_median: float = 1_500.0  # what a run adds to its template
    first_prompt_sigma: float = 1.1
    single_probability: float = 0.55  # that a run is a single call
    continue_probability: float = 0.7  # of the other runs, that a step after the first is followed by another
    next_prompt_median: float = 500.0
    next_prompt_sigma: float = 1.0
    answer_median: float = 100.0
    answer_sigma: float = 0.8
    calls_told: int = 0  # whether answers end as they do: all but the last of a run with a call of a tool
    rewritten_probability: float = 0.0  # that the next prompt has an answer, a tool call say, in other tokens
    wait_median_s: float = 15.0
    wait_sigma: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, _ALLOWED)


_ALLOWED = {
    "runs": (1, 1e6),
    "templates": (1, 1e5),
    "popularity": (0, 10),
    "calls_told": (0, 1),
    "arrival_span_s": (0, 1e9),
    **dict.fromkeys(("single_probability", "continue_probability"), (0, 0.999)),
}


def generate(agents: Agents) -> Iterator[Request]:
    """The requests of all runs in order of arrival; the same for the same agents.

    Every run has a stream of its own, so that more runs begin with the texts of fewer.
    """
    drawn, *seeds = np.random.SeedSequence(agents.seed).spawn(1 + agents.runs)
    rng = default_rng(drawn)
    templates = [drawn_tokens(rng, agents.template_median, agents.template_sigma) for _ in range(agents.templates)]
    weights = np.arange(1, agents.templates + 1) ** -agents.popularity
    shares = np.cumsum(weights / weights.sum())
    unit = agents.templates
    made: list[Request] = []
    for run, seed in enumerate(seeds):
        made += _run(agents, run, unit, templates, shares, default_rng(seed))
        unit = abs(made[-1].context.ids[-1]) + 1
    yield from sorted(made, key=lambda request: request.arrival_s)


def _run(
    agents: Agents, run: int, unit: int, templates: list[int], shares: np.ndarray, rng: Generator
) -> Iterator[Request]:
    """The calls of one run; ``unit``: the first number that no text has yet."""
    arrival_s = float(rng.uniform(0.0, agents.arrival_span_s))
    template = min(int(np.searchsorted(shares, rng.random(), side="right")), agents.templates - 1)
    rewrites = rng.spawn(1)[0]  # all else is drawn as if nothing were
    steps = 1 if rng.random() < agents.single_probability else 1 + int(rng.geometric(1.0 - agents.continue_probability))
    context = Path((template,), (templates[template],))
    for step in range(steps):
        if step:
            arrival_s += drawn_s(rng, agents.wait_median_s, agents.wait_sigma)
        median, sigma = (
            (agents.next_prompt_median, agents.next_prompt_sigma)
            if step
            else (agents.first_prompt_median, agents.first_prompt_sigma)
        )
        prompt = context.plus(drawn_tokens(rng, median, sigma), unit)
        answer = drawn_tokens(rng, agents.answer_median, agents.answer_sigma)
        context = prompt.plus(answer, unit + 1)
        rewritten = rewrites.random() < agents.rewritten_probability
        cached = prompt.plus(answer, -unit - 1) if rewritten else context
        unit += 2
        last = step == steps - 1
        sent = arrival_s, str(run), prompt, cached, len(prompt), answer
        yield Request(*sent, ending=ending(unit, not last) if agents.calls_told else (), closes=last)


AGENTS = Workload("agents", "runs of agents that share templates", Agents, generate)
