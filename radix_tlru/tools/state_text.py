"""What is in a file of ``--tlru-state``, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radix_tlru.config import FLAGS, ConfigError
from radix_tlru.learning.state_file import read_state

__all__ = ["state_lines"]


def state_lines(path: Path) -> Iterator[str]:
    """What was learned, of which model, and when.

    Raises:
        ConfigError: it cannot be read, is no such file, or is of another version or shape.
    """
    try:
        saved = read_state(path)
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix(f"{FLAGS['state']} ")) from error
    state, seen = saved.state, saved.state.seen
    repeated, not_repeated = state.answers.as_cached, state.answers.not_as_cached
    yield f"model     {saved.origin.model}, page size {saved.origin.page_size}"
    yield f"saved     {saved.saved_at}"
    yield f"seen      {seen.turns:,} turns of {seen.conversations:,} conversations, {seen.returns:,} of them returns"
    yield f"kept      the last {len(state.turns):,} turns, and {len(state.lengths):,} lengths of prompts"
    yield f"answers   {repeated:,} came back as they were cached, {not_repeated:,} did not"
    yield f"endings   {len(state.endings)} that are frequent"
    if state.verdict.preferred:
        yield f"in force  {state.verdict.preferred}, judged by the last {state.verdict.judged.shape[1]:,} sampled turns"
