"""What ``etlru`` has learned, kept in a file from one run of a server to the next (``--tlru-state FILE``).

All ranks load the file, and make sure that they have loaded the same. The first rank of the first replica saves, after
every 500 turns and when the server shuts down. A snapshot is a few copies of small arrays; a thread writes it.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from radix_tlru.config import FLAGS, Config
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.state import LearnedState
from radix_tlru.learning.state_file import Origin, StateFile
from radix_tlru.sglang.support import page_size_of

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

__all__ = ["SAVE_EVERY", "StateKeeper", "check_state", "state_file_of"]

SAVE_EVERY = 500
"""Turns from one save to the next: as many as from one fit of hazards to the next."""

_SHARED = "was written by another server meanwhile; what that one learned is lost, each needs a file of its own"

logger = logging.getLogger(__name__)


def state_file_of(server_args: ServerArgs, config: Config) -> StateFile | None:
    """The file of a server with these arguments; None if it keeps nothing."""
    if config.state is None:
        return None
    return StateFile(Path(config.state), Origin(str(server_args.model_path), page_size_of(server_args)))


def check_state(server_args: ServerArgs, config: Config) -> None:
    """Make sure that the state can be loaded and saved; a file that is missing is created.

    Raises:
        ConfigError: it cannot. The message names the file and the reason.
    """
    file = state_file_of(server_args, config)
    if file is not None:
        file.check(_now())


class StateKeeper:
    """Loads the state for one rank's learner, and saves it.

    Args:
        saves: whether this rank is the one that does.
    """

    def __init__(self, file: StateFile, *, saves: bool) -> None:
        self._file, self._saves = file, saves
        self._unsaved = 0  # turns since the last save
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="radix_tlru_state")
        self._write: Future[bool] | None = None  # the last one
        self._written = file.written  # as this server has left it
        self.digest = 0
        """Of what was loaded."""

    def load(self) -> LearnedState:
        """What a former run learned.

        Raises:
            ConfigError: the file cannot be loaded, though it could when the server was launched.
        """
        self._written = self._file.written
        state = self._file.load()
        self.digest = state.digest
        seen = state.seen
        logger.info(
            "radix_tlru: begins with what %d turns taught, %d of them returns (%s)",
            *(seen.turns, seen.returns, self._file.path),
        )
        return state

    def count_turns(self, learner: Learner, turns: int) -> None:
        """It was learned from so many turns. Now and then that is saved, unless the last save still goes on."""
        self._unsaved += turns
        if self._saves and self._unsaved >= SAVE_EVERY and (self._write is None or self._write.done()):
            self._save(learner)

    def wait(self) -> bool:
        """Wait until the last save has ended. Returns whether it succeeded; of no save there is nothing to fail."""
        return self._write is None or self._write.result()

    def close(self, learner: Learner) -> None:
        """The server shuts down: save what is new, learned from or only recorded, and wait until it is written."""
        is_saved = self.wait()
        if self._saves and (self._unsaved or learner.unlearned or not is_saved):
            self._save(learner)
        self._writer.shutdown()

    def _save(self, learner: Learner) -> None:
        self._unsaved = 0
        try:
            self._write = self._writer.submit(self._save_now, learner.snapshot())
        except Exception as error:  # one rank alone saves: its cache must not fall back to lru by this
            self._write = Future()
            self._write.set_result(_not_saved(error))

    def _save_now(self, state: LearnedState) -> bool:
        """Whether it was saved."""
        try:
            if self._file.written not in (None, self._written):
                logger.warning("radix_tlru: %s %s: %s", FLAGS["state"], self._file.path, _SHARED)
            self._file.save(state, _now())
            self._written = self._file.written
        except Exception as error:  # a server goes on without it
            return _not_saved(error)
        return True


def _not_saved(error: Exception) -> bool:
    logger.warning("radix_tlru: what was learned could not be saved, which is tried again later: %s", error)
    return False


def _now() -> str:
    return datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
