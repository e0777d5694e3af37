"""The file of a state on a disk: where it can be written, and where it turns out that it cannot."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from radix_tlru import ConfigError
from radix_tlru.learning.state import LearnedState
from radix_tlru.learning.state_file import Origin, StateFile, read_state

ORIGIN, NOW, LATER = Origin("meta/llama", 16), "2026-11-25 10:00:00+00:00", "2026-11-25 11:00:00+00:00"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert_cannot_be_written(tmp_path / "nowhere" / "state.npz", "FileNotFoundError: No such file or directory")
    (tmp_path / "file").touch()
    assert_cannot_be_written(tmp_path / "file" / "state.npz", "NotADirectoryError: Not a directory")


def test_a_file_that_can_be_opened_and_not_be_replaced_is_refused(tmp_path: Path) -> None:
    """Here for want of room; so is one that is mounted by itself, or another user's in a folder for all."""
    file = StateFile(tmp_path / "state.npz", ORIGIN)
    file.save(LearnedState(), NOW)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        assert_cannot_be_written(file.path, "OSError: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert read_state(file.path).saved_at == NOW, "what was there still is"
    assert [*tmp_path.iterdir()] == [file.path]


def test_a_link_stays_one_and_what_it_leads_to_is_saved(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    kept, link = tmp_path / "volume" / "kept.npz", tmp_path / "state.npz"
    link.symlink_to(kept)
    file = StateFile(link, ORIGIN)
    file.check(NOW)
    assert kept.is_file(), "it is created where the link leads to"
    file.save(LearnedState(), LATER)
    assert link.is_symlink()
    assert read_state(kept).saved_at == LATER
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.npz", "state.npz", "volume"]


def assert_cannot_be_written(path: Path, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        StateFile(path, ORIGIN).check(NOW)
    assert str(refused.value) == f"--tlru-state {path}: cannot be written, {reason}"
