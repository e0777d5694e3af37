"""What this installation of SGLang offers and accepts, found by trying it: the half of the doctor that imports SGLang.

Run as ``python -m radix_tlru.sglang.doctor.seams MODEL REPORT`` in a process of its own, which SGLang's imports, hooks
and exits may do with what they like. MODEL is the directory of a demo model; REPORT is the file that gets the checks as
JSON.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import io
import json
import os
import pkgutil
import sys
from dataclasses import asdict
from pathlib import Path

from radix_tlru.sglang.cpu.entry_point import PLATFORM_NAME, PLATFORM_VARIABLE
from radix_tlru.sglang.doctor.checks import Check, Section, State
from radix_tlru.sglang.releases import ANSWERS_QUESTIONS, explain_refusal

__all__ = ["COMMAND_LINES", "SEAMS", "examine", "read_request", "tree_core", "try_eviction"]

_CORE = "sglang.srt.mem_cache.unified_cache.unified_tree_core:UnifiedTreeCore"
_COMPONENT = "sglang.srt.mem_cache.unified_cache.components.full:FullComponent"
_STATE = f"{ANSWERS_QUESTIONS}:SchedulerInternalStateController"
_RECEIVER = "sglang.srt.managers.scheduler_components.request_receiver:SchedulerRequestReceiver"
_RECORD = "sglang.srt.server_args:ServerArgs"
_CHATS = "sglang.srt.entrypoints.openai.serving_chat:OpenAIServingChat"

# Where it is, and the parameter that it has to take, if that is the seam.
SEAMS = (
    ("sglang.srt.plugins:load_plugins", None),
    ("sglang.srt.plugins.hook_registry:HookRegistry.register", None),
    (f"{_RECORD}.add_cli_args", None),
    (f"{_RECORD}.from_cli_args", None),
    (f"{_RECORD}.check_server_args", None),
    ("sglang.srt.entrypoints.engine:Engine.server_args_class", None),
    ("sglang.srt.mem_cache.registry:register_radix_cache_backend", None),
    ("sglang.srt.mem_cache.cache_init_params:CacheInitParams", "component_registry_override"),
    ("sglang.srt.mem_cache.unified_cache.tree_core_registry:register_tree_core_backend", None),
    ("sglang.srt.mem_cache.unified_cache.tree_core_registry:select_tree_core_backend", None),
    (f"{_CORE}._split_node", None),
    (f"{_COMPONENT}._evict_device_start", None),
    (f"{_COMPONENT}._evict_device_next_node", None),
    (f"{_COMPONENT}._evict_device_end", None),
    (f"{_COMPONENT}.create_match_validator", "match_device_only"),
    (f"{_COMPONENT}._advance_session_coverage", "leaf"),
    (f"{_COMPONENT}._recede_session_coverage", "leaf"),
    (f"{_COMPONENT}._dec_session_coverage", "leaf"),
    (f"{_COMPONENT}.release_session", "session_id"),
    ("sglang.srt.managers.scheduler:Scheduler.run_batch", "batch"),
    ("sglang.srt.managers.scheduler:Scheduler.process_batch_result", "batch"),
    ("sglang.srt.managers.scheduler:Scheduler.on_idle", None),
    ("sglang.srt.managers.scheduler:Scheduler.maybe_sleep_on_idle", None),
    (f"{_RECEIVER}._broadcast_reqs_across_ranks", "local_reqs"),
    ("sglang.srt.layers.sampler:apply_custom_logit_processor", "sampling_batch_info"),
    ("sglang.srt.managers.schedule_batch:ScheduleBatch.prepare_for_extend", None),
    ("sglang.srt.managers.schedule_batch:ScheduleBatch.check_decode_mem", None),
    ("sglang.srt.managers.schedule_batch:ScheduleBatch.prepare_for_decode", None),
    ("sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache._all_reduce_attn_groups", "op"),
    ("sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache._component_available_size", "component_type"),
    ("sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache.full_evictable_size", None),
    (f"{_COMPONENT}.cleanup_after_caching_req", "insert_result"),
    ("sglang.srt.managers.tokenizer_manager:TokenizerManager._create_tokenized_object", "obj"),
    ("sglang.srt.entrypoints.openai.serving_responses:OpenAIServingResponses.create_responses", "raw_request"),
    ("sglang.srt.entrypoints.anthropic.serving:AnthropicServing.handle_messages", "raw_request"),
    ("sglang.srt.entrypoints.ollama.serving:OllamaServing.handle_chat", "raw_request"),
    ("sglang.srt.entrypoints.ollama.serving:OllamaServing.handle_generate", "raw_request"),
    ("sglang.srt.managers.tokenizer_manager:TokenizerManager.generate_request", "request"),
    ("sglang.srt.managers.tokenizer_manager:TokenizerManager._set_default_priority", "obj"),
    ("sglang.srt.entrypoints.http_server:_wait_and_warmup", "server_args"),
    (f"{_CHATS}.handle_request", "raw_request"),
    (f"{_CHATS}._convert_to_internal_request", "request"),
)

# SGLang's test fixtures: our tests stand on them, a server does not.
TEST_KITS = "sglang.test.kits.unified_radix_cache"

PLUGIN = ("sglang.srt.plugins", "radix_tlru")

_POLICY = "--radix-eviction tlru"

# Flags, and whether a server has to start with them for this installation to be a working one.
COMMAND_LINES = (
    ("", True),
    (_POLICY, True),
    (f"{_POLICY} --tlru-ttft-slo 100", True),
    (f"{_POLICY} --tlru-threshold 4096", True),
    (f"{_POLICY} --tlru-next-prompt-estimate 100", True),
    (f"{_POLICY} --tlru-median-weight 0.2", True),
    ("--radix-eviction etlru", True),
    (f"{_POLICY} --enable-session-radix-cache", True),
    (f"{_POLICY} --tlru-ttft-slo 100 --tlru-threshold 4096", False),
    (f"{_POLICY} --radix-eviction-policy lru", False),
    (f"{_POLICY} --radix-cache-backend x", False),
    (f"{_POLICY} --disable-radix-cache", False),
)


def examine(model: Path) -> list[Section]:
    """Platform, seams and command lines. Sets ``SGLANG_PLATFORM`` in this process if nothing else could serve."""
    return [_platform(), _seams(), _command_lines(model)]


def _platform() -> Section:
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count() if device else 0
    named = os.environ.get(PLATFORM_VARIABLE)
    checks = [
        Check("accelerator", f"{device.type}, {count} visible" if device else "none visible"),
        Check("CUDA of torch", torch.version.cuda or "none"),
        Check(PLATFORM_VARIABLE, named or "not set"),
    ]
    if device is None and not named:
        os.environ[PLATFORM_VARIABLE] = PLATFORM_NAME
        checks.append(Check("assumed below", f"{PLATFORM_VARIABLE}={PLATFORM_NAME}, as there is no accelerator"))
    try:
        from sglang.srt.platforms import current_platform

        checks.append(Check("platform", f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"))
    except Exception as error:
        checks.append(Check("platform", _line(error), "failed"))
    return Section("platform", tuple(checks))


def _seams() -> Section:
    group, name = PLUGIN
    registered = any(point.name == name for point in importlib.metadata.entry_points(group=group))
    checks = [
        Check("entry point", f"{name} in {group}", "ok")
        if registered
        else Check("entry point", f"no {name} in {group}; install radix-tlru beside SGLang", "failed"),
        _seam("radix_tlru.sglang.plugin:register", None),
        *(_seam(path, parameter) for path, parameter in SEAMS),
    ]
    checks += [_explanations(), tree_core(), try_eviction(), read_request()]
    kits = _seam(TEST_KITS, None)
    checks.append(kits if kits.state == "ok" else Check(kits.name, f"{kits.result} (only our tests need it)"))
    return Section("functions of SGLang that the plugin needs", tuple(checks))


def _explanations() -> Check:
    """What only ``--tlru-explain`` needs, which is refused on a release without it."""
    seam = _seam(f"{_STATE}.get_internal_state", None)
    with contextlib.suppress(Exception):  # where SGLang does not import at all, the seam says so
        if refusal := explain_refusal():
            return Check(seam.name, f"--tlru-explain is refused: {refusal}", "refused")
    return seam


def tree_core() -> Check:
    """Which of SGLang's tree cores a cache of ours is on here: both decide alike, the Rust core costs less."""
    try:
        from radix_tlru.config import Config
        from radix_tlru.sglang.offline import cache_params
        from radix_tlru.sglang.support import python_core_reason

        reason = python_core_reason(cache_params(1), Config())
        if reason is not None:
            return Check("tree core", f"python, which costs more: {reason}", "refused")
        from radix_tlru.sglang.cache.rust_core import RustTailCore

        return Check("tree core", f"rust, as {RustTailCore.__name__}", "ok")
    except Exception as error:  # the Rust core may be there and not load
        return Check("tree core", _line(error), "failed")


def try_eviction() -> Check:
    """Evict a tail of a real cache: 44 of 200 cached tokens, of which a budget of 200 + 16 - 64 = 152 must stay.

    Never raises: what goes wrong is the result of the check.
    """
    name = "a tail is evicted"
    try:
        from radix_tlru.config import Config
        from radix_tlru.sglang.cache.radix_cache import build_cache
        from radix_tlru.sglang.offline import OfflineCache, cache_params

        cache = OfflineCache(build_cache(cache_params(256), Config(threshold=64, next_prompt_estimate=16)))
        cache.request(range(200))
        cache.request(range(1_000, 1_100))
        kept = cache.request(range(156))
        if kept != 156:
            return Check(name, f"{kept} tokens of 200 were still there, where 156 should have been", "failed")
        return Check(name, "44 tokens of 200, and 156 stay", "ok")
    except Exception as error:  # what a core's binding lacks shows when it is called
        return Check(name, _line(error), "failed")


def read_request() -> Check:
    """Read what a scheduler knows of a request: as a turn, once it is served, and before that in a batch of prefills.

    Never raises: what SGLang's record of a request lacks is the result of the check. A server would meet it with its
    first request, and evict by lru from then on.
    """
    name = "a request is read as a turn"
    try:
        from array import array

        from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
        from sglang.srt.mem_cache.radix_cache import RadixKey
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.sampling.sampling_params import SamplingParams

        from radix_tlru.sglang.requests.metadata import metadata_of
        from radix_tlru.sglang.requests.turns import is_turn, turn_of
        from radix_tlru.sglang.scheduler.batches import prefill_of

        tokens = array("q", range(200))
        req = Req("doctor", "", tokens, SamplingParams(max_new_tokens=1))
        batch = ScheduleBatch(reqs=[req], forward_mode=ForwardMode.EXTEND, extend_num_tokens=len(tokens))
        prefill, turn = prefill_of(batch), turn_of(req, RadixKey(tokens), 0.0)
        found = is_turn(req), metadata_of(req).stamp, prefill and prefill.tokens, turn.prompt_len, turn.context_len
        if found != (True, None, 200, 200, 200):
            return Check(name, f"{found} was read of a prompt of 200 tokens", "failed")
        return Check(name, "a prompt of 200 tokens, when it is prefilled and when it was served", "ok")
    except Exception as error:  # an attribute that went, or is called otherwise
        return Check(name, _line(error), "failed")


def _seam(path: str, parameter: str | None) -> Check:
    """Import what ``path`` ("module:attribute") names, and look for ``parameter`` in its signature."""
    module, _, attribute = path.partition(":")
    name = f"{attribute}({parameter}=)" if parameter else attribute or module.rpartition(".")[2]
    try:
        found = pkgutil.resolve_name(path)
        if parameter and parameter not in inspect.signature(found).parameters:
            return Check(name, f"takes no {parameter}= in {module}", "failed")
    except Exception as error:  # an import may fail with anything
        return Check(name, _line(error), "failed")
    return Check(name, module, "ok")


def _command_lines(model: Path) -> Section:
    serve = ["--model-path", str(model), "--load-format", "dummy", "--log-level", "error"]
    if os.environ.get(PLATFORM_VARIABLE) == PLATFORM_NAME:
        serve += ["--device", "cpu", "--dtype", "float32"]
    checks = []
    for flags, must_start in COMMAND_LINES:
        refusal = _refusal([*serve, *flags.split()])
        state: State = "ok" if refusal is None else "failed" if must_start else "refused"
        checks.append(Check(flags or "(no flag of ours)", refusal or "would start", state))
    return Section("would a server start?", tuple(checks))


def _refusal(arguments: list[str]) -> str | None:
    """What SGLang says against these arguments, in one line; None if it would go on to load the model.

    The same steps as ``python -m sglang.launch_server`` before its first subprocess.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            from sglang.srt.plugins import load_plugins
            from sglang.srt.server_args import prepare_server_args

            load_plugins()
            record = prepare_server_args(arguments)
            record.resolve_once()
            record.check_server_args()
    except SystemExit as end:
        lines = printed.getvalue().strip().splitlines()
        return lines[-1] if lines else f"ended with status {end.code}"
    except Exception as error:
        return _line(error)
    return None


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


if __name__ == "__main__":
    report = [asdict(section) for section in examine(Path(sys.argv[1]))]
    Path(sys.argv[2]).write_text(json.dumps(report))
