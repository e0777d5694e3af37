"""Plugins of SGLang's for a test's own servers."""

from __future__ import annotations

from pathlib import Path


def write_plugin(directory: Path, source: str) -> str:
    """Lay out a plugin with a function ``register``; returns the PYTHONPATH that a server finds it on."""
    (directory / "plugin_of_a_test.py").write_text(source)
    packaged = directory / "plugin_of_a_test-1.0.dist-info"
    packaged.mkdir()
    (packaged / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin-of-a-test\nVersion: 1.0\n")
    (packaged / "entry_points.txt").write_text("[sglang.srt.plugins]\nof_a_test = plugin_of_a_test:register\n")
    return str(directory)


def slow(per_token_ms: float, per_answer_ms: float = 0.0) -> str:
    """A plugin that sleeps for each token of a prefill, and for each answer on its way out.

    So prefills and first tokens take longer than the load of a machine can change.
    """
    return f"""
import time
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

def prefilled(result, runner, batch, *args, **kwargs):
    if batch.forward_mode.is_extend():
        time.sleep(len(batch.input_ids) * {per_token_ms} / 1000)

def answered(*args, **kwargs):  # in the tokenizer process; the first one also waited for its prefill
    time.sleep({per_answer_ms} / 1000)

def register():
    HookRegistry.register("sglang.srt.model_executor.model_runner.ModelRunner.forward", prefilled, HookType.AFTER)
    out = "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_output"
    HookRegistry.register(out, answered, HookType.BEFORE)
"""
