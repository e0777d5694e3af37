"""`--tlru-state` at the real cache: who loads, who saves, and when."""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from radix_tlru.learning.state import LearnedState
from radix_tlru.learning.state_file import Origin, StateFile, read_state
from radix_tlru.policy.models import Leaf
from radix_tlru.sglang.cache.radix_cache import TailRadixCache
from radix_tlru.sglang.offline import cache_params
from radix_tlru.sglang.state import SAVE_EVERY
from tests.helpers import starting_rank
from tests.helpers.caches import Driver, our_cache_with_state
from tests.helpers.runs import Run
from tests.helpers.turns import conversation

POOL, PAGE, NOW = starting_rank.POOL, starting_rank.PAGE, "2026-11-25 10:00:00+00:00"


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    file = StateFile(tmp_path / "state.npz", Origin(starting_rank.MODEL, PAGE))
    file.check(NOW)
    return file


def started(file: StateFile, *, saves: bool = True) -> TailRadixCache:
    return our_cache_with_state(cache_params(POOL, PAGE), file, saves=saves)


def serve(cache: TailRadixCache, turns: int, seed: int = 0) -> None:
    """Conversations of which some return within seconds, and the others never."""
    driver, rng = Driver(cache), random.Random(seed)
    for number in range(turns):
        name = f"{number if rng.random() < 0.5 else number - number % 7}"
        history = driver.histories.setdefault(name, [])
        history += driver.fresh(rng.randrange(20, 200))
        driver.request(history, prompt=len(history) - 5, stamp=2.0 * number)


def test_a_cache_that_is_started_again_has_its_index_from_the_first_turn_on(file: StateFile) -> None:
    first = started(file)
    serve(first, 700)
    first.release_host_resources()
    assert read_state(file.path).state.seen.turns == 700, "all of them, when the server shuts down"
    other = StateFile(file.path.with_name("other.npz"), file.origin)
    other.check(NOW)
    again, anew = started(file), started(other)
    differ = 0
    for age in (1.0, 5.0, 20.0, 60.0, 300.0):
        leaf = Leaf(0, 1_000, 1_000, 1.0, conversation(context_len=640))
        groups = [cache.tail.learner.candidates["etlru"].returns.group(leaf, age) for cache in (first, again, anew)]
        assert groups[0] == groups[1]
        differ += groups[1] != groups[2]
    assert differ > 2, "it had learned something"
    assert again.tail.learner.in_force == first.tail.learner.in_force == "lru", "it goes on as it was"


def test_what_is_in_force_is_said_of_a_run_that_goes_on_and_not_of_a_new_one(
    file: StateFile, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="radix_tlru"):
        first = started(file)
    assert "as before" not in caplog.text
    serve(first, 60)
    first.release_host_resources()
    with caplog.at_level(logging.INFO, logger="radix_tlru"):
        started(file)
    assert "radix_tlru: evicting by lru as before" in caplog.text


def test_it_is_saved_while_the_server_serves(file: StateFile) -> None:
    cache = started(file)
    serve(cache, SAVE_EVERY - 1)
    assert file.load().seen.turns == 0
    serve(cache, 1, seed=1)
    cache.tail.state.wait()
    assert file.load().seen.turns == SAVE_EVERY
    cache.release_host_resources()
    assert file.load().seen.turns == SAVE_EVERY


@pytest.mark.parametrize("before", [0, 10])
def test_turns_that_wait_to_be_recorded_when_the_server_shuts_down_are_saved(before: int, file: StateFile) -> None:
    cache = started(file)
    serve(cache, before)
    with cache.tail.step():
        serve(cache, 40, seed=1)
    assert cache.tail.learner.served.requests < before + 40
    cache.release_host_resources()
    assert read_state(file.path).state.seen.turns == before + 40


def test_what_may_be_broken_is_not_saved(file: StateFile, caplog: pytest.LogCaptureFixture) -> None:
    cache = started(file)
    serve(cache, 10)
    breaker = cache.tail.breaker
    breaker.is_armed = True
    breaker.trip("to learn", RuntimeError())
    cache.release_host_resources()
    assert read_state(file.path).state.seen.turns == 0
    assert "could not be saved" not in caplog.text, "nor is it tried"


def test_a_rank_that_does_not_save_leaves_the_file_alone(file: StateFile) -> None:
    before = file.path.read_bytes()
    cache = started(file, saves=False)
    serve(cache, SAVE_EVERY + 10)
    cache.release_host_resources()
    assert file.path.read_bytes() == before


def test_a_save_that_fails_is_said_and_tried_again(file: StateFile, caplog: pytest.LogCaptureFixture) -> None:
    cache = started(file)
    file.path.unlink()
    file.path.mkdir()
    with caplog.at_level(logging.WARNING, logger="radix_tlru"):
        serve(cache, SAVE_EVERY)
        cache.tail.state.wait()
    assert "what was learned could not be saved" in caplog.text
    file.path.rmdir()
    cache.release_host_resources()
    assert file.load().seen.turns == SAVE_EVERY


def test_a_save_begins_when_the_one_before_has_ended(file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, goes_on, saves, save = started(file), threading.Event(), list[str](), StateFile.save
    state, learner = cache.tail.state, cache.tail.learner

    def saved(file: StateFile, state: LearnedState, at: str) -> None:
        goes_on.wait()
        saves.append(at)
        save(file, state, at)

    monkeypatch.setattr(StateFile, "save", saved)
    for _ in range(3):
        state.count_turns(learner, SAVE_EVERY)
    goes_on.set()
    counts = []
    for turns in (0, 1, SAVE_EVERY - 2, 1):
        state.wait()
        counts.append(len(saves))
        state.count_turns(learner, turns)
    assert state.wait()
    assert (counts, len(saves)) == ([1, 2, 2, 2], 3), "the turns that one missed are in the next"


def test_a_server_that_has_learned_nothing_new_leaves_the_file_as_it_is(file: StateFile) -> None:
    serving, idle = started(file), started(file)
    serve(serving, 10)
    serving.release_host_resources()
    before = file.path.read_bytes()
    idle.release_host_resources()
    assert file.path.read_bytes() == before
    assert file.load().seen.turns == 10


def test_two_servers_with_one_file_are_told_so(file: StateFile, caplog: pytest.LogCaptureFixture) -> None:
    first, second = started(file), started(file)
    said = f"--tlru-state {file.path}: was written by another server meanwhile"
    with caplog.at_level(logging.WARNING, logger="radix_tlru"):
        for seed in range(2):
            serve(first, SAVE_EVERY, seed)
            first.tail.state.wait()
        file.path.unlink()
        first.tail.state.count_turns(first.tail.learner, SAVE_EVERY)
        first.tail.state.wait()
        assert said not in caplog.text, "it wrote it itself, or nobody did"
        serve(second, SAVE_EVERY)
        second.tail.state.wait()
    assert caplog.text.count(said) == 1
    assert file.load().seen.turns == SAVE_EVERY, "it is saved all the same: an older server may be on its way out"


def test_a_save_that_cannot_begin_leaves_the_policy_as_on_ranks_that_do_not_save(
    file: StateFile, caplog: pytest.LogCaptureFixture
) -> None:
    saving, other = started(file), started(file, saves=False)
    saving.tail.breaker.is_armed = True
    saving.tail.state.close(saving.tail.learner)  # its thread has ended
    with caplog.at_level(logging.WARNING, logger="radix_tlru"):
        serve(saving, SAVE_EVERY)
    serve(other, SAVE_EVERY)
    assert "what was learned could not be saved, which is tried again later: cannot schedule new futures" in caplog.text
    assert not saving.tail.breaker.has_tripped
    assert saving.tail.counts == other.tail.counts
    assert saving.tail.counts["lru"] > POOL


def ranks(tmp_path: Path, *configs: Sequence[dict[str, Any]]) -> list[list[str]]:
    """What each of two real ranks says that begins with one of its configurations after the other."""
    words = ["-m", "tests.helpers.starting_rank"]
    both = [
        Run(tmp_path / str(number), *words, str(number), str(tmp_path / "meet"), *map(json.dumps, of_rank))
        for number, of_rank in enumerate(configs)
    ]
    said = []
    for (status, printed), of_rank in zip([one.wait() for one in both], configs, strict=True):
        assert status == 0, printed
        said.append(printed.strip().splitlines()[-len(of_rank) :])
    return said


def test_ranks_that_begin_with_one_file_and_the_same_flags_begin_alike_and_others_refuse(
    file: StateFile, tmp_path: Path
) -> None:
    cache = started(file)
    serve(cache, 50)
    cache.release_host_resources()
    kept = len(file.load().turns)
    assert kept > 10
    other, copy = tmp_path / "other.npz", tmp_path / "copy.npz"
    StateFile(other, file.origin).save(LearnedState(), NOW)
    copy.write_bytes(file.path.read_bytes())
    path = str(file.path)
    first: list[dict[str, Any]] = [
        {"state": path},
        {"state": path},
        {"state": path},
        {"threshold": 700},
        {},
        {"explain": True},
    ]
    second: list[dict[str, Any]] = [
        {"state": path},
        {"state": str(copy)},
        {"state": str(other)},
        {},
        {"policy": "tlru"},
        {},
    ]
    refusal = "--tlru-state {}: must be the same file on every rank, and is not"

    def others(policy: str, threshold: int, weight: str) -> str:
        config = f"threshold={threshold} tokens, next_prompt_estimate=20 tokens, median_weight={weight}, trim_chunk="
        return f"--radix-eviction {policy} ({config}81 tokens): must be the same on every rank, and is not"

    etlru = others("etlru", 600, "chosen")
    assert ranks(tmp_path, first, second) == [
        [f"{kept}", f"{kept}", refusal.format(path), others("etlru", 700, "chosen"), etlru, "0"],
        [f"{kept}", f"{kept}", refusal.format(other), etlru, others("tlru", 600, "0"), "0"],
    ]
