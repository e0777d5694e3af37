"""Batch jobs beside chats: hundreds of documents, each asked about once, with the same instructions before them.

A job keeps a fixed number of requests in flight until it is done. Its documents are never seen again; what they push
out of a cache are the chats. Sizes are assumptions: eight jobs of 200 documents of 3,000 tokens beside 1,200 chats.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from numpy.random import Generator, SeedSequence, default_rng

from eval.traces.generators.chat_loop import ChatLoop, chat_turns
from eval.traces.generators.talk import Talk, drawn_tokens, play, uniform_starts
from eval.traces.generators.workload import Workload
from eval.traces.request import Request

_FIRST_INSTRUCTIONS = 1 << 16  # numbers of shared units: those of the jobs, behind the system prompts of chats


@dataclass(frozen=True, slots=True)
class Batch(ChatLoop):
    """A chat loop, and jobs."""

    sessions: int = 1_200
    jobs_count: int = 8  # each starts at a uniformly random time within the span
    documents_count: int = 200  # of a job
    in_flight_count: int = 16
    instruction_tokens: int = 1_200  # the same for all documents of a job
    document_median: float = 3_000.0
    document_sigma: float = 0.8
    verdict_median: float = 60.0  # tokens of an answer
    verdict_sigma: float = 0.5


def generate(kind: Batch) -> Iterator[Request]:
    """The requests of all conversations and jobs in order of arrival."""
    chats = uniform_starts(kind.sessions, kind.span_s, kind.seed)
    jobs = uniform_starts(kind.jobs_count, kind.span_s, kind.seed + 1)
    sent = (request for job, start_s in enumerate(jobs) for request in _job(kind, job, start_s))
    spoken = play(chats, kind.seed, lambda index, start_s, rng: chat_turns(kind, Talk(index, start_s, "chat"), rng))
    yield from sorted((*spoken, *sent), key=lambda request: request.arrival_s)


def _job(kind: Batch, job: int, start_s: float) -> Iterator[Request]:
    rng = default_rng(SeedSequence(kind.seed, spawn_key=(1 << 21, job)))
    free_s = [start_s] * kind.in_flight_count  # when each place is free again
    for document in range(kind.documents_count):
        number = kind.sessions + job * kind.documents_count + document
        talk = Talk(number, heapq.heappop(free_s), "batch")
        yield _ask(kind, talk, job, rng)
        heapq.heappush(free_s, talk.at_s)


def _ask(kind: Batch, talk: Talk, job: int, rng: Generator) -> Request:
    talk.add_shared(kind.instruction_tokens, _FIRST_INSTRUCTIONS + job)
    talk.add(drawn_tokens(rng, kind.document_median, kind.document_sigma))
    return talk.ask(drawn_tokens(rng, kind.verdict_median, kind.verdict_sigma))


BATCH = Workload("batch", "batch jobs beside chats", Batch, generate)
