"""The plugin: what makes ``--radix-eviction etlru`` a flag of an unmodified SGLang.

SGLang calls :func:`register` through its entry-point group ``sglang.srt.plugins``, in the launching process before
flags are parsed and again in every scheduler process. These are the steps of a server with our eviction. Each refuses
rather than letting stock eviction through:

1. ``ServerArgs.add_cli_args``: the flags exist only if the hook that reads them is in place.
2. ``ServerArgs.from_cli_args`` (the command line, a YAML ``--config``) or ``Engine.server_args_class`` (Python): the
   flags become a Config, which travels on ``ServerArgs``. These select our cache backend by name.
3. ``ServerArgs.check_server_args``: the model is known but not loaded; shapes that are not supported end here.
4. The backend's factory builds the cache with that Config, and hooks the scheduler. From then on the cache
   is told when a batch is done, when the server is idle, and how long prefills took if the threshold follows them.
5. Each request is stamped where it is tokenized, in the launching process (``requests.metadata``).
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from radix_tlru.config import FLAGS, Config, ConfigError
from radix_tlru.learning.model_check import check_custom_model
from radix_tlru.sglang import carrier, explain_hooks, flags, support, warming
from radix_tlru.sglang.requests import ahead, metadata
from radix_tlru.sglang.state import StateKeeper, check_state, state_file_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.server_args import ServerArgs

__all__ = ["register", "server_args"]

logger = logging.getLogger(__name__)

_RECORD = "sglang.srt.server_args.ServerArgs"


def register() -> None:
    """Entry point: put the hooks in place. Without ``--radix-eviction`` they change nothing."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_RECORD}.add_cli_args", _add_cli_args, HookType.AFTER)
    HookRegistry.register(f"{_RECORD}.from_cli_args", _from_cli_args, HookType.AROUND)
    HookRegistry.register(f"{_RECORD}.check_server_args", _check_server_args, HookType.AFTER)
    if get_radix_cache_factory(carrier.BACKEND) is None:
        register_radix_cache_backend(carrier.BACKEND, _create_cache)
    if not isinstance(vars(Engine)["server_args_class"], staticmethod):
        Engine.server_args_class = staticmethod(_engine_server_args(Engine.server_args_class))


def server_args(config: Config, **arguments: Any) -> ServerArgs:
    """SGLang's own ``ServerArgs`` of ``arguments``, for a server that evicts as ``config`` says.

    Raises:
        ConfigError: an argument contradicts the configuration, or this SGLang is not supported.
    """
    from sglang.srt.server_args import ServerArgs

    if "radix_eviction_policy" in arguments:
        raise support.conflict("--radix-eviction-policy", arguments["radix_eviction_policy"], config)
    return _select(ServerArgs(**arguments), config)


def _add_cli_args(_result: None, parser: argparse.ArgumentParser) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    # SGLang only logs a hook that it failed to apply. A flag that nobody reads must not exist.
    missing = {f"{_RECORD}.from_cli_args", f"{_RECORD}.check_server_args"} - HookRegistry._patched
    if missing:
        logger.error("radix_tlru: %s is not available, as SGLang did not hook %s", FLAGS["policy"], sorted(missing))
        return
    flags.add_flags(parser)


def _from_cli_args(original: Callable[..., ServerArgs], cls: type[ServerArgs], args: argparse.Namespace) -> ServerArgs:
    try:
        config = flags.config_from(flags.given_flags(args))
        if config is not None and getattr(args, "_radix_eviction_policy_explicitly_set", False):
            raise support.conflict("--radix-eviction-policy", args.radix_eviction_policy, config)
        arguments = original(cls, args)
        if config is None:
            return _stock(arguments)
        carrier.mark_command_line(arguments)
        return _select(arguments, config)
    except ConfigError as error:
        _exit(error)


def _engine_server_args(original: Callable[..., ServerArgs]) -> Callable[..., ServerArgs]:
    """For Python: ``sglang.Engine(model_path=…, radix_eviction="etlru", tlru_threshold=4096)``."""

    def engine_server_args(**arguments: Any) -> ServerArgs:
        keywords = map(flags.keyword, (*FLAGS.values(), *flags.REMOVED))
        config = flags.config_from({name: arguments.pop(name, None) for name in keywords})
        if config is not None:
            support.check_engine(config)
        return _stock(original(**arguments)) if config is None else server_args(config, **arguments)

    return engine_server_args


def _stock(arguments: ServerArgs) -> ServerArgs:
    """Those of a server that evicts as stock does, unless they name our backend, which would have no Config."""
    if arguments.radix_cache_backend == carrier.BACKEND:
        raise _selected_by_name()
    return arguments


def _selected_by_name() -> ConfigError:
    return ConfigError(f"--radix-cache-backend {carrier.BACKEND}: is selected by {FLAGS['policy']} etlru, not by name")


def _select(arguments: ServerArgs, config: Config) -> ServerArgs:
    """Make them those of a server with our cache, or say why that cannot be."""
    support.check_server_args(arguments, config)
    if config.return_model is not None:
        check_custom_model(config.return_model)  # or end here, before a model is loaded
    if getattr(arguments, "tokenizer_worker_num", 1) > 1:
        # Those processes load no plugins; here they are handed a class that has our hooks.
        setattr(arguments, support.TOKENIZER_WORKERS, metadata.tokenizer_worker_class)
    metadata.install()
    if config.explain:
        explain_hooks.add_route()
    if config.warm is not None:
        warming.install(config)
    if config.prefill_ahead:
        ahead.install()
    carrier.attach(arguments, config)
    return arguments


def _check_server_args(_result: None, arguments: ServerArgs) -> None:
    """Refuse models whose cache would not follow the order, and states of others, before weights are loaded."""
    config = carrier.config_of(arguments)
    if config is None:
        return
    try:
        support.check_model(arguments, config)
        check_state(arguments, config)
    except ConfigError as error:
        if carrier.came_from_command_line(arguments):
            _exit(error)
        raise


def _create_cache(context: TreeCacheBuildContext) -> BasePrefixCache:
    """The factory behind our backend name, in the scheduler process."""
    from radix_tlru.sglang.cache.radix_cache import build_cache
    from radix_tlru.sglang.requests import processors
    from radix_tlru.sglang.requests.tool_calls import call_tokens
    from radix_tlru.sglang.scheduler import batches, ranks

    config = carrier.config_of(context.server_args)
    if config is None:
        raise _selected_by_name()
    batches.install(config, context.server_args)
    if config.explain:
        explain_hooks.install()
    if context.server_args.enable_custom_logit_processor:
        processors.install(config)
    hierarchical = context.enable_hierarchical_cache
    params = replace(context.params, tree_components=_components(context))
    cache = build_cache(params, config, hierarchical=hierarchical, state=_state_keeper(context, config))
    cache.tail.breaker.is_armed = True
    if not config.dry_run:  # where SGLang's lru evicts on every rank, whatever fails
        ranks.install(cache.tail)
    tokenizer = getattr(context.tp_worker, "tokenizer", None)
    cache.tail.call_tokens = call_tokens(context.server_args, tokenizer)
    if hierarchical:  # as SGLang's own factory does
        cache.init_hicache(context.server_args, context.params)
        context.tp_worker.register_hicache_layer_transfer_counter(cache.cache_controller.layer_done_counter)
    doing = "dry run: stock lru evicts, and watched is" if config.dry_run else "evicting by"
    logger.info("radix_tlru: %s %s, page size %d", doing, cache.tail.config, context.params.page_size)
    return cache


def _state_keeper(context: TreeCacheBuildContext, config: Config) -> StateKeeper | None:
    """What keeps the state of this rank; the first rank of the first replica saves it."""
    from sglang.srt.runtime_context import get_parallel

    file = state_file_of(context.server_args, config)
    if file is None:
        return None
    is_first = not (context.tp_rank or context.params.pp_rank or get_parallel().dp_rank)
    return StateKeeper(file, saves=is_first)


def _components(context: TreeCacheBuildContext) -> tuple[ComponentType, ...]:
    """What is cached of a token, as SGLang's own factory finds it."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    found = {
        ComponentType.FULL: not (context.is_hybrid_swa and context.full_tokens_per_layer == 0),
        ComponentType.SWA: context.is_hybrid_swa,
        ComponentType.MAMBA: context.is_hybrid_ssm,
        ComponentType.C128: hasattr(context.params.req_to_token_pool, "req_to_c128_sidecar"),
    }
    return tuple(component for component, present in found.items() if present)


def _exit(error: ConfigError) -> NoReturn:
    """End the launching process as argparse does: one line and status 2."""
    print(f"sglang: error: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)
