"""SGLang's own server kits, pointed at servers with our eviction.

Left aside are those that grade what a model says, which random weights cannot pass: the accuracy kits (`eval_accuracy`,
`lm_eval`, `mmmu_vlm`, GSM8K in `unified_radix_cache_kit`) and those of formats and stops (`json`, `regex`, `ebnf`,
`reasoning`, `matched_stop`). Nothing of the kits used here needs a trained model.
"""

from __future__ import annotations

import functools
import json
import random
import unittest
from pathlib import Path

import pytest
import requests
from sglang.test.kits import radix_cache_server_kit
from sglang.test.kits.abort_timeout_kit import AbortAllMixin
from sglang.test.kits.basic_api_contract_kit import BasicAPIContractMixin
from sglang.test.kits.cache_hit_kit import run_multiturn_cache_hit_test
from sglang.test.kits.pause_generation_kit import PauseResumeInPlaceMixin
from sglang.test.kits.prefix_cache_branching_kit import PrefixCacheBranchingMixin

from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.models import small_model
from tests.helpers.servers import PAGE_SIZE, PAGED_POOL, POOL, assert_all_is_given_back, complaints

pytestmark = pytest.mark.live

SERVERS = pytest.mark.parametrize(
    ("name", "pool", "page_size"),
    [pytest.param("our_server", POOL, 1, marks=pytest.mark.long), ("paged_server", PAGED_POOL, PAGE_SIZE)],
)


@pytest.fixture
def server(name: str, request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(name)
    return found


def evicted(server: Server) -> float:
    """Tokens evicted since the server started, in both phases."""
    return server.get_metrics()["sglang:tlru_evicted_tokens_total"]


def pages(tokens: int, page_size: int) -> int:
    """The whole pages that hold the first of so many tokens, in tokens."""
    return tokens // page_size * page_size


@SERVERS
def test_radix_attention(server: Server, pool: int, page_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 requests at once that branch off each other at random; some 10 times the pool."""
    grow = functools.partial(radix_cache_server_kit.gen_radix_tree, num_nodes=100, chunk_len=128)
    asked: list[int] = []

    def tree() -> list[dict[str, object]]:
        random.seed(0)
        nodes = grow()
        for node in nodes:
            node["input_ids"] = [token % VOCABULARY for token in node["input_ids"]]  # the kit's model knows 32,000
        asked.extend(len(node["input_ids"]) + node["decode_len"] for node in nodes)
        return nodes

    monkeypatch.setattr(radix_cache_server_kit, "gen_radix_tree", tree)
    before = evicted(server)
    radix_cache_server_kit.run_radix_attention_test(server.base_url)
    assert max(asked) < pool < sum(asked) / 5
    assert evicted(server) - before > pool
    assert_all_is_given_back(server, pool)


@SERVERS
def test_multi_turn_cache_hits(server: Server, pool: int, page_size: int, tmp_path: Path) -> None:
    """4 clients of 3 turns, which just fit into the pool: the kit wants each turn to find all of the one before it."""
    clients, prompt, answer = 4, 256, 32
    histories = [prompt + answer - 1, 2 * (prompt + answer) - 1]  # cached by the turns before the second and the third
    assert clients * (3 * (prompt + answer) - 1) < pool
    texts = tmp_path / "texts.json"  # of ShareGPT's form; each begins with another letter, so they share nothing
    texts.write_text(json.dumps([{"conversations": [{"value": chr(65 + i) * prompt}] * 2} for i in range(2 * clients)]))
    found = run_multiturn_cache_hit_test(
        server.base_url,
        str(small_model()),
        num_clients=clients,
        num_rounds=3,
        request_length=prompt,
        output_length=answer,
        dataset_path=str(texts),
    )
    cached = clients * sum(pages(history, page_size) for history in histories)
    asked = clients * (prompt + (2 * prompt + answer) + (3 * prompt + 2 * answer))
    assert found["overall"] == {
        "cache_hit_rate": pytest.approx(cached / asked),  # 0.53
        "total_prompt_tokens": asked,
        "total_cached_tokens": cached,
    }


@SERVERS
def test_a_branching_point_is_found_and_stays(server: Server, pool: int, page_size: int) -> None:
    """The prompts of `prefix_cache_branching_kit`, and what full attention makes of them.

    Its own test wants the second prompt to find nothing, as in a state-space model, whose cache holds no state for a
    point that nothing has branched off yet. Here every token is such a point. Two more prompts overfill the pool.
    """

    class Kit(PrefixCacheBranchingMixin):
        base_url = server.base_url

    server.flush_cache()
    shared, endings = "hi" * 257, ("this", "here", "that", "then", "thus")
    assert len(shared) + len("this" * 256) * len(endings) > pool
    before = evicted(server)
    found = [Kit.send_request_helper(shared + ending * 256)["meta_info"]["cached_tokens"] for ending in endings]
    assert evicted(server) > before
    # Endings that begin alike share more; "here" begins as none before it, "that" as "this": "th", and so on.
    alike = [0, len(shared), len(shared + "th"), len(shared + "th"), len(shared + "th")]
    assert found == [pages(tokens, page_size) for tokens in alike]


class Kits(BasicAPIContractMixin, AbortAllMixin, PauseResumeInPlaceMixin):
    """Kits of one class, whose tests are theirs. Together, their requests want more than the pool holds."""

    pause_num_requests = 8
    pause_max_new_tokens = 600  # so that none is done after the second that the kit gives them before it pauses
    pause_duration = 1
    server_name: str
    pool: int

    @pytest.fixture(autouse=True)
    def point_at_the_server(self, request: pytest.FixtureRequest) -> None:
        self.server: Server = request.getfixturevalue(self.server_name)
        self.base_url, self.process = self.server.base_url, self.server._process

    def tearDown(self) -> None:
        requests.post(f"{self.base_url}/continue_generation", json={}, timeout=60)  # a test may have failed in a pause
        assert_all_is_given_back(self.server, self.pool)
        assert complaints(self.server) == []


class TestKits(Kits, unittest.TestCase):
    server_name, pool = "our_server", POOL


@pytest.mark.long
class TestPagedKits(Kits, unittest.TestCase):
    server_name, pool = "paged_server", PAGED_POOL
