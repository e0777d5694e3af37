"""A server with a host tier: what is demoted, cut and loaded back is what was computed, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eval.live.server import Server
from tests.helpers.servers import OURS, POOL, TIERS, assert_all_is_given_back, serve, total
from tests.helpers.talk import Conversation, answer_to

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def tiered_server(weighted_model: Path) -> Iterator[Server]:
    with serve(weighted_model, "tiers", *OURS, *TIERS) as server:
        yield server


def test_what_comes_back_from_the_host_is_what_was_computed(tiered_server: Server, stock_server: Server) -> None:
    conversations = [Conversation(number) for number in range(6)]
    for length in (900, 150, 150):
        for conversation in conversations:
            conversation.turn(tiered_server, length)
    for name in ("load_back_tokens", "tlru_splits", "tlru_host_dropped_tokens"):
        assert total(tiered_server, f"sglang:{name}_total") > 0, name
    stock_server.flush_cache()
    found = 0
    for conversation in conversations:
        prompt = tuple(conversation.ask(50))
        ours, stock = answer_to(tiered_server, prompt), answer_to(stock_server, prompt)
        assert ours.log_probabilities == pytest.approx(stock.log_probabilities, abs=1e-4)
        found += ours.cached_tokens
    assert found > POOL, "more than the device holds"
    assert_all_is_given_back(tiered_server, POOL)
