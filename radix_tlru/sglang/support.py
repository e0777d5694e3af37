"""What is supported: flags, models, shapes of caches, tree cores. What is not is refused here, in one line.

What a release of SGLang does not support says :mod:`~radix_tlru.sglang.releases`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from radix_tlru.config import FLAGS, Config, ConfigError
from radix_tlru.sglang.releases import (
    check_version,
    explain_refusal,
    host_tier_refusal,
    hybrid_refusal,
    rust_core_refusal,
    sessions_refusal,
    sglang_version,
    torch_mismatch,
)

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.server_args import ServerArgs

__all__ = [
    "METRIC_LABELS",
    "TOKENIZER_WORKERS",
    "check_engine",
    "check_model",
    "check_server_args",
    "check_shape",
    "conflict",
    "page_size_of",
    "python_core_reason",
    "replicas_of",
    "resolved",
]

TOKENIZER_WORKERS = "get_tokenizer_worker_class"
"""Method of ``ServerArgs`` by which further tokenizer processes find their class."""

METRIC_LABELS = ("answer", "phase", "policy", "position", "silent", "unit")
"""Labels of our metrics beside those of a rank."""

# Flags of SGLang that choose another cache or another order, and the value that each has to have.
_CONFLICTS = {
    "--enable-hisparse": ("enable_hisparse", False),  # drops KV of its own choice, and wants no radix cache
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
    "--encoder-only": ("encoder_only", False),  # it caches no KV
    "--use-ray": ("use_ray", False),  # its schedulers load no plugins
    "--kv-canary-sweep-interval": ("kv_canary_sweep_interval", 0),  # a sweep walks SGLang's own class of cache alone
    "--enable-int8-mamba-checkpoint": ("enable_int8_mamba_checkpoint", False),  # nor does its pool go with another
    # They take requests in without the code that stamps them and checks hints.
    "--grpc-mode": ("grpc_mode", False),
    "--smg-grpc-mode": ("smg_grpc_mode", False),
}


# ---- servers ----


def conflict(flag: str, value: Any, config: Config) -> ConfigError:
    """A flag of SGLang that does not go together with the configuration."""
    shown = flag if value is True else f"{flag} {value}"
    return ConfigError(f"{FLAGS['policy']} {config.policy}: not supported together with {shown}; drop one of them")


def check_server_args(server_args: ServerArgs, config: Config) -> None:
    """Raise ConfigError if a server with these arguments cannot evict as the configuration says."""
    check_version(sglang_version() or "(not installed)")
    for flag, (field, neutral) in _CONFLICTS.items():
        value = getattr(server_args, field, neutral)
        if value != neutral:
            raise conflict(flag, value, config)
    for given, refusal, is_refused in _refusals(server_args, config):
        if is_refused:
            raise ConfigError(f"{given}: {refusal}")


def check_engine(config: Config) -> None:
    """Raise ConfigError for what an ``sglang.Engine`` cannot do, as it has no HTTP server."""
    without = "must be left out of an Engine, which has no HTTP server"
    if config.warm is not None:
        raise ConfigError(f"{FLAGS['warm']} {config.warm}: {without}")
    for field in ("prefill_ahead", "explain"):
        if getattr(config, field):
            raise ConfigError(f"{FLAGS[field]}: {without}")


def _refusals(server_args: ServerArgs, config: Config) -> Iterator[tuple[str, str, object]]:
    """A table: the flag that is refused, in which words, and whether it is. The first that is ends the launch."""
    from sglang.srt.environ import envs

    policy, together = f"{FLAGS['policy']} {config.policy}", "not supported together with"
    is_tiered, is_prefill = server_args.enable_hierarchical_cache, server_args.disaggregation_mode == "prefill"
    workers, replicas = getattr(server_args, "tokenizer_worker_num", 1), replicas_of(server_args)
    tokenizers = f"--tokenizer-worker-num {workers}"

    # It takes requests in elsewhere, too.
    yield policy, f"{together} SGLANG_RUST_SERVER; drop one of them", envs.SGLANG_RUST_SERVER.get()
    # Stages that agree on ξ would wait there for what the scheduler sends only afterwards.
    stages = f"--disaggregation-mode prefill --enable-hierarchical-cache --pp-size {server_args.pp_size}"
    yield policy, f"{together} {stages}; drop one of them", is_prefill and is_tiered and server_args.pp_size > 1
    # A layer at a time, each launched anew and beside steps of decode: the stopwatch would see the last one alone.
    untimed = f"--enable-pdmux, whose prefills cannot be timed, unless {FLAGS['threshold']} is given"
    yield policy, f"{together} {untimed}", server_args.enable_pdmux and not config.is_pinned
    # To SGLang each step of denoising is a prefill, of a block that was answered, too.
    dllm = getattr(server_args, "dllm_algorithm", None)
    untold = f"--dllm-algorithm {dllm}, whose answers look like prefills, unless {FLAGS['threshold']} is given"
    yield policy, f"{together} {untold}", dllm is not None and not config.is_pinned
    decode = "--disaggregation-mode decode: prompts are cached, and evicted, at the prefill servers; give it to them"
    yield policy, f"{together} {decode}", server_args.disaggregation_mode == "decode"
    reason = is_tiered and host_tier_refusal()
    yield policy, f"{together} --enable-hierarchical-cache: {reason}", reason
    reason = server_args.enable_streaming_session and sessions_refusal()
    yield policy, f"{together} --enable-streaming-session: {reason}", reason

    on_release, dry_run = f"not supported with SGLang {sglang_version()}", FLAGS["dry_run"]
    needed = "needs --enable-metrics, where what would be saved is told"
    yield dry_run, needed, config.dry_run and not server_args.enable_metrics
    reason = config.dry_run and rust_core_refusal()  # its paths tell the dry run what has children, on either core
    yield dry_run, f"{on_release}: {reason}", reason

    host, has_host = f"{FLAGS['host_threshold']} {config.host_threshold}", config.host_threshold is not None
    yield host, "needs --enable-hierarchical-cache", has_host and not is_tiered
    is_buffer = has_host and server_args.hicache_host_memory_mode != "cache"
    yield host, "needs --hicache-host-memory-mode cache", is_buffer

    priority = f"{FLAGS['highest_priority']} {config.highest_priority}"
    aborts = server_args.abort_on_priority_when_disabled and not server_args.enable_priority_scheduling
    unheard = "--abort-on-priority-when-disabled, by which SGLang refuses requests with one; drop one of them"
    yield priority, f"{together} {unheard}", aborts and config.highest_priority is not None

    yield FLAGS["explain"], f"{together} {tokenizers}", config.explain and workers > 1
    reason = config.explain and explain_refusal()
    yield FLAGS["explain"], f"{on_release}: {reason}", reason

    ahead = FLAGS["prefill_ahead"]
    for flag, is_given in (
        (tokenizers, workers > 1),  # those processes load no plugins
        ("--disaggregation-mode prefill", is_prefill),  # it answers no one alone
        ("--enable-memory-saver", server_args.enable_memory_saver),  # while memory is released nobody may ask
    ):
        yield f"{FLAGS['warm']} {config.warm}", f"{together} {flag}", is_given and config.warm is not None
        yield ahead, f"{together} {flag}", is_given and config.prefill_ahead
    # Which of the replicas has the conversation only a router knows.
    divided = f"{'--dp-size' if server_args.dp_size > 1 else '--attn-dp-size'} {replicas}"
    yield ahead, f"{together} {divided}", config.prefill_ahead and replicas > 1

    label = min(set(server_args.extra_metric_labels or ()).intersection(METRIC_LABELS), default=None)
    is_ours = server_args.enable_metrics and label is not None
    yield f"--extra-metric-labels {label}", "must be another label, as metrics of ours have that one", is_ours
    cannot_be_told = workers > 1 and not hasattr(server_args, TOKENIZER_WORKERS)
    yield policy, f"{together} {tokenizers}; drop one of them", cannot_be_told


def replicas_of(server_args: ServerArgs) -> int:
    """Caches among which requests are divided: replicas of the model, or groups of data-parallel attention."""
    # Without a field of its own the second is among the replicas.
    decided = resolved(server_args)
    return int(decided.dp_size * getattr(decided, "attn_dp_size", 1))


def page_size_of(server_args: ServerArgs) -> int:
    """Tokens of a page, as SGLang has decided so far; 1 if nothing was said."""
    return int(resolved(server_args).page_size or 1)


def resolved(server_args: ServerArgs) -> Any:
    """The same arguments as SGLang has decided so far; their own fields stay as the operator gave them (None, auto)."""
    from sglang.srt.arg_groups.model_override_base import resolving_view

    return resolving_view(server_args)


def check_model(server_args: ServerArgs, config: Config) -> None:
    """Raise ConfigError for a model whose cache would not follow the order. Its weights are not loaded yet."""
    from sglang.srt.arg_groups.model_override_base import model_config_of
    from sglang.srt.hardware_backend.mlx.runtime import use_mlx
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    model, decided = model_config_of(server_args), resolved(server_args)
    # SGLang may have read the model before it decided to keep windows in one pool with all else.
    has_windows = model.is_hybrid_swa and not decided.disable_hybrid_swa_memory
    is_stateful = uses_ssm_state(model)
    is_hybrid = has_windows or is_stateful
    refusals = {
        "--disable-radix-cache, which SGLang chose for this model, or for another flag, as it logged": (
            decided.disable_radix_cache
        ),
        "--model-impl transformers and a multimodal model, for which SGLang disables its radix cache": (
            model.is_multimodal and decided.model_impl == "transformers"
        ),
        "a model of sliding-window layers alone": has_windows and model.full_attention_layer_ids == [],
        f"a hybrid model: {hybrid_refusal()}": bool(is_hybrid and hybrid_refusal()),
        "--enable-hierarchical-cache and a hybrid model": is_hybrid and decided.enable_hierarchical_cache,
        "a Mamba / SSM hybrid model on MLX": is_stateful and use_mlx(),
    }
    for shape, present in refusals.items():
        if present:
            raise ConfigError(f"{FLAGS['policy']} {config.policy}: not supported with {shape} ({model.model_path})")


# ---- caches ----


def check_shape(params: CacheInitParams, *, hierarchical: bool = False) -> None:
    """Raise ConfigError for a cache that would not follow the order, naming what makes it so."""
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    full, swa, mamba = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
    components = set(params.tree_components or (full,))
    others = ", ".join(sorted(each.name for each in components - {full, swa, mamba}))
    overridden = ", ".join(sorted(each.name for each in set(params.component_registry_override or ()) - {full}))
    hybrid = _hybrid_components(params)
    refusals = {
        "--disable-radix-cache: there is nothing to evict": params.disable,
        "a model without full attention": full not in components,
        "a sliding-window (SWA) model whose windows the cache does not keep": (
            params.sliding_window_size is not None and swa not in components
        ),
        f"a model that caches {others}": bool(others),
        f"a {overridden} component other than SGLang's": bool(overridden),
        f"{hybrid} beside full attention: {hybrid_refusal()}": bool(hybrid and hybrid_refusal()),
        f"--enable-hierarchical-cache and {hybrid} beside full attention": hierarchical and bool(hybrid),
        f"--enable-hierarchical-cache: {host_tier_refusal()}": hierarchical and bool(host_tier_refusal()),
    }
    for shape, present in refusals.items():
        if present:
            raise ConfigError(f"--radix-eviction: not supported with {shape}")


def python_core_reason(params: CacheInitParams, config: Config, *, hierarchical: bool = False) -> str | None:
    """Why a cache is on SGLang's Python tree core; None if it is on the Rust core, as SGLang's own would be.

    Raises:
        ConfigError: the server was told to use a tree core that is neither of SGLang's two.
    """
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache.unified_cache import tree_core_registry as cores
    from sglang.srt.mem_cache.unified_cache.components import ComponentType

    if config.policy == "lru":
        return "lru is compared with stock, and which leaf stock refreshes when it splits one Rust does not tell"
    if hierarchical:
        return "which leaves a hierarchical cache has on either tier Rust does not tell"
    if hybrid := _hybrid_components(params):
        return f"what a next turn can use of {hybrid} beside full attention Rust does not tell"
    plain = replace(params, tree_components=(ComponentType.FULL,), component_registry_override=None)
    name = cores.select_tree_core_backend(plain)
    if name == "rust":
        if refusal := rust_core_refusal():
            return refusal
        sources = cores._RUST_TREE_CORE_MANIFEST.parent.parent / "Cargo.toml"
        built_here = sources.is_file() or envs.SGLANG_RUST_BUILD_MODE.get() == "force"
        return None if built_here else torch_mismatch()
    if name != "python":
        raise ConfigError(f"--radix-eviction: not supported on the tree core {name}; rust and python are")
    return cores._rust_fallback_reason(plain) or "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python"


def _hybrid_components(params: CacheInitParams) -> str:
    """What a hybrid model caches beside the KV of full attention; empty for any other."""
    return " and ".join(each.name for each in params.tree_components or () if each.name != "FULL")
