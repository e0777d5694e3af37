"""A server that starts in four seconds instead of twenty-five: its processes are forked off one that has imported all.

A server is three processes, each of which imports SGLang, and of the 25 s of processor time of a start 22 s go into
that. Here one process imports it once (``preloaded``), runs nothing and has no thread. A server is forked off it:

    this process ── preloaded ── launcher (``python -m sglang.launch_server`` from its first line, a session of its own)
                                  └── spawner ── scheduler, detokenizer, …

Processes of xdist fork theirs off the one that pytest has preloaded for them all (``share``).

All that a server does after its imports is its own: plugins, flags, environment, processes, HTTP. What SGLang spawns
is forked off the spawner, a copy of the preloaded process that ends with the launcher and passes signals on to it.

Three things are not as in a server that a user starts. The processes hash strings alike, so ranks that go by the order
of a set are not found out: `rank.py` has two that do not. SGLang's modules are there before the plugin is: as a user
starts SGLang it is started by the tests of the doctor, which goes the launcher's way up to its first subprocess. And
asked for its health it says that it is up, where it would answer a request first, and not before a second has passed.
``--cold-start`` of pytest starts every server as a user does.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

from eval.live import server
from eval.live.server import CPU_PLATFORM, ENVIRONMENT
from tests.helpers.forked import become

PRELOADED = "tests.helpers.preloaded"

ROUTER = "sglang_router."
"""How the module of SGLang's router begins, which imports SGLang and is on no platform."""

OF_SGLANG = ("sglang.", "tests.", "/")
"""How the modules begin that are run in a fork, and scripts, whose paths are whole."""

# In the preloaded process. A fork has one thread, and numpy's threads would be missing in it.
WITHOUT_THREADS = {**ENVIRONMENT, **CPU_PLATFORM, "OPENBLAS_NUM_THREADS": "1"}

IS_WELL_WHEN_UP = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}

SHARED = "RADIX_TLRU_TESTS_FORK_OFF"
"""Variable of the environment: the address of a preloaded process that is not this one's own."""

_starting = threading.Lock()


def share() -> None:
    """Preload for the processes that this one starts from here on, too."""
    preload()
    os.environ[SHARED] = forkserver._forkserver._forkserver_address


def preload() -> None:
    """Start the process that servers are forked off, if there is none; it imports while this one goes on."""
    server_of_forks = forkserver._forkserver
    with _starting:
        if server_of_forks._forkserver_address is not None:
            return
        if SHARED in os.environ:
            server_of_forks._forkserver_address = os.environ[SHARED]
            _, server_of_forks._forkserver_alive_fd = os.pipe()
            forkserver.ForkServer.ensure_running = lambda self: resource_tracker.ensure_running()
            return
        forkserver.set_forkserver_preload([PRELOADED])
        with _environment(WITHOUT_THREADS):
            forkserver.ensure_running()


class WarmProcess:
    """A fork that runs a module or a script; of a server, its first process."""

    def __init__(self, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        preload()
        of = multiprocessing.get_context("forkserver")
        self._process = of.Process(target=become, args=(words, dict(environment), os.getcwd(), log))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        return self._process.exitcode


def start_process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> server.Process:
    """In place of `eval.live.server.start_process`; what is not of SGLang on this platform starts as it does there."""
    python, *words = command
    if words[0] == "-m":
        del words[0]
    is_on_cpu = words[0].startswith(OF_SGLANG) and CPU_PLATFORM.items() <= environment.items()
    if not (is_on_cpu or words[0].startswith(ROUTER)):
        return server.start_process(command, environment, log)
    assert python == sys.executable
    return WarmProcess(words, {**environment, **IS_WELL_WHEN_UP}, log)


class Run:
    """Python with those words, of a module or a script that imports SGLang; started as servers are."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "printed"
        everything = {**os.environ, **ENVIRONMENT, **CPU_PLATFORM, **environment}
        self._process = server.Server.start_process([sys.executable, *words], everything, self._log)
        self.pid = self._process.pid

    def wait(self, patience_s: float = 240.0) -> tuple[int, str]:
        """Its exit status, and what it printed, errors among it. Ends it where that takes longer."""
        deadline = time.monotonic() + patience_s
        while (status := self._process.poll()) is None:
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        return status, self._log.read_text(errors="replace")


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
