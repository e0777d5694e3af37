"""What a fork of the preloaded process does to be a server (`warm_start`). Imports nothing that a server does not."""

# mypy: disable-error-code="attr-defined, assignment, method-assign"
# It is about what multiprocessing keeps to itself.

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import connection, context, forkserver, popen_forkserver, process, resource_tracker, spawn
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: this process gets a signal when the thread that forked it ends."""

SET_BY_IMPORTS: dict[str, str] = {}
"""Variables of the environment that importing SGLang sets."""


def become(words: Sequence[str], environment: Mapping[str, str], directory: str, log: Path) -> None:
    """In a fork of the preloaded process: run a module or a script as ``python`` would. Returns when it does."""
    os.setsid()
    os.chdir(directory)
    _redirect(0, os.devnull, os.O_RDONLY)
    _redirect(1, log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(1, 2)
    _set_environment(environment)
    process._parent_process = None  # it is nobody's child, as far as SGLang looks
    resource_tracker._resource_tracker._fd = None
    _fork_what_is_spawned()
    module, *_ = sys.argv = list(words)
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [directory, *(path for path in given if path and path not in sys.path)]
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _fork_what_is_spawned() -> None:
    """From here on what multiprocessing spawns is forked off a copy of this process as it is now."""
    parent, prepare = os.getpid(), spawn.prepare

    def prepare_as_spawned(data: dict[str, Any]) -> None:
        """In the new process: a spawned one has its parent's environment and no handlers of signals."""
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)
        _set_environment(data.pop("environment"))
        prepare(data)

    preparation = spawn.get_preparation_data
    spawn.get_preparation_data = lambda name: {**preparation(name), "environment": dict(os.environ)}
    spawn.prepare = prepare_as_spawned
    context.SpawnProcess._Popen = staticmethod(popen_forkserver.Popen)
    forkserver.ForkServer.ensure_running = lambda self: resource_tracker.ensure_running()

    listener = socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")
    listener.bind(address)
    listener.listen()
    alive, kept_open = os.pipe()
    if os.fork() == 0:
        try:
            _spawner(parent, listener, alive)
        finally:
            os._exit(0)
    listener.close()
    os.close(alive)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # the preloaded process need not wait for this one
    forkserver._forkserver._forkserver_address = address
    forkserver._forkserver._forkserver_alive_fd = kept_open


def _spawner(parent: int, listener: socket.socket, alive: int) -> None:
    ctypes.CDLL("libc.so.6").prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # SGLang has the children of this one do so, too
    # A scheduler that fails tells its parent so, by this signal.
    signal.signal(signal.SIGQUIT, lambda *_: os.kill(parent, signal.SIGQUIT))
    forkserver.main(listener.detach(), alive, [])


def _redirect(fd: int, path: str | Path, flags: int) -> None:
    opened = os.open(path, flags)
    os.dup2(opened, fd)
    os.close(opened)


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(SET_BY_IMPORTS | dict(environment))
    tempfile.tempdir = None  # looked up again
