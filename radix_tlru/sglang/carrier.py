"""What carries the Config from the launching process to every scheduler process: SGLang's ``ServerArgs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.server_args import ServerArgs

    from radix_tlru.config import Config

__all__ = ["BACKEND", "attach", "came_from_command_line", "config_of", "mark_command_line"]

BACKEND = "radix_tlru"
"""Name of our factory among SGLang's radix-cache backends."""

_CONFIG = "_radix_tlru_config"
_COMMAND_LINE = "_radix_tlru_from_cli"


def attach(server_args: ServerArgs, config: Config) -> None:
    """Make them those of a server with our cache. A process without the plugin does not know this backend.

    SGLang's own policy stays lru, also for a model with another default (Qwen3-VL). With another policy SGLang would
    not look up waiting requests again.
    """
    server_args.radix_cache_backend = BACKEND
    server_args._radix_eviction_policy_explicitly_set = True
    setattr(server_args, _CONFIG, config)


def config_of(server_args: ServerArgs) -> Config | None:
    """The Config that travels on them; None if stock eviction was asked for."""
    return getattr(server_args, _CONFIG, None)


def mark_command_line(server_args: ServerArgs) -> None:
    """They came from a command line: an error ends the launch with one line and a status, not with a traceback."""
    setattr(server_args, _COMMAND_LINE, True)


def came_from_command_line(server_args: ServerArgs) -> bool:
    """Whether :func:`mark_command_line` was called."""
    return getattr(server_args, _COMMAND_LINE, False)
