"""One real SGLang server as a context manager: started, waited for, and stopped with all its processes."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import psutil
import requests

from eval.live.running_server import RunningServer, ServerError
from radix_tlru.tools.demo_model import SHAPES, Shape, write_demo_model

DEMO_MODEL = Path(".out/demo-model")
LOG_DIRECTORY = Path(".out/logs")
LAUNCH_COMMAND = (sys.executable, "-m", "sglang.launch_server")
LOG_TAIL_LINES = 25
PORTS = range(20_000, 32_000)
"""Below the ports that the system gives to connections."""

STARTUP_S = 500.0
"""For which a server is waited for: ten times what it takes on two cores that are busy."""

PORT_TAKEN = "address already in use"
"""What a server logs when another process took one of its ports, in lower case."""

ATTEMPTS = 3
"""Starts with another port each, at most: SGLang's own processes take ports, too, while they load."""

CPU_PLATFORM = {
    "SGLANG_PLATFORM": "torch_cpu",
    # glibc gives each large activation back to the system and faults its pages in anew: millions of faults in a replay.
    # Larger batches have more of them, so a server that queues a little gets slower and queues more. A GPU's allocator
    # keeps its memory, too.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    # Ranks have one memory. What SGLang would take for a GPU that others occupy is what one has loaded meanwhile.
    "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "0",
}
"""For servers with `--device cpu`."""

ENVIRONMENT = {
    # Threads that wait for work sleep instead of spinning. A server is several processes: where they share two cores,
    # spinning makes a prefill two to ten times slower and its time erratic.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Let Python keep compiled modules: three processes that compile SGLang and torch anew take a minute to start.
    "PYTHONDONTWRITEBYTECODE": "",
}


class Process(Protocol):
    """The first process of a server."""

    @property
    def pid(self) -> int:
        """Its id, which is that of its session and process group, too."""

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""


def start_process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Process:
    """Start a command in a session of its own, with this environment; what it prints is added to ``log``."""
    with log.open("ab") as opened:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


class PortTakenError(ServerError):
    """Another process took a port of the server while it loaded."""


def cpu_flags(model: Path, pool_tokens: int, page_size: int = 1) -> list[str]:
    """Flags of a server that runs anywhere: random weights in `model`, a KV pool of `pool_tokens` tokens."""
    return [
        *("--model-path", str(model)),
        *("--load-format", "dummy"),
        *("--device", "cpu"),
        *("--dtype", "float32"),
        *("--max-total-tokens", str(pool_tokens)),
        *("--page-size", str(page_size)),
        "--sleep-on-idle",  # an idle scheduler would keep a core busy
        "--enable-cache-report",
        "--enable-metrics",
    ]


def ensure_demo_model(directory: Path = DEMO_MODEL, shape: Shape = SHAPES["tiny"]) -> Path:
    """The directory of a model with random weights, which is written if it is not there."""
    if not (directory / "config.json").is_file():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as beside:
            whole = Path(beside) / directory.name
            write_demo_model(whole, shape)
            try:
                whole.rename(directory)
            except OSError:  # another process wrote it meanwhile, or the directory holds other files
                write_demo_model(directory, shape)
    return directory


class Server(RunningServer):
    """`with Server(flags) as server:` runs one server on a free local port, in a session of its own.

    Leaving the block, by whatever exception, ends every process of that session: SIGTERM, then SIGKILL for what still
    runs after `grace_s` seconds. Nothing outside it is signalled. stdout and stderr go to `log_path`; temporary files,
    of which SGLang leaves many, go to a directory that is removed with the server.

    Args:
        flags: of `python -m sglang.launch_server`, without `--host` and `--port`.
        name: of the log file, `.out/logs/<name>.log`, which is overwritten.
        startup_s: how long `/health` may take to answer with 200.
        grace_s: SGLang itself takes five seconds over a crash report when one of its processes is told to stop.
        environment: added to that of this process and to `ENVIRONMENT` (and `CPU_PLATFORM`).
        command: what is started with the flags.

    Raises:
        ServerError: on entering, when the process dies or is not healthy in time; carries the tail of the log.
    """

    start_process = staticmethod(start_process)
    """How its first process is started; tests put a faster way here."""

    def __init__(
        self,
        flags: Sequence[str],
        *,
        name: str = "server",
        startup_s: float = STARTUP_S,
        grace_s: float = 2.0,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = LAUNCH_COMMAND,
    ) -> None:
        self.flags = list(flags)
        self.log_path = LOG_DIRECTORY / f"{name}.log"
        super().__init__("")
        self._startup_s = startup_s
        self._grace_s = grace_s
        platform = CPU_PLATFORM if ("--device", "cpu") in itertools.pairwise(self.flags) else {}
        self._environment = {**os.environ, **ENVIRONMENT, **platform, **(environment or {})}
        self._command = list(command)
        self._process: Process | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @property
    def process_group(self) -> int:
        """Id of the process group (and session) that holds every process of this server."""
        assert self._process is not None, "the server was never started"
        return self._process.pid

    def __enter__(self) -> Self:
        try:
            self.launch()
            self.wait_until_healthy()
        except BaseException:  # Python calls no __exit__ for a block that was never entered
            self.stop()
            raise
        return self

    def launch(self) -> None:
        """Start it without waiting, for several servers that load at once. The caller has to call `stop`."""
        port = free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = tempfile.TemporaryDirectory(prefix="server-", ignore_cleanup_errors=True)
        self.log_path.write_bytes(b"")
        command = [*self._command, *self.flags, *self._more_ports(), "--host", "127.0.0.1", "--port", str(port)]
        self._process = self.start_process(
            command, {**self._environment, "TMPDIR": self._temporary.name}, self.log_path
        )

    def _more_ports(self) -> list[str]:
        """Flags that name other ports, which are chosen at each start."""
        return []

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process of the server. May be called again."""
        self._end_processes()

    def _end_processes(self) -> None:
        """Those of this server alone: a fleet that stops ends its workers, too."""
        if self._process is None:
            return
        try:
            _signal_group(self.process_group, signal.SIGTERM)
            self._wait_until_gone(self._grace_s)
        finally:  # also when a second Ctrl-C cuts the grace time short
            _signal_group(self.process_group, signal.SIGKILL)
            self._wait_until_gone(5.0)
            if self._temporary is not None:
                self._temporary.cleanup()

    def alive(self) -> bool:
        """Whether its main process still runs."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The last lines that the server printed."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def wait_until_healthy(self) -> None:
        """Wait until `/health` answers with 200. If a port was taken while it loaded, start it again on another one.

        Raises:
            ServerError: the process ended, or it was not in time.
        """
        for _ in range(ATTEMPTS - 1):
            with contextlib.suppress(PortTakenError):
                self._wait_until_healthy()
                return
            self._end_processes()
            self.launch()
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + self._startup_s
        while time.monotonic() < deadline:
            self._raise_if_ended()
            with contextlib.suppress(requests.RequestException):  # refused until the port is open, slow just after
                if requests.get(f"{self.base_url}/health", timeout=10).ok:
                    return
            time.sleep(0.2)
        raise self._failure(f"the server was not healthy after {self._startup_s:g} s")

    def _raise_if_ended(self) -> None:
        assert self._process is not None
        status = self._process.poll()
        if PORT_TAKEN in self.log_path.read_text(errors="replace").lower():  # SGLang may not end by itself then
            raise PortTakenError(str(self._failure(f"a port of {self.base_url} was taken while the server loaded")))
        if status is not None:
            raise self._failure(f"the server ended with status {status} before it was healthy")

    def _failure(self, what: str) -> ServerError:
        return ServerError(f"{what}; the end of {self.log_path}:\n{self.log_tail()}")

    def _wait_until_gone(self, seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._process.poll()  # reaps the launcher; its children are reaped by whoever adopts them
            if not live_members(self.process_group):
                return
            time.sleep(0.05)


def live_members(process_group: int) -> list[int]:
    """Ids of the processes of a group that still run, without zombies."""
    members = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == process_group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def _signal_group(process_group: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process_group, signum)


def free_port(count: int = 1) -> int:
    """A port of this machine that is free now, the first of ``count`` in a row.

    It is below the ports that the system gives to connections, as a server takes it only half a minute later.

    Raises:
        ServerError: none was found.
    """
    for port in random.SystemRandom().sample(PORTS, 100):
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for each in range(port, port + count):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", each))
            return port
    raise ServerError(f"no free port was found from {PORTS.start} to {PORTS.stop - 1}")
