"""Where things lie: the repository, and the real traces beside it, which a checkout may lack."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

SHARED_DATA = REPOSITORY.parent / "shared" / "data"

MOONCAKE = SHARED_DATA / "mooncake_conversation_trace.jsonl"
