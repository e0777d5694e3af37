"""Models whose caches would not follow the order are refused before their weights are loaded, and no others."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs, prepare_server_args
from transformers import AutoConfig

from radix_tlru.sglang.releases import host_tier_refusal, hybrid_refusal
from radix_tlru.tools.demo_model import write_demo_model

HOST = ("--enable-hierarchical-cache", "--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first")
SIZES = {"vocab_size": 512, "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}
HYBRIDS = [("gpt_oss", "GptOssForCausalLM"), ("falcon_h1", "FalconH1ForCausalLM")]


@pytest.fixture(autouse=True)
def plugins_and_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", "torch_cpu")
    load_plugins()


def record_of(directory: Path, config: dict[str, Any], *flags: str) -> ServerArgs:
    """The resolved record of a server with a model of that ``config.json``; empty: of the demo's."""
    write_demo_model(directory)
    if config:
        (directory / "config.json").write_text(json.dumps(config))
    record = prepare_server_args(
        ["--model-path", str(directory), "--radix-eviction", "tlru", "--device", "cpu", "--dtype", "float32", *flags]
    )
    record.resolve_once()
    return record


def hybrid_record(kind: str, architecture: str, directory: Path, *flags: str) -> ServerArgs:
    """The same with a model of sliding-window or of Mamba layers beside full attention."""
    config = AutoConfig.for_model(kind, **SIZES, num_key_value_heads=2).to_dict()
    config.pop("quantization_config", None)
    where = ("--mamba-radix-cache-strategy", "no_buffer", "--disable-overlap-schedule")
    return record_of(directory, {**config, "architectures": [architecture]}, *where, *flags)


def refusal_of(record: ServerArgs, capsys: pytest.CaptureFixture[str]) -> str:
    """The line with which a launch ends."""
    with pytest.raises(SystemExit) as stopped:
        record.check_server_args()
    assert stopped.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_what_sglang_disables_the_radix_cache_for_is_refused_before_the_model_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scoring of several items does so; SGLang would decline it on a CPU unless told of a backend of GPUs."""
    record = record_of(tmp_path / "demo", {}, "--enable-mis", "--attention-backend", "flashinfer")
    assert "not supported with --disable-radix-cache, which SGLang chose" in refusal_of(record, capsys)


def test_a_model_that_sees_in_the_hands_of_transformers_is_refused_before_it_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGLang turns its radix cache off for it as late as it builds the cache."""
    config = {**AutoConfig.for_model("qwen2_5_vl").to_dict(), "architectures": ["Qwen2_5_VLForConditionalGeneration"]}
    record_of(tmp_path / "own", config).check_server_args()
    record = record_of(tmp_path / "theirs", config, "--model-impl", "transformers")
    assert "not supported with --model-impl transformers and a multimodal model" in refusal_of(record, capsys)


@pytest.mark.parametrize(("kind", "architecture"), HYBRIDS)
def test_a_hybrid_model_is_accepted_where_this_release_lets_it(
    kind: str, architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = hybrid_record(kind, architecture, tmp_path / "hybrid")
    refusal = hybrid_refusal()
    with pytest.raises(SystemExit) if refusal else nullcontext():
        record.check_server_args()
    assert f"not supported with a hybrid model: {refusal}" in capsys.readouterr().err or refusal is None


@pytest.mark.skipif(host_tier_refusal() is not None, reason=str(host_tier_refusal()))
@pytest.mark.parametrize(("kind", "architecture"), HYBRIDS)
def test_a_hybrid_model_with_a_host_tier_is_refused_before_its_weights_are_loaded(
    kind: str, architecture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = hybrid_record(kind, architecture, tmp_path / "hybrid", *HOST)
    assert "not supported with --enable-hierarchical-cache and a hybrid model" in refusal_of(record, capsys)


def test_a_model_whose_windows_sglang_keeps_with_all_else_for_a_host_tier_is_no_hybrid(tmp_path: Path) -> None:
    layers = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 64, "num_attention_groups": 2}
    config = {**SIZES, **layers, "model_type": "step3p5", "architectures": ["Step3p5ForCausalLM"]}
    with pytest.raises(SystemExit) if host_tier_refusal() else nullcontext():
        record_of(tmp_path / "step", config, *HOST).check_server_args()
