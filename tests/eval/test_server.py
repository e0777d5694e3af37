"""The server of the harness: started, played against, and gone afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import requests

import eval.live.server
from eval.live.replay.client import RETRY_AFTER_S
from eval.live.replay.hosts import together
from eval.live.replay.play import NOT_SENT, Manner, ReplayError, Sent, Target, play, play_in_turn
from eval.live.replay.schedule import Loop, Pace
from eval.live.replay.turns import Conversation, Load, Segment, Turn
from eval.live.running_server import ServerError
from eval.live.server import Server, free_port, live_members

# Stands in for SGLang: answers /health, has a child process, and does not care about SIGTERM.
STUBBORN = """
import http.server, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
# Leaves a child behind and dies with a message.
DYING = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("no such model: /nowhere", flush=True)
sys.exit(3)
"""
# Speaks the protocol of /generate: half of every prompt is cached, answers are 900, 901, ... and take 0.1 s, a prompt
# of 13 tokens is refused, one of 14 is aborted within its stream, one of 16 is told to come later unless it is the
# third, one of 99 ends the server, one of 18 is kept waiting. One of 17 is answered by a token, then by all others
# at once. One of 300 is answered once one of 400 has come. It prints the length of each prompt, and its session.
SCRIPTED = """
import asyncio, json, os, sys
from aiohttp import web
busy, came = [], asyncio.Event()
async def generate(request):
    body = await request.json()
    prompt, answer = len(body["input_ids"]), body["sampling_params"]["max_new_tokens"]
    print("prompt", prompt, "of", body.get("session_id"), flush=True)
    if prompt == 13:
        return web.Response(status=400, text="thirteen")
    if prompt == 16:
        busy.append(prompt)
        if len(busy) != 3:
            return web.Response(status=503, text="sixteen")
    if prompt == 99:
        os._exit(1)
    if prompt == 18:
        await asyncio.sleep(30)
    if prompt == 400: came.set()
    if prompt == 300: await came.wait()
    response = web.StreamResponse()
    await response.prepare(request)
    await asyncio.sleep(0.1)
    for count in range(1, answer + 1) if prompt != 17 else (1, answer):
        if prompt == 17:
            await asyncio.sleep(0.02)
        finish = {"type": "abort", "message": "fourteen"} if prompt == 14 else None
        meta = {"cached_tokens": prompt // 2, "finish_reason": finish}
        event = {"output_ids": [900 + i for i in range(count)], "meta_info": meta}
        await response.write(b"data: " + json.dumps(event).encode() + b"\\n\\n")
    await response.write(b"data: [DONE]\\n\\n")
    return response
async def ok(request):
    return web.Response()
app = web.Application(client_max_size=2**24)
app.add_routes([web.post("/generate", generate), web.get("/health", ok), web.post("/flush_cache", ok)])
web.run_app(app, host="127.0.0.1", port=int(sys.argv[-1]), print=None)
"""
# As SGLang, which says so and never ends, as its scheduler goes on.
LATE = """
import time
print("[Errno 98] error while attempting to bind on address ('127.0.0.1', 46821): address already in use", flush=True)
time.sleep(600)
"""
NO_STORE = """
import socket, torch.distributed
with socket.create_server(("127.0.0.1", 0)) as taken:
    torch.distributed.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)
"""
SILENT = ["sh", "-c", "echo loading; exec sleep 600"]  # says so in no time, where Python is a while in starting


@pytest.fixture(autouse=True)
def _logs_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval.live.server, "LOG_DIRECTORY", tmp_path)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def stand_in(script: str, *, startup_s: float = 300.0, grace_s: float = 2.0, name: str = "server") -> Server:
    return Server([], name=name, command=[sys.executable, "-c", script], startup_s=startup_s, grace_s=grace_s)


def late_at_first(late: str, then: str, mark: Path) -> str:
    """A script that is ``late`` when it is run the first time."""
    first = f"import pathlib\nmark = pathlib.Path({str(mark)!r})\nis_first = not mark.exists()\nmark.touch()"
    return f"{first}\nexec({late!r} if is_first else {then!r})"


@pytest.mark.parametrize("late", [LATE, NO_STORE], ids=["its own", "a store's"])
def test_a_server_whose_port_was_taken_is_started_on_another(late: str, tmp_path: Path) -> None:
    with stand_in(late_at_first(late, SCRIPTED, tmp_path / "mark")) as server:
        assert requests.get(f"{server.base_url}/health", timeout=10).ok
    assert live_members(server.process_group) == []


def test_so_is_one_of_several_and_the_others_are_left_alone(tmp_path: Path) -> None:
    late = stand_in(late_at_first(LATE, SCRIPTED, tmp_path / "mark"), name="late")
    with together({"other": stand_in(SCRIPTED, name="other"), "late": late}) as started:
        with started["other"] as other:
            url = other.base_url
        with started["late"] as host:
            assert requests.get(f"{host.base_url}/health", timeout=10).ok
        assert other.alive()
        assert other.base_url == url
    assert live_members(late.process_group) == []


def test_ports_in_a_row_are_all_free() -> None:
    port = free_port(3)
    with ExitStack() as taken:
        for each in range(port, port + 3):
            taken.enter_context(socket.create_server(("127.0.0.1", each)))


def test_a_server_that_dies_at_start_shows_the_end_of_its_log_and_leaves_no_process() -> None:
    server = stand_in(DYING)
    with pytest.raises(ServerError, match=r"ended with status 3 .*\n(.*\n)*no such model: /nowhere"), server:
        pytest.fail("the block must not be entered")
    assert live_members(server.process_group) == []


def test_a_server_whose_port_is_taken_each_time_is_given_up() -> None:
    server = stand_in(LATE, startup_s=600.0)
    with pytest.raises(ServerError, match=r"a port of http://127.0.0.1:\d+ was taken.*\n.*already in use"), server:
        pytest.fail("the block must not be entered")
    assert live_members(server.process_group) == []


def test_a_server_that_is_never_healthy_is_given_up_and_leaves_no_process() -> None:
    server = Server([], command=SILENT, startup_s=0.5)
    with pytest.raises(ServerError, match=r"not healthy after 0.5 s.*\nloading"), server:
        pytest.fail("the block must not be entered")
    assert live_members(server.process_group) == []


def test_servers_start_together_and_a_failed_start_is_raised_by_its_own_server(tmp_path: Path) -> None:
    """Each is ready when the other has begun."""
    meets = (
        "import pathlib, sys, time\n"
        "mine, other = (pathlib.Path({!r}, name) for name in {!r})\n"
        "mine.touch()\n"
        "while not other.exists(): time.sleep(0.01)\n"
    )
    servers = {
        names[0]: stand_in(meets.format(str(tmp_path), names) + SCRIPTED, name=names[0])
        for names in (("one", "other"), ("other", "one"))
    }
    with together({**servers, "dying": stand_in(DYING, name="dying")}) as started:
        with pytest.raises(ServerError, match="no such model"), started["dying"]:
            pytest.fail("the block must not be entered")
        for name, server in started.items():
            if name != "dying":
                with server as host:
                    assert requests.get(f"{host.base_url}/health", timeout=10).ok
        assert all(server.alive() for server in servers.values()), "they end with the block"
    assert [live_members(server.process_group) for server in servers.values()] == [[], []]


@pytest.mark.parametrize("reason", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_block_ends_every_process_even_one_that_ignores_sigterm(
    reason: type[BaseException], bystander: subprocess.Popen[bytes]
) -> None:
    server = stand_in(STUBBORN, grace_s=0.3)

    def use() -> None:
        with server:
            assert requests.get(f"{server.base_url}/health", timeout=5).ok
            assert len(live_members(server.process_group)) == 2
            raise reason

    with pytest.raises(reason):
        use()
    assert live_members(server.process_group) == []
    assert bystander.poll() is None, "a process of somebody else was ended"
    server.stop()  # harmless when there is nothing left to stop


def conversation(index: int, start_s: float, *turns: tuple[int, float]) -> Conversation:
    """Each turn adds (tokens, seconds after the turn before) and asks for an answer of 3 tokens."""
    added = [Turn((Segment(100 * index + n, tokens),), False, 3, wait_s) for n, (tokens, wait_s) in enumerate(turns)]
    return Conversation(index, start_s, tuple(added))


def prompts(server: Server) -> list[int]:
    """Lengths of the prompts that a scripted server was sent."""
    return [int(line.split()[1]) for line in server.log_tail(1000).splitlines() if line.startswith("prompt")]


def sessions(server: Server) -> list[str]:
    """The sessions that the requests to a scripted server named."""
    return [line.split(" of ")[1] for line in server.log_tail(1000).splitlines() if line.startswith("prompt")]


def test_an_ordered_loop_keeps_its_order_on_a_slow_server_and_sends_real_answers() -> None:
    # Due at 0.00 (10 tokens), 0.01 (20) and 0.02 s, but each takes 0.1 s: the third is 10 + 3 of the answer + 4 new.
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.02)), conversation(1, 0.01, (20, 0.0))))
    seen: list[Sent] = []
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("ordered", users=1), on_sent=seen.append)
        assert prompts(server) == [10, 20, 10 + 3 + 4]
    results = [one.result for one in sent]
    assert [one.number for one in sent] == [0, 1, 2]
    assert [(result.conversation, result.turn) for result in results] == [(0, 0), (1, 0), (0, 1)]
    assert [result.uncached_tokens for result in results] == [5, 10, 17 - 8]
    assert all(result.output_ids == (900, 901, 902) and result.error is None for result in results)
    assert all(100 <= (result.ttft_ms or 0) <= result.e2e_ms for result in results)
    assert all(len(result.itl_ms) == 2 for result in results)
    assert seen == sent


def test_an_open_loop_waits_for_its_own_answer_and_think_time_alone() -> None:
    load = Load((conversation(0, 0.0, (300, 0.0), (4, 0.4)), conversation(1, 0.02, (400, 0.0))))
    with stand_in(SCRIPTED) as server:
        sent = {(one.result.conversation, one.result.turn): one for one in play(server.base_url, load, Pace("open"))}
        begun, ended = play(
            server.base_url, Load((conversation(0, 0.0, (10, 0.0), (4, 400.0)),)), Pace("open", speed=4e3)
        )
    first, second, other = sent[0, 0], sent[0, 1], sent[1, 0]
    assert other.sent_s < first.sent_s + first.result.e2e_ms / 1000, "sent while the first was being answered"
    assert second.sent_s >= first.sent_s + first.result.e2e_ms / 1000 + 0.4 - 0.01
    gap = ended.sent_s - begun.sent_s - begun.result.e2e_ms / 1000
    assert 0.1 - 0.01 <= gap < 400.0, "at 4,000 times the speed people think so much less"


def test_in_a_closed_loop_each_user_has_one_conversation_at_a_time() -> None:
    load = Load(tuple(conversation(n, 100.0 * n, (20 + n, 0.0), (4, 0.01)) for n in range(4)))
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("closed", users=2))
    assert [one.result.error for one in sent] == [None] * 8
    started = [one.result.conversation for one in sorted(sent, key=lambda one: one.number) if one.result.turn == 0]
    assert started == [0, 1, 2, 3]
    for one in sent:
        during = [x for x in sent if x.sent_s <= one.sent_s < x.sent_s + x.result.e2e_ms / 1000]
        assert len(during) <= 2


def test_failed_requests_are_results_with_their_reason_and_end_their_conversation() -> None:
    load = Load(
        (
            conversation(0, 0.0, (13, 0.0), (1, 0.1), (1, 0.1)),
            conversation(1, 0.0, (14, 0.0)),
            conversation(2, 0.0, (15, 0.0), (1, 0.1)),
        )
    )
    with stand_in(SCRIPTED) as server:
        for loop in ("ordered", "open"):
            sent = play(server.base_url, load, Pace(loop))
            errors = {(one.result.conversation, one.result.turn): one.result.error for one in sent}
            assert errors == {
                (0, 0): "HTTP 400: thirteen",
                (0, 1): NOT_SENT,
                (0, 2): NOT_SENT,
                (1, 0): "aborted: fourteen",
                (2, 0): None,
                (2, 1): None,
            }


def test_a_subagent_names_the_session_of_the_agent_that_started_it() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0)), replace(conversation(1, 0.0, (20, 0.0)), session=0)))
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace(users=1), sessions=True)
        play(server.base_url, load, Pace(users=1))
        assert sessions(server) == ["conversation 0", "conversation 0", "None", "None"]
    assert [one.session for one in sent] == [0, 0]


def test_servers_that_are_asked_in_turn_get_each_request_one_after_the_other() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.0), (5, 0.0)), conversation(1, 0.0, (20, 0.0), (6, 0.0))))
    order: list[tuple[int, Sent]] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(stand_in(SCRIPTED, name=f"server-{number}")) for number in range(3)]
        targets = [
            Target(server.base_url, partial(lambda number, sent: order.append((number, sent)), number))
            for number, server in enumerate(servers)
        ]
        played = play_in_turn(targets, load, Manner(Pace("ordered", users=1)))
        assert [each.error for each in played] == [None] * 3
        asked = [prompts(server) for server in servers]
    assert asked[0] == asked[1] == asked[2]
    assert len(asked[0]) == load.requests
    assert [sent.number for _, sent in order] == [number for number in range(load.requests) for _ in targets]
    firsts = [order[number][0] for number in range(0, len(order), 3)]
    assert len(set(firsts)) > 1, "another one is asked first"
    ends = [sent.sent_s + sent.result.e2e_ms / 1000 for _, sent in order]
    starts = [sent.sent_s for _, sent in order]
    assert all(start > end - 0.01 for end, start in zip(ends, starts[1:], strict=False)), "one request at a time"


def test_servers_take_turns_of_some_time_in_which_calls_wait_for_each_other() -> None:
    load = Load(tuple(conversation(n, 0.01 * n, *[(20 + n, 0.02)] * 8) for n in range(3)))
    spans: list[tuple[float, float, int]] = []  # (s, s, server) of each request

    def note(number: int, sent: Sent) -> None:
        now_s = time.perf_counter()
        spans.append((now_s - sent.result.e2e_ms / 1000, now_s, number))

    with ExitStack() as stack:
        servers = [stack.enter_context(stand_in(SCRIPTED, name=f"server-{number}")) for number in range(2)]
        targets = [Target(server.base_url, partial(note, number)) for number, server in enumerate(servers)]
        played = play_in_turn(targets, load, Manner(Pace("open")), turn_s=0.1)
        asked = [sorted(prompts(server)) for server in servers]
    assert [each.error for each in played] == [None, None]
    assert len(asked[0]) == load.requests
    assert asked[0] == asked[1]
    spans.sort()
    changes = 0
    for (_, end, one), (start, _, other) in pairwise(spans):
        changes += one != other
        assert one == other or start > end - 0.01, "a server is asked when the other one has answered all"
    assert changes > 2, "each has several turns"
    for number, each in enumerate(played):
        of_one = [(start, end) for start, end, server in spans if server == number]
        assert any(start < end for (_, end), (start, _) in pairwise(of_one)), "calls overlap"
        assert 0 < each.busy_s < sum(end - start for start, end in of_one)
        assert max(sent.sent_s for sent in each.sent) < spans[-1][1] - spans[0][0], "clocks stand still between turns"


def test_servers_that_are_asked_in_turn_go_on_without_one_that_failed() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.0), (5, 0.0)),))
    seen: dict[int, list[Sent]] = {0: [], 1: [], 2: []}

    def keep(number: int, sent: Sent) -> None:
        if number == 1 and sent.number == 1:
            raise OSError("No space left on device")
        seen[number].append(sent)

    with stand_in(SCRIPTED) as server:
        targets = [Target(server.base_url, partial(keep, number)) for number in range(3)]
        errors = [each.error for each in play_in_turn(targets, load, Manner(Pace("ordered", users=1)))]
    assert list(map(str, errors)) == ["None", "No space left on device", "None"]
    assert [len(each) for each in seen.values()] == [3, 1, 3]


def test_tokens_that_come_at_once_share_the_time_since_the_one_before() -> None:
    load = Load((conversation(0, 0.0, (17, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (sent,) = play(server.base_url, load, Pace())
    result = sent.result
    assert result.output_tokens == 3
    first, second = result.itl_ms
    assert first == second > 0
    assert first + second <= result.e2e_ms - (result.ttft_ms or 0.0)
    assert result.tokens_per_s == pytest.approx(3000 / result.e2e_ms)


def test_a_server_that_is_busy_is_asked_again_and_the_clock_goes_on() -> None:
    load = Load((conversation(0, 0.0, (16, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (given_up,) = play(server.base_url, load, Pace())
        (answered,) = play(server.base_url, load, Pace(), retries=2)
    assert given_up.result.error == "HTTP 503: sixteen"
    assert (answered.result.error, answered.result.retries) == (None, 1)
    assert (answered.result.ttft_ms or 0) > 1000 * RETRY_AFTER_S


def test_a_server_that_ends_ends_the_replay_and_what_came_before_is_kept() -> None:
    load = Load(tuple(conversation(n, 0.2 * n, (10 if n < 2 else 99, 0.0)) for n in range(5)))
    seen: list[Sent] = []
    with (
        stand_in(SCRIPTED) as server,
        pytest.raises(ReplayError, match="the server ended while it served"),
    ):
        play(server.base_url, load, Pace(users=1), on_sent=seen.append, alive=server.alive)
    assert [one.result.error for one in seen[:2]] == [None, None]
    assert len(seen) == 3


@pytest.mark.parametrize("loop", ["ordered", "open", "closed"])
def test_a_disk_that_is_full_ends_the_replay_with_its_own_error(loop: Loop) -> None:
    load = Load(tuple(conversation(n, 0.0, (10, 0.0), (4, 0.01)) for n in range(3)))
    with (
        stand_in(SCRIPTED) as server,
        open("/dev/full", "ab", buffering=0) as full,
        pytest.raises(OSError, match="No space left on device"),
    ):
        play(server.base_url, load, Pace(loop), on_sent=lambda _: full.write(b"row") and None)


def test_a_server_that_says_nothing_more_is_given_up_after_the_timeout() -> None:
    load = Load((conversation(0, 0.0, (18, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (sent,) = play(server.base_url, load, Pace(), timeout_s=0.5)
    assert "Timeout" in (sent.result.error or "")
