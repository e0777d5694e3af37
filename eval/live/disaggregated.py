"""A prefill server and a decode server behind SGLang's own router, as one server.

With ``--disaggregation-mode prefill`` a server computes prompts and sends their KV to another one, which decodes. The
prefill server has the radix cache, and so the policy that is compared. The decode server is stock and caches nothing. A
client's first token waits for the prefill, for the transfer and for the decode server.

Each of the two keeps a core busy even when idle: a thread of NIXL polls for transfers without a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eval.live.router import Router
from eval.live.server import Server, free_port

TRANSFER = "nixl"
"""The transfer backend that works without a GPU."""


class Disaggregated(Router):
    """`with Disaggregated(flags) as pair:` runs a prefill server with those flags, a decode server and a router.

    Otherwise it is a `Server`. Its metrics, labels and settings are those of the prefill server.

    Args:
        flags: of the prefill server, as of a `Server`.
        decode_flags: of the decode server, which has the same model.
        name: of the log files: `<name>.log` of the router, `<name>-0.log` of the prefill server, `<name>-decode.log`.
        limits: `startup_s`, `grace_s`, `environment` of each part, as of a `Server`.

    Raises:
        ServerError: on entering, when a part dies or is not healthy in time; carries the tail of the logs.
    """

    def __init__(
        self,
        flags: Sequence[str],
        decode_flags: Sequence[str],
        *,
        name: str = "disaggregated",
        **limits: Any,
    ) -> None:
        both = ("--disaggregation-transfer-backend", TRANSFER, "--disaggregation-mode")
        super().__init__([], name=name, **limits)
        self.prefill = _PrefillServer([*flags, *both, "prefill"], name=f"{name}-0", **limits)
        self.workers = [self.prefill, Server([*decode_flags, *both, "decode"], name=f"{name}-decode", **limits)]

    def get_metrics(self) -> dict[str, float]:
        """Those of the prefill server."""
        return self.prefill.get_metrics()

    def get_labels(self, name: str, label: str) -> list[str]:
        """Those of the prefill server."""
        return self.prefill.get_labels(name, label)

    def server_info(self) -> dict[str, Any]:
        """Those of the prefill server."""
        return self.prefill.server_info()

    def _destinations(self) -> list[str]:
        prefill, decode = (worker.base_url for worker in self.workers)
        return ["--pd-disaggregation", "--prefill", prefill, self.prefill.bootstrap_port, "--decode", decode]


class _PrefillServer(Server):
    """Decode servers meet it at a port of its own."""

    bootstrap_port = ""

    def _more_ports(self) -> list[str]:
        self.bootstrap_port = str(free_port())
        return ["--disaggregation-bootstrap-port", self.bootstrap_port]
