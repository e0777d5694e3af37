"""The plugin: what makes ``--radix-eviction tlru`` a flag of an unmodified SGLang.

SGLang calls :func:`register` through its entry-point group ``sglang.srt.plugins``, in the launching process before
flags are parsed and again in every scheduler process. The way of a request for our eviction, each step refusing
rather than letting stock eviction through:

1. ``ServerArgs.add_cli_args``: the flags exist only if the hook that reads them is in place.
2. ``ServerArgs.from_cli_args`` (the command line, a YAML ``--config``) or ``Engine.server_args_class`` (Python):
   the flags become a :class:`~radix_tlru.config.Config`, which travels on the ``ServerArgs`` record, and the record
   selects our cache backend by name. A scheduler process in which the plugin is missing does not know that name.
3. ``ServerArgs.check_server_args``: the model is known but not loaded; shapes that are not supported end here.
4. The backend's factory builds the cache with the Config of the record, and has the scheduler show its prefills if the
   threshold or the weight is to follow them.
5. Each request is stamped where it is tokenized, in the launching process (:mod:`radix_tlru.sglang.requests.metadata`).
"""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from radix_tlru.config import (
    AUTO,
    DEFAULT_NEXT_PROMPT,
    DEFAULT_TTFT_SLO_MS,
    EXACT_BELOW,
    FLAGS,
    LOAD,
    START_THRESHOLD,
    TRIMS,
    Config,
    ConfigError,
    PolicyName,
)
from radix_tlru.learning.custom_model import predictor
from radix_tlru.sglang.requests import metadata as carried
from radix_tlru.sglang.support import (
    check_version,
    host_tier_refusal,
    hybrid_refusal,
    sessions_refusal,
    sglang_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.server_args import ServerArgs

__all__ = ["BACKEND", "config_of", "register", "server_args"]

logger = logging.getLogger(__name__)

BACKEND = "radix_tlru"
"""Name of our factory among SGLang's radix-cache backends."""

_CONFIG = "_radix_tlru_config"
"""Attribute of the ServerArgs record that carries the Config to the scheduler processes."""

_FROM_CLI = "_radix_tlru_from_cli"
"""Attribute of a record that came from a command line, which ends with a line and a status, not with a traceback."""

_TOKENIZER_WORKERS = "get_tokenizer_worker_class"
"""Method of a record that the further processes ask that tokenize. They load no plugins, so there we are let in."""

_RECORD = "sglang.srt.server_args.ServerArgs"

# Flags of SGLang that choose another cache or another order, and what each would have to be.
_CONFLICTS = {
    "--radix-eviction-policy": ("radix_eviction_policy", "lru"),
    "--radix-eviction-policy-config": ("radix_eviction_policy_config", None),
    "--radix-cache-backend": ("radix_cache_backend", None),
    "--disable-radix-cache": ("disable_radix_cache", False),
    "--enable-lmcache": ("enable_lmcache", False),
    "--enable-flexkv": ("enable_flexkv", False),
    "--enable-unified-cache-external-linker": ("enable_unified_cache_external_linker", False),
    "--enable-unified-memory": ("enable_unified_memory", False),
    "--enable-kv-cache-sharding": ("enable_kv_cache_sharding", False),
    "--disaggregation-decode-retraction-backup": ("disaggregation_decode_retraction_backup", None),
    "--enable-pd-role-switch": ("enable_pd_role_switch", False),
    # They take requests in without the code that stamps them and checks hints.
    "--grpc-mode": ("grpc_mode", False),
    "--smg-grpc-mode": ("smg_grpc_mode", False),
}


def register() -> None:
    """Entry point: put the hooks in place. Without ``--radix-eviction`` they change nothing."""
    from sglang.srt.entrypoints.engine import Engine
    from sglang.srt.mem_cache.registry import get_radix_cache_factory, register_radix_cache_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(f"{_RECORD}.add_cli_args", _add_flags, HookType.AFTER)
    HookRegistry.register(f"{_RECORD}.from_cli_args", _from_cli_args, HookType.AROUND)
    HookRegistry.register(f"{_RECORD}.check_server_args", _check_server_args, HookType.AFTER)
    if get_radix_cache_factory(BACKEND) is None:
        register_radix_cache_backend(BACKEND, _create_cache)
    if not isinstance(vars(Engine)["server_args_class"], staticmethod):
        Engine.server_args_class = staticmethod(_engine_server_args(Engine.server_args_class))


def server_args(config: Config, **arguments: Any) -> ServerArgs:
    """SGLang's own record of ``arguments`` for a server that evicts as ``config`` says.

    Raises:
        ConfigError: an argument contradicts the configuration, or this SGLang is not supported.
    """
    from sglang.srt.server_args import ServerArgs

    if "radix_eviction_policy" in arguments:
        raise _conflict("--radix-eviction-policy", arguments["radix_eviction_policy"], config)
    return _select(ServerArgs(**arguments), config)


def config_of(record: ServerArgs) -> Config | None:
    """The Config that travels on a ServerArgs record; None if stock eviction was asked for."""
    return getattr(record, _CONFIG, None)


# ---- the command line ----


def _add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    # SGLang only logs a hook that it failed to apply. A flag that nobody reads must not exist.
    missing = {f"{_RECORD}.from_cli_args", f"{_RECORD}.check_server_args"} - HookRegistry._patched
    if missing:
        logger.error("radix_tlru: %s is not available, as SGLang did not hook %s", FLAGS["policy"], sorted(missing))
        return
    group = parser.add_argument_group("tail-optimised eviction (radix-tlru)")
    group.add_argument(
        FLAGS["policy"],
        dest="radix_eviction",
        # `lru` at page granularity is there for comparisons from Python, not for serving.
        choices=[name for name in get_args(PolicyName) if name != "lru"],
        default=None,
        help="Evict by this order instead of --radix-eviction-policy: 'tlru' takes the tails of conversation paths "
        "beyond their safe budget first, page by page, then LRU leaves (arXiv:2510.15152), and learns while serving "
        "how long next prompts are; 'etlru' takes what is least likely to be missed, and learns, too, which "
        "conversations return, and when.",
    )
    group.add_argument(
        FLAGS["ttft_slo_ms"],
        metavar="MS",
        default=None,
        help="TTFT objective in milliseconds. How many uncached tokens meet it is learned from the prefills of this "
        f"server (default {DEFAULT_TTFT_SLO_MS:g}; {START_THRESHOLD} tokens until enough were measured).",
    )
    group.add_argument(
        FLAGS["target"],
        metavar="PERCENTILE",
        default=None,
        help=f"Instead of {FLAGS['ttft_slo_ms']}: the percentile that shall be lowest, p50 to p99.9. The threshold "
        "stays a quarter below that percentile of the uncached tokens of recent requests.",
    )
    group.add_argument(
        FLAGS["threshold"],
        metavar="TOKENS",
        default=None,
        help=f"Instead of {FLAGS['ttft_slo_ms']}: pin the uncached tokens that still meet the TTFT objective.",
    )
    group.add_argument(
        FLAGS["next_prompt_estimate"],
        metavar="TOKENS",
        default=None,
        help=f"Pin the tokens that the next prompt of a conversation is expected to add (default: learned from the "
        f"prompts of this server; {DEFAULT_NEXT_PROMPT} until enough were seen).",
    )
    group.add_argument(
        FLAGS["median_weight"],
        metavar="W",
        default=None,
        help="From 0 (protect the tail alone) to 1 (plain LRU): how much a token counts whether or not its request is "
        f"in the tail. '{LOAD}': by how many requests wait for what is prefilled (default; 0 for tlru with "
        f"{FLAGS['next_prompt_estimate']}). '{AUTO}': as much as costs the tail next to nothing.",
    )
    group.add_argument(
        FLAGS["trim_chunk"],
        metavar="TOKENS",
        default=None,
        help="Tokens to make room for at least, and to take from a leaf at a time if as many cost the same "
        f"(default: 1/{TRIMS} of the pool; 1, no more than asked for, in pools of fewer than {EXACT_BELOW:,}).",
    )
    group.add_argument(
        FLAGS["host_threshold"],
        metavar="TOKENS",
        default=None,
        help="With --enable-hierarchical-cache: the threshold of the host tier's own eviction, in tokens that neither "
        "tier holds (default: that of the device, pinned or learned).",
    )
    group.add_argument(
        FLAGS["return_model"],
        metavar="MODEL",
        default=None,
        help=f"With {FLAGS['policy']} etlru: a return model of your own instead of what is learned, as "
        "module:attribute or by the name of its entry point.",
    )


def _from_cli_args(original: Callable[..., ServerArgs], cls: type[ServerArgs], args: argparse.Namespace) -> ServerArgs:
    given = {field: getattr(args, _dest(field), None) for field in FLAGS}
    try:
        config = _config_from(given)
        if config is not None and getattr(args, "_radix_eviction_policy_explicitly_set", False):
            raise _conflict("--radix-eviction-policy", args.radix_eviction_policy, config)
        record = original(cls, args)
        if config is None:
            return record
        setattr(record, _FROM_CLI, True)
        return _select(record, config)
    except ConfigError as error:
        _exit(error)


def _config_from(given: dict[str, Any]) -> Config | None:
    """The Config of the flags that were given (None: absent), as text from a command line or as values."""
    if given["policy"] is None:
        for field, value in given.items():
            if value is not None:
                raise ConfigError(f"{FLAGS[field]} {value}: needs {FLAGS['policy']} tlru")
        return None
    return Config(**{field: _number(field, value) for field, value in given.items() if value is not None})


def _number(field: str, value: Any) -> Any:
    """A number out of the text of a flag; what is none is left to Config, which says what is allowed."""
    if field not in ("policy", "target", "return_model") and isinstance(value, str):
        for kind in (int, float):
            try:
                return kind(value)
            except ValueError:
                continue
    return value


# ---- Python: sglang.Engine(model_path=…, radix_eviction="tlru", tlru_threshold=4096) ----


def _engine_server_args(original: Callable[..., ServerArgs]) -> Callable[..., ServerArgs]:
    def engine_server_args(**arguments: Any) -> ServerArgs:
        given = {field: arguments.pop(_dest(field), None) for field in FLAGS}
        config = _config_from(given)
        return original(**arguments) if config is None else server_args(config, **arguments)

    return engine_server_args


# ---- both ----


def _dest(field: str) -> str:
    return FLAGS[field].removeprefix("--").replace("-", "_")


def _select(record: ServerArgs, config: Config) -> ServerArgs:
    """Make the record one of a server with our cache, or say why it cannot be."""
    from sglang.srt.environ import envs

    check_version(sglang_version() or "(not installed)")
    for flag, (field, neutral) in _CONFLICTS.items():
        value = getattr(record, field, neutral)
        if value != neutral:
            raise _conflict(flag, value, config)
    if config.host_threshold is not None and not record.enable_hierarchical_cache:
        raise ConfigError(f"{FLAGS['host_threshold']} {config.host_threshold}: needs --enable-hierarchical-cache")
    if envs.SGLANG_RUST_SERVER.get():  # it takes requests in elsewhere, too
        raise _conflict("SGLANG_RUST_SERVER", True, config)
    if record.disaggregation_mode == "prefill" and record.pp_size > 1 and record.enable_hierarchical_cache:
        # Stages that agree on ξ would wait there for what the scheduler sends only afterwards.
        raise _conflict("--disaggregation-mode prefill --enable-hierarchical-cache --pp-size", record.pp_size, config)
    if record.disaggregation_mode == "decode":
        raise ConfigError(
            f"{FLAGS['policy']} {config.policy}: not supported together with --disaggregation-mode decode: prompts are "
            "cached, and evicted, at the prefill servers; give it to them"
        )
    for flag, wanted, refused in (
        ("--enable-hierarchical-cache", record.enable_hierarchical_cache, host_tier_refusal),
        ("--enable-streaming-session", record.enable_streaming_session, sessions_refusal),
    ):
        if wanted and (refusal := refused()):
            raise ConfigError(f"{FLAGS['policy']} {config.policy}: not supported together with {flag}: {refusal}")
    if config.host_threshold is not None and record.hicache_host_memory_mode != "cache":
        raise ConfigError(f"{FLAGS['host_threshold']} {config.host_threshold}: needs --hicache-host-memory-mode cache")
    if (workers := getattr(record, "tokenizer_worker_num", 1)) > 1:
        if not hasattr(record, _TOKENIZER_WORKERS):
            raise _conflict("--tokenizer-worker-num", workers, config)
        setattr(record, _TOKENIZER_WORKERS, carried.tokenizer_worker_class)
    if config.return_model is not None:
        predictor(config.return_model)  # or end here, before a model is loaded
    carried.install()
    record.radix_cache_backend = BACKEND
    setattr(record, _CONFIG, config)
    return record


def _conflict(flag: str, value: Any, config: Config) -> ConfigError:
    shown = flag if value is True else f"{flag} {value}"
    return ConfigError(f"{FLAGS['policy']} {config.policy}: not supported together with {shown}; drop one of them")


def _check_server_args(_result: None, record: ServerArgs) -> None:
    """Refuse models whose cache would not follow our order, before their weights are loaded."""
    config = config_of(record)
    if config is None:
        return
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.hardware_backend.mlx.runtime import use_mlx
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    model = model_config_of(record)
    is_stateful = uses_ssm_state(model)
    is_hybrid = model.is_hybrid_swa or is_stateful
    shapes = {
        "a model of sliding-window layers alone": model.is_hybrid_swa and model.full_attention_layer_ids == [],
        f"a hybrid model: {hybrid_refusal()}": bool(is_hybrid and hybrid_refusal()),
        "--enable-hierarchical-cache and a hybrid model": is_hybrid and record.enable_hierarchical_cache,
        "a Mamba / SSM hybrid model on MLX": is_stateful and use_mlx(),
    }
    for shape, present in shapes.items():
        if present:
            error = ConfigError(f"{FLAGS['policy']} {config.policy}: not supported with {shape} ({model.model_path})")
            if getattr(record, _FROM_CLI, False):
                _exit(error)
            raise error


def _create_cache(context: TreeCacheBuildContext) -> BasePrefixCache:
    """The factory behind our backend name, in the scheduler process."""
    from radix_tlru.sglang.cache.radix_cache import build_cache
    from radix_tlru.sglang.scheduler import batches

    config = config_of(context.server_args)
    if config is None:
        raise ConfigError(f"--radix-cache-backend {BACKEND}: is selected by {FLAGS['policy']} tlru, not by name")
    batches.install(config)
    hierarchical = context.enable_hierarchical_cache
    params = replace(context.params, tree_components=_components(context))
    cache = build_cache(params, config, hierarchical=hierarchical)
    if hierarchical:  # as SGLang's own factory does
        cache.init_hicache(context.server_args, context.params)
        context.tp_worker.register_hicache_layer_transfer_counter(cache.cache_controller.layer_done_counter)
    logger.info("radix_tlru: evicting by %s, page size %d", cache.tail.config, context.params.page_size)
    return cache


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
