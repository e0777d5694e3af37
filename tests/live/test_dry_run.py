"""A dry run on a real server: it answers from its cache as stock does, and says what it would have saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.live.server import Server
from radix_tlru.cli import main
from radix_tlru.tools.scrape import scrape
from tests.helpers.servers import POOL, assert_unharmed, serve
from tests.helpers.talk import Conversation

pytestmark = pytest.mark.live

CONVERSATIONS, TURNS = 9, 6
"""More turns than the shadow caches wait for (50), of contexts of which the pool holds a few."""

EVICTED = "sglang:evicted_tokens_total"


def test_stock_evicts_and_what_would_have_been_saved_is_told(
    stock_server: Server, weighted_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--radix-eviction", "etlru", "--tlru-threshold", "600", "--tlru-dry-run")
    with serve(weighted_model, "dry-run", *given) as server:
        for each in (server, stock_server):
            each.flush_cache()
        before = stock_server.get_metrics().get(EVICTED, 0.0)
        on_stock, on_ours = ([Conversation(seed) for seed in range(CONVERSATIONS)] for _ in range(2))
        for _ in range(TURNS):
            for stock, ours in zip(on_stock, on_ours, strict=True):
                assert ours.turn(server, 130) == stock.turn(stock_server, 130)
                assert ours.history == stock.history
        assert server.get_metrics()[EVICTED] == stock_server.get_metrics()[EVICTED] - before > 0
        (rank,) = scrape(server.base_url).ranks
        assert rank.is_dry_run
        assert rank.value("shadow_requests_total") > 0
        assert main(["top", server.base_url, "--once"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "dry run: stock lru evicts; lru would be in force now. " in shown
        assert "With what would have been in force so far: TEL +0.0 %" in shown
        log = server.log_path.read_text(errors="replace")
        assert "radix_tlru: dry run: stock lru evicts, and watched is etlru (threshold=600 tokens" in log
        assert_unharmed(server, POOL)
