"""``--tlru-warm FILE``: once the server is up, it is asked for the prompts of a file, and again every minute.

In the launching process a thread of its own asks over HTTP, as ``radix-tlru warm`` does from outside. What is gone,
after a flush or with new weights, is back a minute later; nothing in the scheduler knows of it. It ends when the server
begins to drain, which would wait for it as for any client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from radix_tlru.config import FLAGS, Config, ConfigError
from radix_tlru.sglang.carrier import config_of
from radix_tlru.sglang.hooks import hook
from radix_tlru.tools.http import NoServerError, ServerError
from radix_tlru.tools.prompts import read_prompts
from radix_tlru.tools.warm import Warmed, Warmer

__all__ = ["EVERY_S", "HOOKED", "install", "start", "warmer_of"]

HOOKED = "sglang.srt.entrypoints.http_server._wait_and_warmup"
"""Returns once the server answers requests; with ``--skip-server-warmup`` just before it takes connections."""

EVERY_S = 60.0
"""From one round to the next."""

_START_S = 120.0  # that the server has to take connections, as SGLang's own warm-up gives it
_LOOK_EVERY_S = 0.1

logger = logging.getLogger(__name__)


def install(config: Config) -> None:
    """Have the prompts of ``config.warm`` warmed once the server of this process is up.

    Raises:
        ConfigError: the file cannot be read, or this SGLang does not take the hook.
    """
    assert config.warm is not None, "or there is nothing to warm"
    try:
        read_prompts(Path(config.warm))
    except ConfigError as error:
        raise ConfigError(f"{FLAGS['warm']} {error}") from None
    hook(HOOKED, start, f"{FLAGS['warm']}: prompts cannot be warmed")


def start(_result: None, server_args: Any, *_args: Any, **_kwargs: Any) -> None:
    """The server is up: begin, in a thread that ends with the process."""
    config = config_of(server_args)
    if config is None or config.warm is None:
        return
    arguments = server_args, Path(config.warm)
    threading.Thread(target=_keep_warm, args=arguments, name="radix-tlru-warm", daemon=True).start()


def _keep_warm(server_args: Any, file: Path) -> None:
    from sglang.srt.arg_groups.serving_hook import ssl_verify_of
    from sglang.srt.entrypoints.http_server import get_global_state

    manager = get_global_state().tokenizer_manager

    def drains() -> bool:
        return bool(manager.gracefully_exit)

    metrics = _WarmMetrics() if server_args.enable_metrics else None
    try:
        prompts = read_prompts(file)
        warmer = warmer_of(server_args.url(), prompts, server_args.api_key, ssl_verify_of(server_args))
    except (ConfigError, ServerError) as error:
        logger.error("radix_tlru: %s: nothing is warmed: %s", FLAGS["warm"], error)
        return
    logger.info(
        "radix_tlru: keeps %d prompts warm, %d tokens, %.1f %% of the pool",
        len(prompts),
        warmer.tokens,
        100 * warmer.tokens / warmer.pool,
    )
    while not drains():
        try:
            found = warmer.warm(drains)
        except ServerError as error:
            logger.warning("radix_tlru: %s: %s", FLAGS["warm"], error)
        else:
            if metrics is not None:
                metrics.report(found, warmer.gone(found))
        time.sleep(EVERY_S)


def warmer_of(*arguments: Any) -> Warmer:
    """A Warmer of these arguments, as soon as its server takes connections."""
    until = time.monotonic() + _START_S
    while True:
        try:
            return Warmer(*arguments)
        except NoServerError:
            if time.monotonic() > until:
                raise
        time.sleep(_LOOK_EVERY_S)


class _WarmMetrics:
    """What ``radix-tlru top`` lists."""

    def __init__(self) -> None:
        # Imported here as SGLang does: the multiprocess directory must be in the environment by then.
        from prometheus_client import Counter, Gauge

        def gauge(name: str, documentation: str) -> Any:
            return Gauge(f"sglang:tlru_warm_{name}", documentation, ["prompt"], multiprocess_mode="mostrecent")

        fewest = "of several replicas, on the one that had fewest"
        self._tokens = gauge("tokens", "Tokens of a prompt that is kept warm.")
        self._cached = gauge(
            "cached_tokens", f"Tokens of a warm prompt that were found cached in the last round; {fewest}."
        )
        self._prefilled = Counter(
            "sglang:tlru_warm_prefilled_tokens_total",
            f"Tokens prefilled to keep prompts warm, but for the last page of each; {fewest} of a prompt.",
        )

    def report(self, found: Sequence[Warmed], prefilled: int) -> None:
        """A round is done."""
        for each in found:
            self._tokens.labels(each.name).set(each.tokens)
            self._cached.labels(each.name).set(each.cached)
        self._prefilled.inc(prefilled)
