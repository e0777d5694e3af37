"""Prefill and decode on two servers, with a real transfer of KV and a real router: ours evicts where prompts are
computed, stock decodes, and clients are told what a server that does both would tell them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import requests

from eval.live.disaggregated import Disaggregated
from eval.live.replay.arms import Arm
from eval.live.replay.facts import facts
from eval.live.server import live_members
from radix_tlru.objective.calibration import EVERY
from tests.helpers.plugins import write_plugin
from tests.helpers.servers import (
    ALL_CHECKS,
    CHUNK,
    NEXT_PROMPT,
    POOL,
    REAL_WEIGHTS,
    TIERS,
    assert_unharmed,
    evicted,
    flags,
    total,
)
from tests.helpers.talk import ANSWER, A, B, C, Conversation, Told, crowd, histories

pytestmark = [pytest.mark.live, pytest.mark.timeout(900)]  # two servers

SLO_MS = 60
OURS = (
    *("--radix-eviction", "tlru", "--tlru-ttft-slo", str(SLO_MS)),
    *("--tlru-next-prompt-estimate", str(NEXT_PROMPT)),
)

# A server of a pair never sleeps, whatever its flags: idle, each would keep a core busy.
REST = """
import time
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def rest(*_):
    time.sleep(0.001)

def register():
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.on_idle", rest, HookType.AFTER)
"""


@pytest.fixture(scope="module")
def environment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if request.config.getoption("--cold-start"):  # as a user's
        return ALL_CHECKS
    return {**ALL_CHECKS, "PYTHONPATH": write_plugin(tmp_path_factory.mktemp("rest"), REST)}


# A pair without a host tier is below, and a server with one in `test_host_tier`. Before `pair` is up: so few servers
# run at once.
@pytest.mark.long
def test_what_comes_back_from_the_host_is_sent_on(
    weighted_model: Path, told_by_stock: Told, environment: dict[str, str]
) -> None:
    both = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS]
    with Disaggregated(
        [*both, *OURS, *TIERS], both, name="test-tiered-pair", environment=environment, grace_s=0
    ) as pair:
        told = histories(crowd(pair, [{}] * 12))
        for name in ("load_back_tokens", "tlru_splits"):
            assert total(pair.prefill, f"sglang:{name}_total") > 0, name
        for server in pair.workers:
            assert_unharmed(server, POOL)
    assert told == told_by_stock(12)


@pytest.fixture(scope="module")
def pair(weighted_model: Path, environment: dict[str, str]) -> Iterator[Disaggregated]:
    both = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS]
    with Disaggregated([*both, *OURS], both, name="test-pair", environment=environment, grace_s=0) as pair:
        yield pair
        groups = pair.process_groups
    assert [live_members(group) for group in groups] == [[], [], []]


def test_the_prefill_server_trims(pair: Disaggregated) -> None:
    pair.flush_cache()
    a, b, c = (Conversation(seed) for seed in range(3))
    assert (a.turn(pair, A), b.turn(pair, B), c.turn(pair, C)) == (0, 0, 0)
    # Answers are not cached there, so 400 tokens are too many, and A need keep no more than 2,000 + 100 - 2,048.
    assert A + B + C - POOL == 400
    assert pair.get_metrics()["sglang:tlru_splits_total"] == 1
    assert a.turn(pair, 100) == A - 400
    for server in pair.workers:
        assert_unharmed(server, POOL)


@pytest.mark.long
def test_answers_under_pressure_are_those_of_a_server_that_does_both(pair: Disaggregated, told_by_stock: Told) -> None:
    before = evicted(pair)
    told = histories(crowd(pair, [{}] * 12))
    assert evicted(pair) - before > POOL / 2
    assert told == told_by_stock(12)
    for server in pair.workers:
        assert_unharmed(server, POOL)


# Every 32nd prefill ξ is set anew, whoever had the others; the last of these times 12 turns at least have been served.
@pytest.mark.long
@pytest.mark.parametrize("turns", [EVERY + 12, 3 * EVERY])
def test_the_prefill_server_learns_its_threshold_and_what_the_transfer_takes(pair: Disaggregated, turns: int) -> None:
    before = pair.get_metrics()
    lengths = random.Random(0)
    for number in range(turns):
        Conversation(100 + number).turn(pair, lengths.randrange(50, 1_500))
    learned = pair.get_metrics()
    assert learned["sglang:tlru_requests_total"] - before["sglang:tlru_requests_total"] == turns
    assert learned["sglang:tlru_threshold_samples"] >= turns
    assert learned["sglang:tlru_alpha_ms_per_token"] > 0
    # The decode server is met, and what it is sent arrives, before a first token is out.
    assert learned["sglang:tlru_overhead_ms"] > 0


def test_hints_go_through_the_router_where_it_lets_them(pair: Disaggregated) -> None:
    with openai.OpenAI(base_url=f"{pair.base_url}/v1", api_key="none", max_retries=0) as client:

        def ask(words: str, **said: object) -> int:
            hint = {"ignore_eos": True, "tlru": said}
            reply = client.completions.create(model="default", prompt=words, max_tokens=ANSWER, extra_body=hint)
            assert reply.usage is not None
            assert reply.usage.prompt_tokens_details is not None
            return reply.usage.prompt_tokens_details.cached_tokens or 0

        pair.flush_cache()
        words = [letter * 1_000 for letter in "ab"]
        assert [ask(words[0]), ask(words[1], conversation_ends=True)] == [0, 0]
        # The router waits for the decode server, which would wait for what is refused here.
        ask("c", conversation_ends="yes")
        log = pair.prefill.log_path.read_text(errors="replace")
        assert 'served without its hints: tlru.conversation_ends "yes": must be true or false' in log
        before = evicted(pair)
        Conversation(60).turn(pair, POOL - 1_500)
        assert evicted(pair) > before
        # The least recent would have gone first.
        assert ask(words[0]) > 900 > 600 > ask(words[1])


def test_it_says_of_itself_what_the_prefill_server_says(pair: Disaggregated) -> None:
    said = facts(pair, Arm("ours", OURS))
    assert (said.pool, said.page_size, said.policy, said.replicas) == (POOL, 1, "radix_tlru", 1)
    assert (said.next_prompt_estimate, said.moves) == (NEXT_PROMPT, True)
    assert requests.get(f"{pair.base_url}/health", timeout=30).ok
