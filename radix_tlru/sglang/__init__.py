"""The only place that imports SGLang: the plugin, the cache with the order in it, hooks in the scheduler.

=============  ======================================================================================
file           its job
=============  ======================================================================================
plugin         makes ``--radix-eviction`` a flag of an unmodified SGLang
flags          flags → ``Config``
carrier        the Config travels on ``ServerArgs`` to every process
support        what is supported: flags, models, caches, tree cores; what is not is refused here
releases       which releases of SGLang are supported, and what differs between them
state          what was learned, kept in a file from one run to the next
warming        prompts that are prefilled once the server is up, and kept warm
hooks          how a function of SGLang is hooked, once in a process
metrics/       what an operator sees at ``/metrics``
explainer      what single requests lacked, and who had it evicted
explain_hooks  how a server is asked for that
cache/         the radix cache with the order in it, on either tree core
scheduler/     how long prefills took and when answers are out, shown to the cache
requests/      from the request of a client to the turn that is learned from
offline/       real caches without a server
doctor/        what is installed, what fits, what a server would accept
cpu/           SGLang on a CPU, for tests and the demo
=============  ======================================================================================

>>> from radix_tlru import Config
>>> from radix_tlru.sglang import build_cache        # the one way to obtain the cache
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radix_tlru.sglang.cache.radix_cache import build_cache

__all__ = ["build_cache"]


def __getattr__(name: str) -> Any:
    # Lazy: the entry points live below this package, and finding them must not load SGLang's cache.
    if name == "build_cache":
        from radix_tlru.sglang.cache.radix_cache import build_cache

        return build_cache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
