"""Scripts of requests, as Hypothesis makes them: conversations that start, go on, share a beginning, or are edited."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

PAGE_SIZES = [1, pytest.param(16, marks=pytest.mark.long), 64]
CAPACITY_PAGES = 40


@dataclass(frozen=True)
class Step:
    """One request: a conversation starts (maybe behind a shared system prompt), goes on, or is edited and goes on."""

    kind: str
    which: float  # which conversation, as a fraction of those there are
    cut: float  # how much of it is kept before an edit
    pages: float  # how much is added


def scripts(*kinds: str) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.builds(Step, st.sampled_from(kinds), st.floats(0, 0.999), st.floats(0, 1), st.floats(0.05, 9.0)),
        min_size=5,
        max_size=60,
    )


steps = scripts("start", "start_shared", "next", "next", "next", "edit")
lines = scripts("start", "next", "next")  # conversations that share nothing and are never edited


def contexts(script: list[Step], page_size: int) -> list[list[int]]:
    """The token context of each request, all of them short enough for the pool."""
    token = 0

    def fresh(count: int) -> list[int]:
        nonlocal token
        token += count
        return list(range(token - count, token))

    system_prompt = fresh(3 * page_size + page_size // 2)
    conversations: list[list[int]] = []
    made = []
    for step in script:
        added = fresh(max(1, round(step.pages * page_size)))
        if step.kind == "start" or not conversations:
            context = added
            conversations.append(context)
        elif step.kind == "start_shared":
            context = system_prompt + added
            conversations.append(context)
        else:
            index = int(step.which * len(conversations))
            context = conversations[index]
            if step.kind == "edit":
                context = context[: round(step.cut * len(context))]
            context = context + added
            if len(context) > (CAPACITY_PAGES - 1) * page_size:
                context = added  # it would not fit: a new conversation in its place
            conversations[index] = context
        made.append(context)
    return made
