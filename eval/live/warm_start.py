"""A server that starts in four seconds instead of twenty-five: its processes are forked off one that has imported all.

The servers of `eval demo` and of the tests start so, on the CPU platform.

A server is three processes, each of which imports SGLang, and of the 25 s of processor time of a start 22 s go into
that. Here one process imports it once (``preloaded``), runs nothing and has no thread. A server is forked off it:

    this process ── preloaded ── launcher (``python -m sglang.launch_server`` from its first line, a session of its own)
                                  └── spawner ── scheduler, detokenizer, …

Processes that this one starts can fork theirs off the same one (``share``), as those of a parallel test run do.

All that a server does after its imports is its own: plugins, flags, environment, processes, HTTP. What SGLang spawns
is forked off the spawner, a copy of the preloaded process that ends with the launcher and passes signals on to it.

Four things are not as in a server that a user starts. The processes hash strings alike, so ranks that go by the order
of a set are not found out. SGLang's modules are there before the plugin is. A method that a plugin hooks is not looked
for in all of them, which finds nothing. And ``/health`` answers as soon as a server is up; that of a user's server has
a request answered first. ``--cold-start``, of `eval demo` and of pytest, starts every server as a user does.
"""

# mypy: disable-error-code="attr-defined, assignment, method-assign"
# It is about what multiprocessing keeps to itself.

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, TypeVar

from eval.live import server
from eval.live.forked import become
from eval.live.server import CPU_PLATFORM, ENVIRONMENT

PRELOADED = "eval.live.preloaded"

_Result = TypeVar("_Result")

ROUTER = "sglang_router."
"""How the module of SGLang's router begins, which imports SGLang and is on no platform."""

# In the preloaded process. A fork has one thread, and numpy's threads would be missing in it.
WITHOUT_THREADS = {**ENVIRONMENT, **CPU_PLATFORM, "OPENBLAS_NUM_THREADS": "1"}

IS_WELL_WHEN_UP = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}

SHARED = "RADIX_TLRU_FORK_OFF"
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
    is_on_cpu = CPU_PLATFORM.items() <= environment.items() or words[0].startswith(ROUTER)
    if python != sys.executable or words[0] == "-c" or not is_on_cpu:
        return server.start_process(command, environment, log)
    return WarmProcess(words, {**environment, **IS_WELL_WHEN_UP}, log)


def in_a_fork(function: Callable[..., _Result], *arguments: Any) -> _Result:
    """What it returns, called in a fork of the preloaded process, if there is one and this one lacks SGLang."""
    if forkserver._forkserver._forkserver_address is None or "sglang" in sys.modules:
        return function(*arguments)
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def _environment(environment: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
