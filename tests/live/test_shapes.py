"""Every shape of cache that only a server shows: adapters, tenants, priorities, KV events, mixed chunks, replicas.

A shape's answers must be those of stock, though other histories were evicted on the way; and nothing may be lost. The
shapes that are refused are in `test_flags.py` and `test_models.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from eval.live.server import Server, free_port
from radix_tlru.cli import main
from radix_tlru.tools.prompts import Prompt
from radix_tlru.tools.scrape import read
from radix_tlru.tools.warm import Warmer
from tests.helpers.kv_subscriber import Subscriber
from tests.helpers.models import QWEN, write_adapter, write_weighted_model
from tests.helpers.servers import (
    NEXT_PROMPT,
    OURS,
    PAGE_SIZE,
    PAGED_POOL,
    POOL,
    PRIORITY,
    THRESHOLD,
    UNCHECKED,
    assert_unharmed,
    evicted,
    serve,
)
from tests.helpers.talk import (
    ANSWER,
    Conversation,
    Fields,
    Told,
    ask,
    ask_all,
    body,
    cached,
    crowd,
    have_begun,
    histories,
)

pytestmark = pytest.mark.live

# ---- tenants: on `our_server` and `stock_server` ----

TENANTS: tuple[Fields, ...] = ({"cache_salt": "a"}, {"cache_salt": "b"}, {"extra_key": "a"})
"""Namespaces: what a tenant says to share nothing with others. A key and a salt of one name are two."""

SAID, OTHERS = 1_000, 1_900
CACHED = SAID + ANSWER - 1
BUDGET = CACHED + NEXT_PROMPT - THRESHOLD


def tenants_after_pressure(server: Server, who: Fields) -> int:
    """Three tenants say the same, another says much; how much of what one of them said is found then."""
    server.flush_cache()
    same = Conversation(20).ask(SAID)
    said = [ask(server, [body(same, **tenant)])[0] for tenant in TENANTS]
    assert [cached(reply) for reply in said] == [0, 0, 0]
    assert len({tuple(reply["output_ids"]) for reply in said}) == 1
    ask(server, [body(Conversation(21).ask(OTHERS))])
    again = (*same, *said[0]["output_ids"], *Conversation(22).ask(50))
    return cached(ask(server, [body(again, **who)])[0])


def test_the_same_tokens_of_three_tenants_are_three_conversations(our_server: Server, stock_server: Server) -> None:
    too_many = len(TENANTS) * CACHED + OTHERS + ANSWER - 1 - POOL
    assert (CACHED, BUDGET, too_many) == (1_007, 507, 928)
    # Of the least recent all that is beyond the budget, then the rest of the next; stock takes the first of them whole.
    ours = [tenants_after_pressure(our_server, tenant) for tenant in TENANTS]
    assert ours == [BUDGET, CACHED - (too_many - (CACHED - BUDGET)), CACHED] == [507, 579, 1_007]
    assert [tenants_after_pressure(stock_server, tenant) for tenant in TENANTS] == [0, CACHED, CACHED]
    assert_unharmed(our_server, POOL)


# ---- adapters, and requests that go first ----

ADAPTERS = ("one", "two")
SLOTS = 4  # requests that run at once
SLOW = 300  # tokens of an answer that is overtaken


@pytest.fixture(scope="module")
def adapted(weighted_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Ours and stock with two adapters, priorities and pages of 16."""
    folder = tmp_path_factory.mktemp("adapters")
    paths = [f"{name}={write_adapter(weighted_model, folder / name, seed)}" for seed, name in enumerate(ADAPTERS)]
    given = (
        *("--enable-lora", "--lora-backend", "torch_native", "--lora-paths", *paths),
        *("--enable-priority-scheduling", "--default-priority-value", str(PRIORITY // 2)),
        *("--max-running-requests", str(SLOTS)),
    )
    shape = {"pool": PAGED_POOL, "page_size": PAGE_SIZE}
    with contextlib.ExitStack() as stack:
        servers = (
            serve(weighted_model, "adapted", *given, *OURS, "--tlru-priority", str(PRIORITY), **shape),
            serve(weighted_model, "adapted-stock", *given, **shape, **UNCHECKED),
        )
        yield [stack.enter_context(server) for server in servers]


def at_each(servers: Sequence[Server], do: Any) -> list[Any]:
    """What was found at each of them, at once."""
    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(do, servers))


def test_adapters_share_nothing_and_answer_as_on_stock(adapted: list[Server]) -> None:
    who: list[Fields] = [{}, *({"lora_path": name} for name in ADAPTERS)]

    def same_prompt(server: Server) -> tuple[list[int], list[Any]]:
        server.flush_cache()
        same = Conversation(30).ask(640)
        said = [ask(server, [body(same, **adapter)])[0] for adapter in [*who, *who]]
        return [cached(reply) for reply in said], [reply["output_ids"] for reply in said]

    ours, stock = at_each(adapted, same_prompt)
    assert ours == stock
    found, answers = ours
    assert found == [0, 0, 0, *[640 - PAGE_SIZE] * 3]  # a whole page before the last token, which is computed again
    assert answers[:3] == answers[3:]
    assert len({tuple(answer) for answer in answers}) == 3, "each adapter says something else"

    before = evicted(adapted[0])
    ours, stock = at_each(adapted, lambda server: histories(crowd(server, who * 4)))
    assert ours == stock
    assert evicted(adapted[0]) > before
    for server in adapted:
        assert_unharmed(server, PAGED_POOL)


def test_an_adapter_that_is_loaded_under_the_name_of_another_finds_nothing_of_it(
    adapted: list[Server], weighted_model: Path, tmp_path: Path
) -> None:
    name = "three"
    paths = [write_adapter(weighted_model, tmp_path / str(seed), seed) for seed in (7, 8)]

    def each_in_turn(server: Server) -> list[tuple[int, list[int]]]:
        server.flush_cache()
        same, said = Conversation(32).ask(640), []
        for path in paths:
            post(server, "load_lora_adapter", lora_name=name, lora_path=str(path))
            said += [ask(server, [body(same, lora_path=name)])[0] for _ in range(2)]
            post(server, "unload_lora_adapter", lora_name=name)
        return [(cached(reply), reply["output_ids"]) for reply in said]

    ours, stock = at_each(adapted, each_in_turn)
    assert ours == stock
    (first, one), (second, same), (third, other), (fourth, _) = ours
    assert [first, second, third, fourth] == [0, 640 - PAGE_SIZE] * 2
    assert one == same != other
    before = evicted(adapted[0])
    crowd(adapted[0], [{}] * 12)
    assert evicted(adapted[0]) > before, "what belongs to nobody any more goes like all else"
    assert_unharmed(adapted[0], PAGED_POOL)


def post(server: Server, path: str, **said: str) -> None:
    requests.post(f"{server.base_url}/{path}", json=said, timeout=120).raise_for_status()


def test_a_prompt_is_warm_for_its_adapter_alone(
    adapted: list[Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, same = adapted[0], Conversation(31).ask(640)
    server.flush_cache()
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"input_ids": same, "lora_path": ADAPTERS[1]}))
    assert main(["warm", server.base_url, str(file)]) == 0
    found = [cached(ask(server, [body(same, **who)])[0]) for who in ({}, *({"lora_path": name} for name in ADAPTERS))]
    assert found == [0, 0, 640 - PAGE_SIZE]
    file.write_text(json.dumps({"input_ids": same, "lora_path": "three"}))
    assert main(["warm", server.base_url, str(file)]) == 2
    assert "row 1: lora_path three: must be one of one, two" in capsys.readouterr().err


@pytest.mark.long
def test_a_request_of_priority_goes_first_and_those_that_it_stops_go_on(adapted: list[Server]) -> None:
    async def overtake(server: Server) -> tuple[list[Any], Any]:
        server.flush_cache()
        asked = [body(Conversation(40 + n).ask(100), SLOW, priority=0) for n in range(2 * SLOTS)]
        begun: list[Any] = []
        slow = [asyncio.ensure_future(ask_all(server, [one], begun)) for one in asked]
        await have_begun(begun, SLOTS, slow[0])
        (first,) = await ask_all(server, [body(Conversation(39).ask(1_500), 20, priority=100)])
        assert not any(one.done() for one in slow), "no place was free, so one was stopped"
        return [reply["output_ids"] for (reply,) in await asyncio.gather(*slow)], first["output_ids"]

    before = evicted(adapted[0])
    ours, stock = at_each(adapted, lambda server: asyncio.run(overtake(server)))
    assert ours == stock
    assert {len(answer) for answer in ours[0]} == {SLOW}
    assert evicted(adapted[0]) > before
    for server in adapted:
        assert_unharmed(server, PAGED_POOL)


@pytest.mark.parametrize("endpoint", ["generate", "generate, a batch", "v1/completions", "v1/chat/completions"])
def test_a_priority_that_the_server_fills_in_is_no_hint(adapted: list[Server], endpoint: str) -> None:
    """It would count before what one of three long prompts says, which goes first of them."""
    server, older, least, newer = adapted[0], *(Conversation(50 + n).ask(PAGED_POOL * 2 // 5) for n in range(3))
    server.flush_cache()
    said = {
        "generate": body(least),
        "generate, a batch": body(least, input_ids=[list(least)]),
        "v1/completions": {"model": "default", "prompt": list(least), "max_tokens": ANSWER},
        "v1/chat/completions": {
            "model": "default",
            "messages": [{"role": "user", "content": "".join("abcdefgh"[token % 8] for token in least)}],
            "max_tokens": ANSWER,
        },
    }[endpoint] | {"nvext": {"agent_hints": {"priority": -PRIORITY}}}
    ask(server, [body(older)])
    url = f"{server.base_url}/{endpoint.partition(',')[0]}"
    requests.post(url, json=said, timeout=60).raise_for_status()
    ask(server, [body(newer)])
    assert cached(ask(server, [body(older)])[0]) >= len(older) - PAGE_SIZE


# ---- KV events, however batches are made ----

SHAPES = (
    pytest.param(1, ("--enable-mixed-chunk",), id="mixed chunks, page size 1", marks=pytest.mark.long),
    pytest.param(
        64,
        ("--disable-overlap-schedule", "--schedule-policy", "lpm"),
        id="no overlap, longest prefix first, page size 64",
    ),
)
SALTS: tuple[Fields, ...] = ({}, {"cache_salt": "a"})
REPLICAS: tuple[Fields, ...] = ({"routed_dp_rank": 0}, {"routed_dp_rank": 1})


def publishing(endpoint: str) -> tuple[str, str]:
    return "--kv-events-config", json.dumps({"publisher": "zmq", "endpoint": endpoint, "bind": True})


@pytest.mark.parametrize(("page_size", "given"), SHAPES)
def test_a_subscriber_knows_what_is_resident(
    page_size: int, given: tuple[str, ...], weighted_model: Path, told_by_stock: Told, tmp_path: Path
) -> None:
    endpoint, pool = f"ipc://{tmp_path}/events", PAGED_POOL
    given = (*given, *OURS, *publishing(endpoint))
    with serve(weighted_model, f"events-{page_size}", *given, pool=pool, page_size=page_size, chunk=256) as server:
        info = server.server_info()
        assert (info["enable_mixed_chunk"], info["disable_overlap_schedule"]) == (page_size == 1, page_size != 1)
        assert info["schedule_policy"] == ("fcfs" if page_size == 1 else "lpm")
        with contextlib.closing(Subscriber(server, endpoint)) as subscriber:
            before, named = evicted(server), SALTS * 6
            told = crowd(server, named)
            assert_follows(subscriber, server, told, named, page_size)
            assert evicted(server) - before == subscriber.removed * page_size > pool / 2
            assert len(subscriber.blocks) * page_size <= pool
            server.flush_cache()
            subscriber.read(until=lambda: not subscriber.blocks)
        assert_unharmed(server, pool)
    assert histories(told) == told_by_stock(len(named))


def assert_follows(
    subscriber: Subscriber, server: Server, told: Sequence[Conversation], named: Sequence[Fields], page_size: int
) -> None:
    """Events alone foretell what is cached of each history; that looking at one evicts of others, they tell as well."""
    found = []
    latest = Conversation(99).ask(2 * page_size)  # what is told of it is told after all that was before
    ask(server, [body(latest, 1, **named[0])])
    subscriber.read(until=partial(subscriber.holds, latest, page_size, named[0].get("cache_salt")))
    for one, fields in zip(told, named, strict=True):
        salt = fields.get("cache_salt")
        # The last token is computed again.
        expected = subscriber.cached(one.history[:-1], page_size, salt)
        found.append(cached(ask(server, [body(one.history, 1, **fields)])[0]))
        assert found[-1] == expected
        whole = len(one.history) // page_size * page_size
        subscriber.read(until=partial(subscriber.holds, one.history[:whole], page_size, salt))
    assert 0 < sum(found) < sum(len(one.history) for one in told)


def two_replicas(model: Path, name: str, *given: str) -> list[tuple[int, ...]]:
    """What a crowd is told by two replicas, each of which keeps a cache, and tells its own subscriber of it."""
    port = free_port(2)
    given = (*given, *OURS, *publishing(f"tcp://127.0.0.1:{port}"))
    a_core_each = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}
    with serve(model, name, *given, **a_core_each) as server, contextlib.ExitStack() as stack:
        subscribers = [
            stack.enter_context(contextlib.closing(Subscriber(server, f"tcp://127.0.0.1:{port + rank}")))
            for rank in range(2)
        ]
        told = crowd(server, REPLICAS * 6)
        for rank, subscriber in enumerate(subscribers):
            mine = slice(rank, None, 2)
            assert_follows(subscriber, server, told[mine], (REPLICAS * 6)[mine], page_size=1)
            assert subscriber.removed > 0
        seen = read(server.metrics_text(), server.base_url).ranks
        assert [(rank.name, sum(rank.by("evicted_tokens_total", "phase").values())) for rank in seen] == [
            (f"dp {rank}", subscriber.removed) for rank, subscriber in enumerate(subscribers)
        ]
        same = Conversation(50).ask(500)
        found = [cached(ask(server, [body(same, **replica)])[0]) for replica in [*REPLICAS, *REPLICAS]]
        assert found == [0, 0, 499, 499]
        warm = Conversation(51).ask(300)
        Warmer(server.base_url, [Prompt("row 1", "warm", input_ids=[*warm])]).warm()
        assert [cached(ask(server, [body(warm, **replica)])[0]) for replica in REPLICAS] == [299, 299]
        assert_unharmed(server, POOL)
    return histories(told)


def test_two_replicas_keep_a_cache_each(weighted_model: Path, told_by_stock: Told) -> None:
    told = two_replicas(weighted_model, "replicas", "--dp-size", "2")
    assert told == told_by_stock(len(told))


@pytest.mark.long  # whole ones are told apart by the same controller
def test_two_replicas_of_attention_alone_keep_a_cache_each(tmp_path: Path) -> None:
    model = write_weighted_model(tmp_path / "qwen", seed=0, **QWEN)
    told = two_replicas(model, "attention", "--tp-size", "2", "--dp-size", "2", "--enable-dp-attention")
    with serve(model, "attention-stock", **UNCHECKED) as stock:
        assert told == histories(crowd(stock, [{}] * len(told)))
