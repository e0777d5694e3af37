"""Two real ranks of one server evict alike, step by step; and if one does not, that is found."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from eval.live.replay.arms import Arm
from eval.live.replay.facts import facts
from eval.live.server import Server, cpu_flags, ensure_demo_model
from tests.helpers.models import QWEN, small_model, write_weighted_model
from tests.helpers.plugins import slow, write_plugin
from tests.helpers.ranks import CLIENTS, ENVIRONMENT, THRESHOLD, journals, logged, replay, settled
from tests.helpers.servers import POOL, TIERS

pytestmark = pytest.mark.live

MANY = int(os.environ.get("RANKS_REQUESTS", "400"))
PER_TOKEN_MS = 0.1
"""That prefills sleep where their times tell ξ: however busy the machine is, long ones take longer."""

ASKED = pytest.mark.parametrize("asked", [80, pytest.param(MANY, marks=pytest.mark.long)])


def two_ranks(name: str, *more: str, **environment: str) -> Server:
    etlru = ("--tp", "2", "--radix-eviction", "etlru", "--tlru-median-weight", "0.05")
    ours = (*etlru, "--tlru-threshold", "600", "--tlru-next-prompt-estimate", "100")
    flags = [*cpu_flags(small_model(), POOL), *ours, *more]
    return Server(flags, name=name, environment={**ENVIRONMENT, **environment}, grace_s=0)


@ASKED
@pytest.mark.parametrize(
    "more",
    [pytest.param((), id="", marks=pytest.mark.long), pytest.param(("--enable-session-radix-cache",), id="sessions")],
)
def test_two_ranks_evict_the_same_at_every_step(more: tuple[str, ...], asked: int) -> None:
    with two_ranks("test-ranks", *more) as server:
        results = asyncio.run(replay(server, asked))
        assert [result.error for result in results] == [None] * (asked // CLIENTS * CLIENTS)
        assert any(result.cached_tokens for result in results)
        first, second = settled(server)
        assert server.alive()
        said = facts(server, Arm("ours", tuple(server.flags)))
    assert (said.eviction, said.median_weight, said.learns, said.moves) == ("etlru", 0.05, False, False)
    assert first == second
    assert len(first) > asked / 4
    assert int(first[-1].split()[1].rstrip(":")) == len(first)
    log = server.log_path.read_text(errors="replace")
    assert "Rank consensus checker is enabled" in log
    assert "Found rank divergence" not in log
    assert "radix_tlru: evicting by etlru" in log
    assert "without a stamp" not in log


@pytest.mark.long
@pytest.mark.parametrize("asked", [120, MANY])
@pytest.mark.parametrize("more", [pytest.param((), id=""), pytest.param(TIERS, id="with a host tier")])
def test_two_pipeline_stages_evict_the_same_by_the_threshold_that_the_first_has_learned(
    more: tuple[str, ...], asked: int, tmp_path: Path
) -> None:
    flags = [*cpu_flags(ensure_demo_model(), POOL), *more, "--pp-size", "2", "--radix-eviction", "tlru"]
    flags += ["--tlru-median-weight", "0.05", "--prefill-max-requests", "1"]  # or a busy machine prefills them in few
    environment = {**ENVIRONMENT, "PYTHONPATH": write_plugin(tmp_path, slow(PER_TOKEN_MS))}
    with Server([*flags, "--tlru-ttft-slo", "60"], name="test-stages", environment=environment, grace_s=0) as server:
        results = asyncio.run(replay(server, asked))
        assert [result.error for result in results] == [None] * (asked // CLIENTS * CLIENTS)
        first, second = settled(server)
        assert server.alive()
    assert first == second
    assert len(first) > asked / 4
    log = server.log_path.read_text(errors="replace")
    learned = logged(server, THRESHOLD)
    assert learned[0], "there were more than 32 prefills"
    assert learned[0] == learned[1]
    assert "Found rank divergence" not in log


@pytest.mark.long  # others here have ranks of one replica, and those of test_shapes.py replicas of one rank
@pytest.mark.parametrize("asked", [MANY])
def test_ranks_of_one_replica_of_attention_evict_the_same_by_a_threshold_of_their_own(
    tmp_path: Path, asked: int
) -> None:
    model = write_weighted_model(tmp_path / "qwen", seed=0, **QWEN)
    replicas = ("--tp-size", "4", "--dp-size", "2", "--enable-dp-attention")
    flags = [*cpu_flags(model, POOL), *replicas, "--radix-eviction", "etlru", "--tlru-ttft-slo", "60"]
    cores = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1|0|1"}
    with Server(flags, name="test-attention-ranks", environment=ENVIRONMENT | cores, grace_s=0) as server:
        results = asyncio.run(replay(server, asked))
        assert [result.error for result in results] == [None] * (asked // CLIENTS * CLIENTS)
        evictions = settled(server, "0123")
        assert server.alive()
    assert evictions[0] == evictions[1] != evictions[2] == evictions[3]
    assert min(map(len, evictions)) > asked / 8
    log = server.log_path.read_text(errors="replace")
    learned = logged(server, THRESHOLD, "0123")
    assert learned[0], "there were more than 32 prefills"
    assert learned[0] == learned[1] != learned[2] == learned[3]
    assert "Found rank divergence" not in log


FAULT = '''
from radix_tlru.sglang.cache.component import TailComponent

honest = TailComponent.next_victim


def next_victim(self, missing):
    """From its 40th eviction on rank 1 takes a token more than it should, if the leaf has one."""
    import torch

    self.asked = getattr(self, "asked", 0) + 1
    return honest(self, missing + (self.asked >= 40 and torch.distributed.get_rank() == 1))


def register():
    TailComponent.next_victim = next_victim
'''


def wait_for_the_end(server: Server) -> None:
    """Of a server that is asked for more than it will answer."""
    asyncio.run(replay(server, 120))
    deadline = time.monotonic() + 60
    while server.alive() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not server.alive()


@pytest.mark.long
def test_a_rank_that_evicts_one_token_more_is_found_out(tmp_path: Path) -> None:
    with two_ranks("test-ranks-fault", PYTHONPATH=write_plugin(tmp_path, FAULT)) as server:
        wait_for_the_end(server)
    first, second = journals(server)
    differ = next(number for number, (one, other) in enumerate(zip(first, second, strict=False), 1) if one != other)
    assert differ >= 40
    assert "Found rank divergence" in server.log_path.read_text(errors="replace")


NO_MEMORY = '''
from radix_tlru.sglang.cache.component import TailComponent

honest = TailComponent.take_victim


def no_memory(_missing):
    raise MemoryError("none left")


def take_victim(self, order, *asked):
    """The 40th victim cannot be chosen on the ranks in FAILING."""
    import os
    import torch

    self.asked = getattr(self, "asked", 0) + 1
    if self.asked == 40 and str(torch.distributed.get_rank()) in os.environ["FAILING"]:
        order.choose_victim = no_memory
    return honest(self, order, *asked)


def register():
    TailComponent.take_victim = take_victim
'''

UNCHECKED = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "0"}
"""As an operator's server, on which nobody looks whether its ranks differ."""


def stages() -> tuple[str, ...]:
    """Flags that make two stages of two ranks; of more than one layer."""
    return ("--tp", "1", "--pp-size", "2", "--model-path", str(ensure_demo_model()))


@pytest.mark.long
@pytest.mark.parametrize(
    ("failing", "in_stages"),
    [
        ("1", False),
        ("0", False),
        ("0", True),
        ("1", True),
    ],
)
def test_a_fault_on_one_rank_alone_ends_the_server_with_a_line_that_names_both(
    tmp_path: Path, failing: str, in_stages: bool
) -> None:
    environment = UNCHECKED | {"PYTHONPATH": write_plugin(tmp_path, NO_MEMORY), "FAILING": failing}
    with two_ranks("test-ranks-alone", *(stages() if in_stages else ()), **environment) as server:
        wait_for_the_end(server)
    log = server.log_path.read_text(errors="replace")
    assert f"radix_tlru: rank {failing} alone failed to choose what goes (MemoryError('none left'))" in log
    assert "Received data size doesn't match" not in log, "no batches of two shapes met"


@pytest.mark.long
@pytest.mark.parametrize("in_stages", [False, True])
def test_a_fault_on_all_ranks_leaves_all_of_them_with_lru(tmp_path: Path, in_stages: bool) -> None:
    environment = {"PYTHONPATH": write_plugin(tmp_path, NO_MEMORY), "FAILING": "01"}
    with two_ranks("test-ranks-all", *(stages() if in_stages else ()), **environment) as server:
        results = asyncio.run(replay(server, 120))
        assert [result.error for result in results] == [None] * 120
        first, second = settled(server)
        assert server.alive()
    assert first == second
    assert len(first) > 40
    log = server.log_path.read_text(errors="replace")
    assert log.count("to choose what goes failed; from now on this cache evicts by lru") == 2
    assert "Found rank divergence" not in log


@pytest.mark.long
def test_a_fault_on_a_rank_that_shares_its_replica_with_none_leaves_that_one_with_lru(tmp_path: Path) -> None:
    model = write_weighted_model(tmp_path / "qwen", seed=0, **QWEN)
    replicas = ("--model-path", str(model), "--dp-size", "2", "--enable-dp-attention")
    environment = {"PYTHONPATH": write_plugin(tmp_path, NO_MEMORY), "FAILING": "1"}
    with two_ranks("test-ranks-replica", *replicas, **environment) as server:
        results = asyncio.run(replay(server, 240))
        assert [result.error for result in results] == [None] * 240
        assert server.alive()
        first, second = journals(server)
    assert min(len(first), len(second)) > 40
    log = server.log_path.read_text(errors="replace")
    assert log.count("to choose what goes failed; from now on this cache evicts by lru") == 1
