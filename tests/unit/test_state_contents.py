"""What no learner has saved is refused, number by number; what one has saved is told from anything else."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radix_tlru import ConfigError
from radix_tlru.learning.age_bands import BANDS, SPANS
from radix_tlru.learning.hazard_model import HazardModel
from radix_tlru.learning.prompt_lengths import KINDS
from radix_tlru.learning.records import Supersession, Verdict
from radix_tlru.learning.reuse import AnswerShares
from radix_tlru.learning.state import LearnedState, Seen
from radix_tlru.learning.state_file import Origin, StateFile
from radix_tlru.learning.turn_features import NOTHING_KNOWN, SIZES
from radix_tlru.learning.turn_log import TurnLog
from tests.helpers.state_files import Values, changed

NOW = "2026-11-25 10:00:00+00:00"


def saved_state() -> LearnedState:
    """Of three turns: one was left at 30 s and returned at 50 s, one is silent, one is watched no more."""
    log = TurnLog()
    first = log.write_turn(NOTHING_KNOWN, 10.0)
    log.write_turn(NOTHING_KNOWN, 20.0)
    log.write_end(log.write_turn(NOTHING_KNOWN, 30.0))
    log.write_supersession(first, Supersession.LATE)
    log.write_return(first, 50.0)
    judged = np.array([[9, 9, 7], [4, 9, 0], [5, 9, 7]])
    return LearnedState(
        log.snapshot(),
        endings=((1, 2), (3,)),
        lengths=((700, 3), (80, 0)),
        seen=Seen(3, 3, 1),
        verdict=Verdict(("etlru", "lru"), "etlru", judged),
    )


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    file = StateFile(tmp_path / "state.npz", Origin("meta/llama", 16))
    file.save(saved_state(), NOW)
    return file


def refusal_of(file: StateFile) -> str:
    """Why the file is not loaded, nor checked."""
    reasons = []
    for use in (file.load, lambda: file.check(NOW)):
        with pytest.raises(ConfigError) as refused:
            use()
        reasons.append(str(refused.value).removeprefix(f"--tlru-state {file.path}: "))
    assert reasons[0] == reasons[1]
    return reasons[0]


def refused_with(file: StateFile, change: Callable[[Values], None]) -> str:
    """Why it is not, with other values."""
    changed(file, change)
    return refusal_of(file)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("turns", ("stamp", 0), -math.inf),
        ("turns", ("end", 0), math.nan),
        ("turns", ("end", 1), 1.0),  # after the newest stamp
        ("turns", ("end", 1), -31.0),  # it began at -30
        ("turns", ("superseded", 0), -41.0),  # it began at -40
        ("turns", ("superseded", 0), math.nan),
        ("turns", ("supersession", 0), SIZES[-1]),
        ("turns", ("features", 0, 0), SIZES[0]),
        ("base", (3,), math.inf),
        ("effects", (0, 0), math.nan),
        ("lengths", (0, 0), -1),
        ("lengths", (0, 1), KINDS),
        ("lengths", (0, 1), -1),
        ("judged", (1, 0), -1),
        ("judged", (2, 2), 8),  # of a prompt of 7 tokens
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_array(
    name: str, place: tuple[Any, ...], value: float, file: StateFile
) -> None:
    def change(values: Values) -> None:
        where, at = (values[name][place[0]], place[1:]) if name == "turns" else (values[name], place)
        where[at] = value

    assert refused_with(file, change) == (
        f"is no state that radix-tlru has saved, or is damaged (ValueError: {name} holds what cannot be)"
    )


@pytest.mark.parametrize("share", ["spoken", "thought", "rewritten", "chains"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_share_that_cannot_be_is_refused(share: str, value: float, file: StateFile) -> None:
    def change(values: Values) -> None:
        values["header"]["answers"][share] = value

    assert refused_with(file, change) == (
        "is no state that radix-tlru has saved, or is damaged (ValueError: answers holds what cannot be)"
    )


@pytest.mark.parametrize(
    ("name", "changed", "found"),
    [
        ("turns", lambda turns: turns["stamp"], "float64 of shape (3,)"),
        ("base", lambda base: base[1:], f"float64 of shape ({len(BANDS) - 1},)"),
        ("base", lambda base: base.astype(np.float32), f"float32 of shape ({len(BANDS)},)"),
        ("effects", lambda effects: effects[:, 1:], f"float64 of shape ({sum(SIZES)}, {len(SPANS) - 1})"),
        ("lengths", lambda lengths: lengths[:, :1], "int64 of shape (2, 1)"),
        ("lengths", lambda lengths: lengths.astype(float), "float64 of shape (2, 2)"),
        ("judged", lambda judged: judged[1:], "int64 of shape (2, 3)"),
        ("judged", lambda judged: judged[0], "int64 of shape (3,)"),
        ("judged", lambda judged: judged.astype(float), "float64 of shape (3, 3)"),
    ],
)
def test_an_array_of_another_kind_or_shape_is_refused(
    name: str, changed: Callable[[Any], Any], found: str, file: StateFile
) -> None:
    def change(values: Values) -> None:
        values[name] = changed(values[name])

    assert refused_with(file, change) == (
        f"is no state that radix-tlru has saved, or is damaged (ValueError: {name} has {found})"
    )


def test_a_policy_that_was_in_force_and_no_candidate_is_refused(file: StateFile) -> None:
    def change(values: Values) -> None:
        values["header"]["in_force"] = "belady"

    assert refused_with(file, change) == (
        "is no state that radix-tlru has saved, or is damaged (ValueError: belady is in force and no candidate)"
    )


@pytest.mark.parametrize("name", ["features", "ages", "groups of ages", "kinds of prompts"])
def test_a_state_that_was_learned_with_other_categories_is_refused_by_what_they_are_of(
    name: str, file: StateFile
) -> None:
    def change(values: Values) -> None:
        values["header"]["shape"][name].append(99)

    assert refused_with(file, change) == f"was learned with other {name}, by another radix-tlru; must be a new file"


def test_a_file_of_more_than_16_mib_is_not_read(file: StateFile) -> None:
    os.truncate(file.path, (1 << 24) + 1)
    assert refusal_of(file) == (
        "is no state that radix-tlru has saved, or is damaged (ValueError: has more than 16,777,216 bytes)"
    )


def test_whoever_may_read_the_folder_may_read_a_new_file(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new.npz", Origin("meta/llama", 16))
    file.check(NOW)
    assert file.path.stat().st_mode & 0o777 == 0o644


CHANGES: dict[str, Callable[[LearnedState], Any]] = {
    "turns": lambda state: state.turns[1:],
    "endings": lambda state: state.endings[::-1],
    "answers": lambda state: AnswerShares(rewritten=0.5),
    "lengths": lambda state: state.lengths[::-1],
    "seen": lambda state: Seen(3, 3, 2),
    "verdict": lambda state: replace(state.verdict, preferred="lru"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_states_that_differ_in_anything_have_two_digests(name: str) -> None:
    state = saved_state()
    assert state.digest == saved_state().digest
    assert replace(state, **{name: CHANGES[name](state)}).digest != state.digest


def test_states_in_which_other_turns_were_judged_have_other_digests() -> None:
    state = saved_state()
    for change in ({"judged": state.verdict.judged + 1}, {"candidates": ("etlru", "tlru")}):
        assert replace(state, verdict=replace(state.verdict, **change)).digest != state.digest


def test_states_with_other_hazards_have_other_digests() -> None:
    state = saved_state()
    base, effects = state.model.base.copy(), tuple(effect.copy() for effect in state.model.effects)
    effects[-1][0, 0] += 1.0
    assert replace(state, model=HazardModel(base, effects)).digest != state.digest
    base[0] += 1.0
    assert replace(state, model=HazardModel(base, state.model.effects)).digest != state.digest
