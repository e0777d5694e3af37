"""The file of ``--tlru-state``: what was learned, whose it is, and every reason not to load it.

A NumPy archive (``.npz``) of numbers and text, read without pickle, so that nothing in it can run:

===========  ==================================================================================
``header``   JSON: the version, the model, the page size, the shape, the date, and what is small
``turns``    the turns that are remembered (``turn_log.TURN``)
``base``     log factors of the age bands
``effects``  log factors of all categories of all features, by span of ages
``lengths``  tokens that prompts added, and the kind of conversation
``judged``   the turns by which the candidate in force was judged (``records.Verdict``)
===========  ==================================================================================

It is written beside the old one, which it then replaces in one step: a server that dies while it writes loses nothing.
Where the path is a link, that is the file that it leads to.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radix_tlru.config import FLAGS, ConfigError
from radix_tlru.learning.age_bands import BANDS, SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.prompt_lengths import KINDS
from radix_tlru.learning.records import Verdict
from radix_tlru.learning.reuse import AnswerShares
from radix_tlru.learning.state import LearnedState, Seen, state_shape
from radix_tlru.learning.turn_features import SIZES
from radix_tlru.learning.turn_log import TURN

__all__ = ["Origin", "SavedState", "StateFile", "read_state"]

_VERSION = 1
"""Of the format. It also changes when a category comes to mean something else and the shape stays."""

_BEGINS = b"PK\x03\x04"  # as a ZIP file does

_MODE = 0o644  # of a new file

_MOST_BYTES = 1 << 24  # a file of more is not ours: 8,192 turns take 0.3 MB


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a state is from. Endings are token ids of a model, and lengths are in whole pages."""

    model: str
    page_size: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a file holds."""

    origin: Origin
    saved_at: str
    """As given by who wrote it: a date and time."""
    state: LearnedState


@dataclass(frozen=True, slots=True)
class StateFile:
    """The file of a server of ``origin``."""

    path: Path
    origin: Origin

    @property
    def _target(self) -> Path:
        """The file itself, if the path is a link to it."""
        return Path(os.path.realpath(self.path))

    @property
    def written(self) -> tuple[int, int] | None:
        """What tells one save from the next, whoever saved; None: there is no file."""
        try:
            found = self._target.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def check(self, now: str) -> None:
        """Make sure, before a model is loaded, that the state can be loaded and saved, by doing so. A missing file is
        created. One in a folder that can be written may yet be none that can be replaced, as a mount is.

        Args:
            now: date and time, for a new file.

        Raises:
            ConfigError: the file is of another model, page size or shape, is no such file, or cannot be written.
        """
        try:
            saved = self._read() if self.path.exists() else SavedState(self.origin, now, LearnedState())
            self.save(saved.state, saved.saved_at)
        except OSError as error:
            raise _refused(self.path, f"cannot be written, {_reason(error)}") from error

    def load(self) -> LearnedState:
        """What a former run learned.

        Raises:
            ConfigError: as :meth:`check`, but that it cannot be written.
        """
        return self._read().state

    def _read(self) -> SavedState:
        """What is in the file, which has to be of this origin."""
        saved = read_state(self.path)
        for name, own, found in (
            ("the model", self.origin.model, saved.origin.model),
            ("the page size", self.origin.page_size, saved.origin.page_size),
        ):
            if own != found:
                raise _refused(self.path, f"was learned with {name} {found}; must be of {own}, or a new file")
        return saved

    def save(self, state: LearnedState, now: str) -> None:
        """Write what was learned up to ``now`` (date and time).

        Raises:
            OSError: it cannot be written. What was there before still is.
        """
        header = {
            "version": _VERSION,
            "origin": asdict(self.origin),
            "shape": state_shape(),
            "saved_at": now,
            "endings": state.endings,
            "answers": state.answers._asdict(),
            "seen": state.seen._asdict(),
            "candidates": state.verdict.candidates,
            "in_force": state.verdict.preferred,
        }
        target = self._target
        handle, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(
                    file,
                    header=np.array(json.dumps(header)),
                    turns=state.turns,
                    base=state.model.base,
                    effects=np.concatenate(state.model.effects),
                    lengths=np.array(state.lengths, np.int64).reshape(-1, 2),
                    judged=state.verdict.judged,
                )
                file.flush()
                os.fsync(file.fileno())
            os.chmod(part, target.stat().st_mode if target.exists() else _MODE)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise


def read_state(path: Path) -> SavedState:
    """What a file holds, whatever model it is of.

    Raises:
        ConfigError: it cannot be read, is no such file, or is of another version or shape.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"has more than {_MOST_BYTES:,} bytes")
        with path.open("rb") as file:
            if file.read(len(_BEGINS)) != _BEGINS:  # or NumPy says how to load it as a pickle all the same
                raise ValueError("is no archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                header = json.loads(str(archive["header"]))
                _check_header(path, header)
                arrays = {name: archive[name] for name in ("turns", "base", "effects", "lengths")}
                return _saved(header, arrays, archive.get("judged"))
    except ConfigError:
        raise
    except OSError as error:
        raise _refused(path, f"cannot be read, {_reason(error)}") from error
    except Exception as error:  # whatever a damaged archive has NumPy raise
        raise _refused(path, f"is no state that radix-tlru has saved, or is damaged ({_reason(error)})") from error


def _check_header(path: Path, header: Mapping[str, Any]) -> None:
    """Raise ConfigError for a state of another version or shape."""
    if header["version"] != _VERSION:
        raise _refused(path, f"is of format {header['version']}; must be of format {_VERSION}, or a new file")
    for name, own in state_shape().items():
        if header["shape"].get(name) != own:
            raise _refused(path, f"was learned with other {name}, by another radix-tlru; must be a new file")


def _saved(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], judged: NDArray[Any] | None) -> SavedState:
    """Raises ValueError, TypeError or KeyError for what cannot have been saved. Files of before have no ``judged``."""
    _check_arrays(arrays)
    state = LearnedState(
        arrays["turns"],
        HazardModel(arrays["base"], tuple(np.split(arrays["effects"], np.cumsum(SIZES)[:-1]))),
        tuple(tuple(map(int, ending)) for ending in header["endings"]),
        _answers(header["answers"]),
        tuple((int(tokens), int(kind)) for tokens, kind in arrays["lengths"].tolist()),
        Seen(**header["seen"]),
        Verdict() if judged is None else _verdict(header, judged),
    )
    return SavedState(Origin(**header["origin"]), str(header["saved_at"]), state)


def _check_arrays(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError for an array that no learner has saved."""
    turns, base, effects, lengths = arrays["turns"], arrays["base"], arrays["effects"], arrays["lengths"]
    for name, found, kind, shape in (
        ("turns", turns, TURN, (len(turns),)),
        ("base", base, np.dtype(float), (len(BANDS),)),
        ("effects", effects, np.dtype(float), (sum(SIZES), len(SPANS))),
        ("lengths", lengths, np.dtype(np.int64), (len(lengths), 2)),
    ):
        if found.dtype != kind or found.shape != shape:
            raise ValueError(f"{name} has {found.dtype} of shape {found.shape}")
    times = turns["stamp"], turns["end"]
    wrong = {
        "turns": not all(np.isfinite(each).all() and (each <= 0.0).all() for each in times)
        or (turns["stamp"] > turns["end"]).any()
        or not (turns["superseded"] >= turns["stamp"]).all()
        or (turns["features"] >= np.array(SIZES)).any()
        or (turns["supersession"] >= SIZES[-1]).any(),
        "base": not np.isfinite(base).all(),
        "effects": not np.isfinite(effects).all(),
        "lengths": (lengths < 0).any() or (lengths[:, 1] >= KINDS).any(),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"{name} holds what cannot be")


def _answers(saved: Mapping[str, Any]) -> AnswerShares:
    """Raises ValueError or TypeError for shares that no learner has saved."""
    answers = AnswerShares(**saved)
    by_ending = tuple((bool(thought), int(ending), float(share)) for thought, ending, share in answers.by_ending)
    shares = (answers.spoken, answers.thought, answers.rewritten, answers.chains, *(share for *_, share in by_ending))
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise ValueError("answers holds what cannot be")
    return answers._replace(by_ending=by_ending)


def _verdict(header: Mapping[str, Any], judged: NDArray[Any]) -> Verdict:
    """Raises ValueError for a verdict that no learner has saved."""
    candidates, preferred = tuple(map(str, header["candidates"])), str(header["in_force"])
    if judged.dtype != np.int64 or judged.ndim != 2 or len(judged) != 1 + len(candidates):
        raise ValueError(f"judged has {judged.dtype} of shape {judged.shape}")
    if (judged < 0).any() or (judged[1:] > judged[0]).any():
        raise ValueError("judged holds what cannot be")
    if preferred not in (candidates or ("",)):
        raise ValueError(f"{preferred} is in force and no candidate")
    return Verdict(candidates, preferred, judged)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error.strerror or error if isinstance(error, OSError) else error}"


def _refused(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{FLAGS['state']} {path}: {reason}")
