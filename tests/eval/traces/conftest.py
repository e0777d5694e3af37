"""Two traces of which other ones are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.traces import open_trace
from eval.traces.trace import Trace
from tests.helpers.block_traces import block_lists, write_blocks


@pytest.fixture(scope="module")
def agents() -> Trace:
    return open_trace("subagents:sessions=9,seed=2")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Blocks that name no conversation; their numbers are also units of the agents."""
    folder: Path = tmp_path_factory.mktemp("blocks")
    return open_trace(str(write_blocks(folder / "chats.jsonl", block_lists(seed=5))))
