"""The server of the harness: started on free ports, and gone afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from eval.live.replay.hosts import together
from eval.live.running_server import ServerError
from eval.live.server import Server, free_port, live_members
from tests.helpers.stand_ins import LATE, SCRIPTED, late_at_first, stand_in

pytestmark = pytest.mark.usefixtures("logs_in_tmp")

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
NO_STORE = """
import socket, torch.distributed
with socket.create_server(("127.0.0.1", 0)) as taken:
    torch.distributed.TCPStore("127.0.0.1", taken.getsockname()[1], is_master=True)
"""
SILENT = ["sh", "-c", "echo loading; exec sleep 600"]  # says so in no time, where Python is a while in starting


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


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
