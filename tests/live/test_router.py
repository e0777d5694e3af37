"""Servers behind SGLang's real router: its rule is the simulator's, and the fleet is run and stopped as one server."""

from __future__ import annotations

import math
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path as File
from random import Random
from typing import Any, NamedTuple

import openai
import pytest
import requests

import eval.live.router
import eval.live.server
from eval.caches.prefix_aware import CacheAware, PrefixAware
from eval.live.replay.arms import Arm
from eval.live.replay.facts import facts
from eval.live.router import Router
from eval.live.running_server import ServerError
from eval.live.server import free_port, live_members
from tests.helpers.random_traces import branching
from tests.helpers.servers import CHUNK, NEXT_PROMPT, POOL, REAL_WEIGHTS, THRESHOLD, flags
from tests.helpers.stand_ins import LATE, late_at_first

# A worker that says which one it is; it keeps requests for one token until it is told to let them go.
STAND_IN = """
import asyncio, sys
from aiohttp import web
port, held, gate = int(sys.argv[-1]), 0, asyncio.Event()
async def generate(request):
    global held
    if (await request.json())["sampling_params"]["max_new_tokens"] == 1:
        held += 1
        await gate.wait()
    return web.json_response({"text": str(port)})
async def release(request):
    global held, gate
    gate.set()
    held, gate = 0, asyncio.Event()
    return web.Response()
async def anything(request):
    return web.json_response({"model_path": "m", "served_model_name": "m", "held": held})
app = web.Application()
app.add_routes([web.post("/generate", generate), web.post("/release", release), web.route("*", "/{any:.*}", anything)])
web.run_app(app, host="127.0.0.1", port=port, print=None)
"""
DYING = "import sys; print('no such model', flush=True); sys.exit(3)"


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


class Fleet:
    """What the real router does with texts, and how many requests it knows each worker to be busy with."""

    def __init__(self, router: Router, pool: ThreadPoolExecutor) -> None:
        self.router, self._pool = router, pool
        self.urls = [worker["url"] for worker in self._workers()]  # in the order that ties are broken by
        self.in_flight = [0] * len(self.urls)
        self._held: list[Future[requests.Response]] = []

    def _workers(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = requests.get(f"{self.router.base_url}/workers", timeout=10).json()["workers"]
        return workers

    def _post(self, text: str, tokens: int) -> requests.Response:
        body = {"text": text, "sampling_params": {"max_new_tokens": tokens}}
        return requests.post(f"{self.router.base_url}/generate", json=body, timeout=120)

    def _held_by_worker(self) -> list[int]:
        return [requests.get(f"{url}/held", timeout=10).json()["held"] for url in self.urls]

    def send(self, text: str) -> int:
        """To which worker a request went that is answered at once."""
        port = self._post(text, 2).json()["text"]
        self._settle()
        return next(index for index, url in enumerate(self.urls) if url.endswith(f":{port}"))

    def hold(self, text: str) -> int:
        """To which worker a request went that stays there."""
        before = self._held_by_worker()
        self._held.append(self._pool.submit(self._post, text, 1))
        until(lambda: sum(self._held_by_worker()) > sum(before))
        after = self._held_by_worker()
        (went,) = (index for index in range(len(before)) if after[index] > before[index])
        self.in_flight[went] += 1
        self._settle()
        return went

    def release(self) -> None:
        for url in self.urls:
            requests.post(f"{url}/release", timeout=10)
        assert all(request.result().ok for request in self._held)
        self._held.clear()
        self.in_flight = [0] * len(self.urls)
        self._settle()

    def _settle(self) -> None:
        until(lambda: [worker["load"] for worker in self._workers()] == self.in_flight)

    def evict(self) -> list[int]:
        """Wait until the router has evicted; returns the characters that it knows of each worker then."""

        def log() -> str:
            return re.sub(r"\x1b\[[0-9;]*m", "", self.router.log_path.read_text(errors="replace"))

        done = "Cache eviction completed"
        before = log().count(done)
        until(lambda: log().count(done) >= before + 2)  # one of them may have begun before
        evicted = log().rpartition(done)[0].rpartition("After eviction")[2]
        sizes = dict(re.findall(r"Tenant: (\S+), Size: (\d+)", evicted))
        return [int(sizes[url]) for url in self.urls]


def letters(random: Random, longest: int) -> Iterator[str]:
    """Texts of a's and b's that begin as some text before them, or not."""
    said = [""]
    while True:
        before = random.choice(said)
        said.append(
            before[: random.randint(0, len(before))] + "".join(random.choices("ab", k=random.randint(1, longest)))
        )
        yield said[-1]


@pytest.mark.usefixtures("logs_in_tmp")
@pytest.mark.long
def test_the_simulated_rule_decides_as_the_real_router() -> None:
    settings = CacheAware(0.5, balance_abs_threshold=2, eviction_interval_s=math.inf, max_tree_tokens=12_000)
    given = ["--cache-threshold", "0.5", "--balance-abs-threshold", "2", "--max-tree-size", "12000"]
    given += ["--eviction-interval-secs", "2", "--log-level", "debug"]  # which logs each eviction
    random = Random(5)
    stream = letters(random, longest=20)
    # Three long ones for three workers: who is sent two of them is made to forget the first, and no one anything else.
    long = [letter * 9_000 for letter in "xyz"]
    texts = [*(next(stream) for _ in range(150)), *long]
    evict_before = len(texts)
    texts += [*(next(stream) for _ in range(20)), *reversed(long)]
    # A character is a unit, so tokens here are characters there. The model evicts when it is told to.
    prompts = branching(texts, [len(text) for text in texts], whole_messages=False)
    model = PrefixAware(settings)
    command = [sys.executable, "-c", STAND_IN]
    with (
        ThreadPoolExecutor(64) as pool,
        Router([], workers=3, command=command, router_flags=given) as router,
    ):
        fleet = Fleet(router, pool)
        reasons: set[str] = set()
        for number, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
            if number == evict_before:
                before = dict(model.tree.sizes)
                model.tree.evict(settings.max_tree_tokens)
                assert fleet.evict() == [model.tree.sizes[worker] for worker in range(3)]
                assert model.tree.sizes != before
            if random.random() < 0.15 or number >= len(texts) - len(long):
                fleet.release()
            loads = list(fleet.in_flight)
            expected = model.route(prompt, loads)
            went = fleet.hold(text) if random.random() < 0.4 else fleet.send(text)
            assert went == expected, (number, text[:100], loads)
            reasons.add("prefix" if went != loads.index(min(loads)) else "load")
        fleet.release()
        assert reasons == {"prefix", "load"}
        groups = router.process_groups
    assert len(groups) == 1 + 3
    assert [live_members(group) for group in groups] == [[]] * 4


@pytest.mark.usefixtures("logs_in_tmp")
def test_a_fleet_with_a_worker_that_dies_shows_its_log_and_leaves_no_process() -> None:
    router = Router([], workers=2, command=[sys.executable, "-c", DYING])
    with pytest.raises(ServerError, match=r"ended with status 3 .*\n(.*\n)*no such model"), router:
        pytest.fail("the block must not be entered")
    assert live_members(router.workers[0].process_group) == []


@pytest.mark.usefixtures("logs_in_tmp")
def test_a_part_whose_port_was_taken_is_started_on_another_and_routed_to(
    tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = late_at_first(LATE, STAND_IN, tmp_path / "mark")
    router = Router([], workers=2, command=[sys.executable, "-c", late])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])  # the router's metrics at its first start

        def port(count: int = 1) -> int:
            return next(ports, None) or free_port(count)

        monkeypatch.setattr(eval.live.router, "free_port", port)
        with router:
            workers = requests.get(f"{router.base_url}/workers", timeout=10).json()["workers"]
            assert {each["url"] for each in workers} == {worker.base_url for worker in router.workers}
        assert (tmp_path / "mark").exists()
        assert next(ports, None) is None
    assert [live_members(group) for group in router.process_groups] == [[], [], []]


@pytest.mark.usefixtures("logs_in_tmp")
def test_a_router_that_cannot_start_takes_its_workers_with_it() -> None:
    router = Router([], workers=1, policy="crystal_ball", command=[sys.executable, "-c", STAND_IN])
    with pytest.raises(ServerError, match="crystal_ball"), router:
        pytest.fail("the block must not be entered")
    assert [live_members(group) for group in router.process_groups] == [[], []]


def test_a_fleet_of_no_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="workers 0: must be 1 or more"):
        Router([], workers=0)


class Served(NamedTuple):
    prompt: int  # tokens
    cached: int  # of them


class Chat:
    """A conversation over chat completions, at a fleet."""

    def __init__(self, client: openai.OpenAI, topic: str) -> None:
        self._client, self._topic = client, topic
        self._messages: list[dict[str, str]] = []

    def ask(self, tokens: int) -> openai.Stream[Any]:
        self._messages.append({"role": "user", "content": f"{self._topic} ".ljust(400, self._topic[0])})
        stream: openai.Stream[Any] = self._client.chat.completions.create(
            model="default",
            messages=self._messages,  # type: ignore[arg-type]
            max_tokens=tokens,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        return stream

    def turn(self) -> Served:
        """The next turn."""
        *chunks, last = self.ask(8)
        answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self._messages.append({"role": "assistant", "content": answer})
        return Served(last.usage.prompt_tokens, last.usage.prompt_tokens_details.cached_tokens)


def requests_served(router: Router) -> list[int]:
    return [int(worker.get_metrics().get("sglang:num_requests_total", 0)) for worker in router.workers]


@pytest.mark.live
@pytest.mark.timeout(900)  # two servers
def test_conversations_behind_the_router_hit_on_two_workers_with_our_eviction(weighted_model: File) -> None:
    ours = ("--radix-eviction", "tlru", "--tlru-threshold", str(THRESHOLD))
    given = [
        *flags(weighted_model, POOL, 1, CHUNK),
        *REAL_WEIGHTS,
        *ours,
        "--tlru-next-prompt-estimate",
        str(NEXT_PROMPT),
    ]
    with Router(given, workers=2, name="test-router", grace_s=0) as router:
        router.flush_cache()
        before = requests_served(router)
        client = openai.OpenAI(base_url=f"{router.base_url}/v1", api_key="none")
        # While the first worker is busy with an answer that is long in coming, what is new goes to the second.
        with Chat(client, "long").ask(2_000) as busy:
            next(iter(busy))
            elsewhere = Chat(client, "elsewhere")
            assert_later_turns_hit([elsewhere.turn() for _ in range(3)])
        home = Chat(client, "long")
        turns = [home.turn() for _ in range(3)]
        assert_later_turns_hit(turns)
        assert turns[0].cached >= turns[0].prompt - 1  # the prompt that the busy one was busy with

        def served() -> list[int]:
            return [after - earlier for after, earlier in zip(requests_served(router), before, strict=True)]

        until(lambda: sum(served()) >= 1 + 3 + 3)  # the first counts once its worker has seen that its client left
        assert sorted(served()) == [3, 4]

        # Token ids go through the router as well as text.
        body = {"input_ids": list(range(100)), "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        for expected in (0, 99):
            said = requests.post(f"{router.base_url}/generate", json=body, timeout=60).json()["meta_info"]
            assert said["cached_tokens"] == expected

        # Of the headers of a client the router passes on a few, and one of them is for hints.
        for header, status in (("X-TLRU", 200), ("X-Request-Id-TLRU", 400)):
            said = requests.post(f"{router.base_url}/generate", json=body, headers={header: "no JSON"}, timeout=60)
            assert said.status_code == status, said.text

        each = [worker.get_metrics() for worker in router.workers]
        assert [metrics["sglang:tlru_threshold_tokens"] for metrics in each] == [THRESHOLD, THRESHOLD]
        leaves = [metrics["sglang:tlru_evictable_leaves"] for metrics in each]
        assert min(leaves) > 0
        assert router.get_metrics()["sglang:tlru_evictable_leaves"] == sum(leaves)
        said = facts(router, Arm("ours", ours))
        assert (said.policy, said.threshold, said.replicas, said.pool) == ("radix_tlru", THRESHOLD, 2, 2 * POOL)
        info = router.server_info()
        assert [worker["page_size"] for worker in info["workers"]] == [info["page_size"]] * 2 == [1, 1]

        router.flush_cache()
        assert router.get_metrics()["sglang:tlru_evictable_leaves"] == 0
        assert home.turn().cached == 0
        client.close()
        groups = router.process_groups
    assert [live_members(group) for group in groups] == [[], [], []]


def assert_later_turns_hit(turns: Sequence[Served]) -> None:
    """A turn finds at least the whole prompt of the turn before."""
    for earlier, later in pairwise(turns):
        assert earlier.prompt <= later.cached < later.prompt
