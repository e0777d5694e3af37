"""A server on this machine that answers each path by what a test says, for commands that ask one over HTTP."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HTML = "<html>nothing here</html>"

# What SGLang answers at /server_info, /v1/tokenize and /generate.
INFO = {"max_total_num_tokens": 4_000, "max_req_input_len": 3_000, "dp_size": 1, "page_size": 1}
TOKENS = (200, '{"tokens": [1, 2]}')
SERVED = (200, '{"meta_info": {"cached_tokens": 0}}')


@contextlib.contextmanager
def answering(
    answers: Mapping[str, tuple[int, str]],
    takes_s: float = 0.0,
    heard: list[tuple[str, bytes]] | None = None,
    certificate: tuple[Path, Path] | None = None,
    begins: threading.Event | None = None,
    key: str | None = None,
) -> Iterator[str]:
    """The URL of a server that answers a path by a status and a text, after a while, and any other by 404 and HTML.

    With a status of 3xx the text is where the path is to be found.

    Args:
        begins: until then it takes no connections.
        key: a request without it is answered by 401.
        heard: gets the path and the body of each request.
        certificate: for TLS: of the authority, and the server's with its key.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answers.get(self.path.partition("?")[0], (404, HTML))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if key is not None and self.headers["Authorization"] != f"Bearer {key}":
                status, text = 401, HTML
            if heard is not None:
                heard.append((self.path, body))
            time.sleep(takes_s)
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", text)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_args: object) -> None:
            """Nobody reads it."""

    class Quiet(ThreadingHTTPServer):
        def handle_error(self, *_args: object) -> None:
            """A client that gives up is what is tested: what it says is read, and not what this server would."""

    def serve() -> None:
        if begins is not None:
            begins.wait()
            server.server_activate()
        server.serve_forever(0.01)

    with Quiet(("127.0.0.1", 0), Handler, bind_and_activate=False) as server:
        server.server_bind()
        if begins is None:
            server.server_activate()
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate[1])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=serve).start()
        try:
            yield f"http{'s' if certificate is not None else ''}://127.0.0.1:{server.server_port}"
        finally:
            if begins is not None:
                begins.set()  # a test that fails before it would wait for ever
            server.shutdown()
