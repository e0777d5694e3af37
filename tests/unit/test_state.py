"""What was learned, in a file: a learner that begins with it predicts the same, and what is not its own is refused."""

from __future__ import annotations

import io
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from eval.caches.policies import simulated_cache
from eval.caches.simulator import SimulatedCache
from eval.traces import open_trace
from eval.traces.request import Request
from radix_tlru import Config, ConfigError
from radix_tlru.cli import main
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.state import LearnedState, Seen
from radix_tlru.learning.state_file import Origin, StateFile, read_state
from radix_tlru.policy.models import Leaf
from tests.helpers.plain_hazards import random_features
from tests.helpers.state_files import Values, changed
from tests.helpers.turns import conversation, turn

CAPACITY, PAGE, XI = 60_000, 16, 1_024
MODEL, NOW, LATER = "meta/llama", "2026-11-25 10:00:00+00:00", "2026-11-25 11:00:00+00:00"
TRACE = (
    "chat-mix:conversations=500,arrival_span_s=3000,answer_range=60/300,thought_range=200/1200,tool_probability=0.6,"
    "first_prompt_range=200/3000"
)


@pytest.fixture(scope="module")
def requests() -> list[Request]:
    return open_trace(TRACE).requests


def new_learner(learned: LearnedState | None = None) -> Learner:
    return Learner(Config("etlru", XI), CAPACITY, PAGE, learned=learned)


def cache_of(learner: Learner) -> SimulatedCache:
    return SimulatedCache(learner, CAPACITY, PAGE)


@pytest.fixture(scope="module")
def taught(requests: list[Request]) -> Learner:
    """A learner that has served the first half of the trace."""
    learner = new_learner()
    cache = cache_of(learner)
    for request in requests[: len(requests) // 2]:
        cache.request(request)
    return learner


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "state.npz", Origin(MODEL, PAGE))


@pytest.fixture
def loaded(taught: Learner, file: StateFile) -> LearnedState:
    file.save(taught.snapshot(), NOW)
    return file.load()


def returns_of(learner: Learner) -> Any:
    return learner.candidates["etlru"].returns


def test_a_learner_that_begins_with_a_state_predicts_the_rates_of_the_one_that_saved_it(
    taught: Learner, loaded: LearnedState
) -> None:
    again, random = new_learner(loaded), Random(0)
    stranger = new_learner()
    differ = 0
    for _ in range(200):
        known, age = conversation(stamp=0.0), 2.0 ** random.uniform(0, 14)
        known.features = random_features(random)
        leaf = Leaf(0, 1_000, 1_000, 1.0, known)
        group = taught._returns.group(leaf, age)
        assert again._returns.group(leaf, age) == group
        differ += stranger._returns.group(leaf, age) != group
    assert differ > 100, "it had learned something"


def test_it_knows_the_endings_the_answers_and_how_long_prompts_are(taught: Learner, loaded: LearnedState) -> None:
    again, before = new_learner(loaded), taught._conversations
    after = again._conversations
    assert before.endings.frequent == after.endings.frequent != ()
    for number, ending in enumerate(before.endings.frequent, 1):
        assert after.endings.number_of((0, *ending) if len(ending) == 1 else ending) == number
    assert after.answers.snapshot() == before.answers.snapshot() != LearnedState().answers
    assert len(before.answers.snapshot().by_ending) > 1
    assert again._next_prompts == taught._prompts.distribution() is not None
    assert again.candidates["etlru w=0.6"].prompts.next_prompt(Leaf(0, 64, 64, 1.0), 0) is not None


def test_what_is_loaded_and_saved_again_is_the_same(taught: Learner, loaded: LearnedState, file: StateFile) -> None:
    assert loaded.digest == taught.snapshot().digest
    file.save(new_learner(loaded).snapshot(), LATER)
    assert file.load().digest == loaded.digest
    assert read_state(file.path).saved_at == LATER


def test_a_snapshot_does_not_change_while_its_learner_goes_on(requests: list[Request]) -> None:
    learner = new_learner()
    cache = cache_of(learner)
    for request in requests[:500]:
        cache.request(request)
    state = learner.snapshot()
    digest = state.digest
    for request in requests[500:900]:
        cache.request(request)
    assert state.digest == digest != learner.snapshot().digest


def test_two_learners_that_begin_with_one_file_and_are_told_the_same_decide_alike(
    requests: list[Request], loaded: LearnedState, file: StateFile
) -> None:
    caches = [cache_of(new_learner(state)) for state in (loaded, file.load(), None)]
    found: list[list[Any]] = [[], [], []]
    for request in requests[len(requests) // 2 :]:
        for cache, decisions in zip(caches, found, strict=True):
            cached = cache.request(request)
            assert cache.learner is not None
            decisions.append((cached, cache.learner.in_force, dict(cache.evicted)))
    assert found[0] == found[1]
    one, other, anew = (returns_of(cache.learner) for cache in caches if cache.learner is not None)
    leaf = Leaf(0, 1_000, 1_000, 1.0, conversation())
    assert one.group(leaf, 100.0) == other.group(leaf, 100.0) != anew.group(leaf, 100.0)


def test_what_was_in_force_is_so_from_the_first_turn_on(
    requests: list[Request], taught: Learner, loaded: LearnedState
) -> None:
    cache = cache_of(new_learner(loaded))
    lru = simulated_cache("lru", CAPACITY, threshold=XI, page_size=PAGE)
    assert cache.learner is not None
    assert cache.learner.in_force == taught.in_force != "lru"
    following = requests[len(requests) // 2 :][:150]  # before a guard that had seen nothing would look
    assert [cache.request(request) for request in following] != [lru.request(request) for request in following]
    assert lru.evicted["lru"] > 0


def test_it_is_not_where_w_is_given(loaded: LearnedState) -> None:
    learner = Learner(Config("etlru", XI, median_weight=1.0), CAPACITY, PAGE, learned=replace_in_force(loaded, "lru"))
    assert learner.in_force == "etlru"
    assert new_learner(replace_in_force(loaded, "lru")).in_force == "lru"


def replace_in_force(state: LearnedState, name: str) -> LearnedState:
    return replace(state, verdict=replace(state.verdict, preferred=name))


def test_returns_of_a_former_run_are_not_counted_as_predicted_or_seen_in_this_one(loaded: LearnedState) -> None:
    learner = new_learner(loaded)
    returns = 0
    for number in range(800):  # two turns each, 10 s apart
        context = 640 + 64 * (number % 2)
        learner.record_turn(turn(1e9 + 10.0 * number, context, context, 500 + number // 2))
        returns += number % 2
    assert 0 < sum(group.returns for group in learner.returns_by_age) <= returns


def test_turns_conversations_and_returns_are_those_of_all_runs(taught: Learner, loaded: LearnedState) -> None:
    again = new_learner(loaded)
    for number in range(10):  # five conversations, each of which returns once
        context = 640 + 64 * (number // 5)
        again.record_turn(turn(float(number), context, context, 900 + number % 5))
    turns, conversations, returns = loaded.seen
    assert turns > conversations > 0
    assert returns > 0
    assert again.snapshot().seen == Seen(turns + 10, conversations + 5, returns + 5)


def test_the_last_turns_of_both_runs_are_remembered(
    taught: Learner, loaded: LearnedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radix_tlru.learning.turn_log._ROWS", 100)
    learner = new_learner(loaded)
    for number in range(30):
        learner.record_turn(turn(float(number), 640, 640, 900 + number))
    turns = learner.snapshot().turns
    assert len(turns) == 100
    assert turns["features"][:70].tolist() == loaded.turns["features"][-70:].tolist()
    assert (turns["stamp"][:70] == loaded.turns["stamp"][-70:] - 29.0).all(), "29 s went by since"


# ---- the file ----


def test_a_missing_file_is_created_and_one_that_is_there_stays(file: StateFile, taught: Learner) -> None:
    file.check(NOW)
    assert file.load().digest == LearnedState().digest
    file.save(taught.snapshot(), LATER)
    before = file.path.read_bytes()
    file.check(NOW)
    assert file.path.read_bytes() == before
    assert list(file.path.parent.iterdir()) == [file.path]


def test_a_save_that_fails_leaves_nothing_behind(file: StateFile) -> None:
    file.path.mkdir()
    with pytest.raises(OSError, match=r"state\.npz"):
        file.save(LearnedState(), NOW)
    assert list(file.path.parent.iterdir()) == [file.path]


def test_a_file_keeps_its_mode_when_it_is_replaced(file: StateFile) -> None:
    file.check(NOW)
    file.path.chmod(0o640)
    file.save(LearnedState(), NOW)
    assert file.path.stat().st_mode & 0o777 == 0o640


def of_version_2(values: Values) -> None:
    values["header"]["version"] = 2


def of_fewer_features(values: Values) -> None:
    values["header"]["shape"]["features"].pop()


def of_other_ages(values: Values) -> None:
    values["header"]["shape"]["ages"][1] = 5.0


def with_a_feature_too_high(values: Values) -> None:
    values["turns"]["features"][0, 1] = 200


def with_a_turn_in_the_future(values: Values) -> None:
    values["turns"]["end"][0] = 5.0


def with_no_number(values: Values) -> None:
    values["base"][3] = math.nan


def with_effects_of_another_shape(values: Values) -> None:
    values["effects"] = values["effects"][1:]


def with_a_share_above_one(values: Values) -> None:
    values["header"]["answers"]["spoken"] = 3.0


def with_a_share_of_an_ending_above_one(values: Values) -> None:
    values["header"]["answers"]["by_ending"] = [[True, 1, 1.5]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_version_2, "is of format 2; must be of format 1, or a new file"),
        (of_fewer_features, "was learned with other features, by another radix-tlru; must be a new file"),
        (of_other_ages, "was learned with other ages, by another radix-tlru; must be a new file"),
        (with_a_feature_too_high, "is no state that radix-tlru has saved, or is damaged (ValueError: turns holds what"),
        (with_a_turn_in_the_future, "is no state that radix-tlru has saved, or is damaged (ValueError: turns holds"),
        (
            with_no_number,
            "is no state that radix-tlru has saved, or is damaged (ValueError: base holds what cannot be)",
        ),
        (
            with_effects_of_another_shape,
            "is no state that radix-tlru has saved, or is damaged (ValueError: effects has",
        ),
        (with_a_share_above_one, "is no state that radix-tlru has saved, or is damaged (ValueError: answers holds"),
        (with_a_share_of_an_ending_above_one, "is no state that radix-tlru has saved, or is damaged (ValueError: answ"),
    ],
)
def test_a_state_of_another_release_or_a_wrong_one_is_refused_by_name(
    change: Callable[[Values], None], message: str, loaded: LearnedState, file: StateFile
) -> None:
    changed(file, change)
    assert_refused(file, message)


def test_a_state_that_says_nothing_by_ending_is_one_of_before(loaded: LearnedState, file: StateFile) -> None:
    def before_shares_by_ending(values: Values) -> None:
        for name in ("by_ending", "chains"):
            del values["header"]["answers"][name]

    changed(file, before_shares_by_ending)
    assert file.load().answers == loaded.answers._replace(by_ending=(), chains=0.0)


def test_a_state_that_says_nothing_of_what_is_in_force_is_one_of_before(loaded: LearnedState, file: StateFile) -> None:
    def before_verdicts(values: Values) -> None:
        del values["judged"], values["header"]["candidates"], values["header"]["in_force"]

    changed(file, before_verdicts)
    found = file.load()
    assert replace(found, verdict=loaded.verdict).digest == loaded.digest
    assert new_learner(found).in_force == "lru"


def assert_refused(file: StateFile, message: str) -> None:
    for use in (file.load, lambda: file.check(NOW)):
        with pytest.raises(ConfigError) as refused:
            use()
        assert str(refused.value).startswith(f"--tlru-state {file.path}: {message}")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("origin", "message"),
    [
        (Origin("other/model", PAGE), f"was learned with the model {MODEL}; must be of other/model, or a new file"),
        (Origin(MODEL, 64), f"was learned with the page size {PAGE}; must be of 64, or a new file"),
    ],
)
def test_a_state_of_another_server_is_refused_by_name(
    origin: Origin, message: str, loaded: LearnedState, file: StateFile
) -> None:
    assert_refused(StateFile(file.path, origin), message)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "ValueError: is no archive)"),
        (b"once upon a time", "ValueError: is no archive)"),
        (pickle.dumps({"turns": 1}), "ValueError: is no archive)"),
        (b"PK\x03\x04", "BadZipFile: File is not a zip file)"),
    ],
)
def test_what_is_no_state_is_refused_in_one_line(content: bytes, reason: str, file: StateFile) -> None:
    file.path.write_bytes(content)
    assert_refused(file, f"is no state that radix-tlru has saved, or is damaged ({reason}")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.999])
def test_a_file_that_was_cut_off_is_refused(keep: float, loaded: LearnedState, file: StateFile) -> None:
    content = file.path.read_bytes()
    file.path.write_bytes(content[: int(len(content) * keep)])
    assert_refused(file, "is no state that radix-tlru has saved, or is damaged (")


class Intruder:
    """When it is unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, (str(self.folder),)


def test_nothing_in_a_file_is_run(file: StateFile, tmp_path: Path) -> None:
    intruder = np.empty(1, object)
    intruder[0] = Intruder(tmp_path / "intruded")
    member = io.BytesIO()
    np.save(member, intruder, allow_pickle=True)
    with zipfile.ZipFile(file.path, "w") as archive:
        archive.writestr("header.npy", member.getvalue())
    assert_refused(file, "is no state that radix-tlru has saved, or is damaged (ValueError: Object arrays cannot be")
    assert not (tmp_path / "intruded").exists()


# ---- radix-tlru state FILE ----


def test_the_console_script_says_what_is_in_a_file(
    loaded: LearnedState, file: StateFile, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", str(file.path)]) == 0
    said = capsys.readouterr().out
    seen = loaded.seen
    for part in (
        MODEL,
        NOW,
        f"{seen.turns:,}",
        f"{seen.conversations:,}",
        f"{seen.returns:,}",
        f"{len(loaded.turns):,}",
        f"in force  {loaded.verdict.preferred}, judged by the last 2,000 sampled turns",
    ):
        assert part in said
    assert len(said.splitlines()) <= 8


def test_the_console_script_says_of_what_is_no_state_that_it_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["state", str(tmp_path / "none")]) == 2
    err = capsys.readouterr().err
    assert (
        err == f"radix-tlru: error: {tmp_path / 'none'}: cannot be read, FileNotFoundError: No such file or directory\n"
    )
