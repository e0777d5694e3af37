"""SGLang's ``ServerArgs`` record: the Config travels on it, from the launching process to every scheduler process."""

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


def attach(record: ServerArgs, config: Config) -> None:
    """Make the record one of a server with our cache. A process without the plugin does not know this backend.

    SGLang's own policy stays lru, also for a model with another default (Qwen3-VL). With another policy SGLang would
    not look up waiting requests again.
    """
    record.radix_cache_backend = BACKEND
    record._radix_eviction_policy_explicitly_set = True
    setattr(record, _CONFIG, config)


def config_of(record: ServerArgs) -> Config | None:
    """The Config that travels on a record; None if stock eviction was asked for."""
    return getattr(record, _CONFIG, None)


def mark_command_line(record: ServerArgs) -> None:
    """The record came from a command line: an error ends it with one line and a status, not with a traceback."""
    setattr(record, _COMMAND_LINE, True)


def came_from_command_line(record: ServerArgs) -> bool:
    """Whether :func:`mark_command_line` was called."""
    return getattr(record, _COMMAND_LINE, False)
