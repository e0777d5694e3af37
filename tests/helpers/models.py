"""Models for servers: the demo model with weights of its own, and adapters for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radix_tlru.tools.demo_model import write_demo_model

QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
"""What makes the demo model one whose attention SGLang can replicate, as it cannot a Llama's."""


def write_weighted_model(directory: Path, seed: int, **config: Any) -> Path:
    """The demo model with random weights of the usual size: SGLang's dummy ones answer anything with equal odds.

    Args:
        config: what its `config.json` shall say instead.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_demo_model(directory)
    described = directory / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), **config}))
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
