"""Models for servers: small ones of random weights, and adapters for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from eval.live.server import ensure_demo_model
from radix_tlru.tools.demo_model import Shape, write_demo_model

SMALL = Shape(layers=2, hidden_size=64, intermediate_size=128, heads=2, head_dim=32)
"""Of the demo's layers, where it does not matter what a token costs: SGLang does more around them than in them."""

ONE_LAYER = replace(SMALL, layers=1)
"""For random weights, whose answers mean nothing: a step takes two thirds of the time."""

QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
"""What makes the demo model one whose attention SGLang can replicate, as it cannot a Llama's."""


def small_model() -> Path:
    """For `--load-format dummy`."""
    return ensure_demo_model(Path(".out/one-layer-model"), ONE_LAYER)


def write_weighted_model(directory: Path, seed: int, **config: Any) -> Path:
    """A small model with random weights: SGLang's dummy ones answer anything with equal odds.

    So large that another token anywhere in a prompt changes what is likely after it.

    Args:
        config: what its `config.json` shall say instead.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_demo_model(directory, SMALL)
    described = directory / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "initializer_range": 0.1, **config}))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    save_file(model.state_dict(), directory / "model.safetensors", {"format": "pt"})
    return directory


def write_adapter(model: Path, directory: Path, seed: int) -> Path:
    """A LoRA adapter of random weights for the attention of ``model``, in PEFT's files."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, out, rank = config["hidden_size"], config["num_attention_heads"] * config["head_dim"], 4
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        for name in ("q_proj", "v_proj"):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator) / 4
            weights[f"{at}.lora_B.weight"] = torch.randn(out, rank, generator=generator) / 4
    directory.mkdir(parents=True)
    save_file(weights, directory / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": ["q_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(said))
    return directory
