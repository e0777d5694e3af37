"""How the server of an arm is reached: started here, one server or several, or running elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from eval.live.disaggregated import Disaggregated
from eval.live.replay.arms import Arm
from eval.live.router import Router
from eval.live.running_server import RunningServer
from eval.live.server import Server

__all__ = ["STARTUP_S", "Host", "Launch", "disaggregated", "launched", "routed", "server_of", "together"]

Name = TypeVar("Name")

STARTUP_S = 900.0
"""How long a server may take to load a model, in s."""


class Host(Protocol):
    """A running server, as far as a run needs it."""

    base_url: str

    def get_metrics(self) -> dict[str, float]:
        """Prometheus samples by name, each summed over its labels."""

    def get_labels(self, name: str, label: str) -> list[str]:
        """The values of a label of a metric."""

    def flush_cache(self) -> None:
        """Empty the radix cache."""

    def server_info(self) -> dict[str, Any]:
        """What `/server_info` says."""

    def alive(self) -> bool:
        """Whether it still runs."""


Launch = Callable[[Arm, Sequence[str], str], contextlib.AbstractContextManager[Host]]
"""Starts the server of an arm, from (arm, flags that all arms have, name of its log)."""


def server_of(arm: Arm, common: Sequence[str], name: str) -> Server:
    """The server of an arm that has no URL, not started."""
    return Server([*common, *arm.flags], name=name, startup_s=STARTUP_S)


@contextlib.contextmanager
def launched(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
    """One server, started and stopped here; or the one that runs at the URL of the arm.

    Raises:
        ServerError: it does not start, or does not answer.
    """
    if arm.url is not None:
        yield RunningServer(arm.url)
        return
    with server_of(arm, common, name) as server:
        yield server


def routed(workers: int) -> Launch:
    """So many servers behind SGLang's own router."""

    @contextlib.contextmanager
    def launch(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
        with Router([*common, *arm.flags], workers=workers, name=name, startup_s=STARTUP_S) as router:
            yield router

    return launch


@contextlib.contextmanager
def disaggregated(arm: Arm, common: Sequence[str], name: str) -> Iterator[Host]:
    """The server of the arm as prefill server, with a stock one that decodes."""
    with Disaggregated([*common, *arm.flags], common, name=name, startup_s=STARTUP_S) as pair:
        yield pair


@contextlib.contextmanager
def together(servers: Mapping[Name, Server]) -> Iterator[Mapping[Name, AbstractContextManager[Host]]]:
    """Start them all at once; who enters one waits until it is healthy. They end with the block."""
    with contextlib.ExitStack() as running:
        for server in servers.values():
            running.callback(server.stop)
            server.launch()
        yield {name: _healthy(server) for name, server in servers.items()}


@contextlib.contextmanager
def _healthy(server: Server) -> Iterator[Host]:
    server.wait_until_healthy()
    yield server
