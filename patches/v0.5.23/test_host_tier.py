"""A server from the patched tree with a host tier, without our plugin: what is trimmed and loaded back is right.

It runs on this repository's CPU platform, which has the copies between tiers that SGLang leaves to a device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval.live.server import Server
from tests.conftest import weighted_model  # noqa: F401
from tests.helpers.servers import (
    ALL_CHECKS,
    CHUNK,
    NEXT_PROMPT,
    POOL,
    REAL_WEIGHTS,
    THRESHOLD,
    TIERS,
    assert_unharmed,
    flags,
    total,
)
from tests.helpers.talk import ANSWER, Conversation, answer_to

STARTUP_S = 1_800.0
TLRU = {"threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT, "granularity": "page", "trim_chunk": 64}
TURNS = (900, 150, 150)  # tokens of a prompt

pytestmark = [pytest.mark.live, pytest.mark.timeout(3_600)]


def start(model: Path, name: str, *given: str) -> Server:
    """A server of the tree; the name is that of its log."""
    shape = [*flags(model, POOL, 1, CHUNK), *REAL_WEIGHTS, *given]
    return Server(shape, name=f"test-patched-{name}", environment=ALL_CHECKS, startup_s=STARTUP_S)


@pytest.fixture
def tiered_server(weighted_model: Path) -> Iterator[Server]:  # noqa: F811
    given = ("--radix-eviction-policy", "tlru", "--radix-eviction-policy-config", json.dumps(TLRU))
    with start(weighted_model, "tiers", *given, *TIERS) as server:
        yield server


@pytest.fixture
def plain_server(weighted_model: Path) -> Iterator[Server]:  # noqa: F811
    with start(weighted_model, "plain") as server:
        yield server


def test_what_comes_back_from_the_host_is_what_was_computed(tiered_server: Server, plain_server: Server) -> None:
    conversations = [Conversation(seed) for seed in range(310, 316)]
    for length in TURNS:
        for conversation in conversations:
            conversation.turn(tiered_server, length)
    assert total(tiered_server, "sglang:load_back_tokens_total") > 0
    found = []
    for conversation in conversations:
        prompt = tuple(conversation.ask(50))
        ours, plain = answer_to(tiered_server, prompt), answer_to(plain_server, prompt)
        assert plain.cached_tokens == 0
        assert ours.log_probabilities == pytest.approx(plain.log_probabilities, abs=1e-4)
        found.append(ours.cached_tokens)
    assert sum(found) > POOL, "more than the device holds"
    # Of 1,223 tokens, up to the last one of the last answer, 500 are TEL-safe. What turns inserted ends at 907, 1,065
    # and 1,223 tokens, so 723 are left by a cut within a node.
    inserted = sum(TURNS) + len(TURNS) * ANSWER - 1
    assert inserted - (THRESHOLD - NEXT_PROMPT) in found
    assert_unharmed(tiered_server, POOL)
