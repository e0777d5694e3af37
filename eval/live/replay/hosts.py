"""How the server of an arm is reached: started here, one server or several, or running elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from eval.live.disaggregated import Disaggregated
from eval.live.replay.arms import Arm
from eval.live.router import Router
from eval.live.running_server import RunningServer
from eval.live.server import Server

Name = TypeVar("Name")

STARTUP_S = 900.0
"""How long a server may take to load a model, in s."""

Starting = AbstractContextManager[RunningServer]
"""A server that starts when it is entered, and ends with the block."""

Launch = Callable[[Arm, Sequence[str], str], Starting]
"""Starts the server of an arm, from (arm, flags that all arms have, name of its log)."""


def server_of(arm: Arm, common: Sequence[str], name: str) -> Server:
    """The server of an arm that has no URL, not started."""
    return Server([*common, *arm.flags], name=name, startup_s=STARTUP_S)


def launched(arm: Arm, common: Sequence[str], name: str) -> Starting:
    """One server, or the one that runs at the URL of the arm."""
    return server_of(arm, common, name) if arm.url is None else contextlib.nullcontext(RunningServer(arm.url))


def routed(workers: int) -> Launch:
    """So many servers behind SGLang's own router."""
    return lambda arm, common, name: Router([*common, *arm.flags], workers=workers, name=name, startup_s=STARTUP_S)


@contextlib.contextmanager
def disaggregated(arm: Arm, common: Sequence[str], name: str) -> Iterator[RunningServer]:
    """The server of the arm as prefill server, with a stock one that decodes."""
    with Disaggregated([*common, *arm.flags], common, name=name, startup_s=STARTUP_S) as pair:
        yield pair


@contextlib.contextmanager
def together(servers: Mapping[Name, Server]) -> Iterator[Mapping[Name, Starting]]:
    """Start them all at once; who enters one waits until it is healthy. They end with the block."""
    with contextlib.ExitStack() as running:
        for server in servers.values():
            running.callback(server.stop)
            server.launch()
        yield {name: _healthy(server) for name, server in servers.items()}


@contextlib.contextmanager
def _healthy(server: Server) -> Iterator[RunningServer]:
    server.wait_until_healthy()
    yield server
