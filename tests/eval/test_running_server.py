"""A server that runs at a URL: when its metrics are read."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eval.live.running_server import RunningServer

STEPS = 9
"""Steps of a scheduler that learns from the last request until it reports."""


@contextmanager
def served(replicas: int, *, tells: bool) -> Iterator[str]:
    """The URL of a server that has answered a request just now, and takes a step when it is asked for its state.

    As SGLang it publishes its load with the last batch, with the first step that has none, and when it has reported;
    each replica a step after the one before.

    Args:
        tells: when it published its load.
    """
    steps = 0

    def published(replica: int) -> float:
        return sum(steps > replica + late for late in (0, 1, STEPS, STEPS + 1, STEPS + 2))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal steps
            steps += self.path == "/server_info"
            loads = [{"timestamp": published(number)} if tells else {} for number in range(replicas)]
            reported = sum(steps > number + STEPS for number in range(replicas))
            text = {
                "/server_info": "{}",
                "/v1/loads": json.dumps({"loads": loads}),
                "/metrics": f"sglang:served {reported}",
            }
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{text[self.path]}\n".encode())

        def log_message(self, *_args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("replicas", [1, 2])
def test_metrics_are_read_when_nothing_is_left_to_be_counted(replicas: int) -> None:
    with served(replicas, tells=True) as url:
        assert RunningServer(url).get_metrics() == {"sglang:served": replicas}


def test_a_release_that_does_not_tell_when_it_published_its_load_is_not_waited_for() -> None:
    with served(1, tells=False) as url:
        assert RunningServer(url).get_metrics() == {"sglang:served": 0}
