"""Writes a random-weight Llama with a byte-level tokenizer, so that a real SGLang serves without a download.

There is no weight file: SGLang fills the weights itself with ``--load-format dummy``. The answers are noise. The cost
is real: prefill time grows with the uncached tokens of a request, as a large model's does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

__all__ = ["CONTEXT", "SHAPES", "SPECIAL_TOKENS", "VOCABULARY", "Shape", "write_demo_model"]

CONTEXT = 32_768  # tokens
VOCABULARY = 512  # tokens; the first 256 are the bytes, token id = byte value
SPECIAL_TOKENS = ("<|bos|>", "<|eos|>", "<|system|>", "<|user|>", "<|assistant|>")

_MARK = "radix_tlru_demo_model"  # key in config.json by which a directory is known to be ours to overwrite

# One special token before each message and one behind it, so the prompt of a turn begins the next turn's prompt.
_CHAT_TEMPLATE = (
    "<|bos|>{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|eos|>' }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama; they alone decide what a token costs."""

    layers: int
    hidden_size: int
    intermediate_size: int  # of the MLP
    heads: int  # attention heads; as many key-value heads
    head_dim: int
    dtype: str = "float32"


# The proportions of a 7B Llama, but with narrow attention. SGLang's torch_native backend computes attention for cached
# tokens as well, and a prefill should cost what its uncached tokens cost. Two heads, for `--tp 2`.
SHAPES = {
    "tiny": Shape(layers=2, hidden_size=384, intermediate_size=1024, heads=2, head_dim=32),
    # Llama-7B but for its vocabulary, for a GPU: what a prefill and its KV cost is what a 7B model's cost.
    "llama-7b": Shape(layers=32, hidden_size=4096, intermediate_size=11_008, heads=32, head_dim=128, dtype="bfloat16"),
}


def write_demo_model(directory: Path, shape: Shape = SHAPES["tiny"]) -> None:
    """Write a model of ``shape`` with its tokenizer into ``directory``, which is made if it is missing.

    One byte of text is one token, whose id is the byte's value; only the name of a special token inside a text is one
    token as a whole. Writing over an earlier demo model is fine, and leaves files that are already right untouched.

    Raises:
        FileExistsError: ``directory`` is a file, or holds anything but a demo model.
        ImportError: the package ``tokenizers`` is missing.
    """
    _refuse_foreign(directory)
    files = {
        "config.json": _json(_config(shape)),  # first: it carries the mark
        "generation_config.json": _json({}),
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": _json(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": CONTEXT,
                "clean_up_tokenization_spaces": False,
                "bos_token": "<|bos|>",
                # No eos_token: random weights would draw it once in 512 tokens and end answers at random.
                "chat_template": _CHAT_TEMPLATE,
            }
        ),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path, content = directory / name, text.encode()
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def _refuse_foreign(directory: Path) -> None:
    """Raise FileExistsError unless ``directory`` is missing, empty or a demo model."""
    if directory.exists() and not directory.is_dir():
        raise FileExistsError(f"{directory} is a file; give a directory that is missing, empty or a demo model")
    if not directory.exists() or not any(directory.iterdir()):
        return
    try:
        config = json.loads((directory / "config.json").read_bytes())
        ours = isinstance(config, dict) and _MARK in config
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise FileExistsError(
            f"{directory} holds other files than a demo model; give a directory that is missing, empty or a demo model"
        )


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": shape.dtype,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        # Said outright, because Llama's defaults are 1 and 2: here these are bytes.
        "bos_token_id": 256 + SPECIAL_TOKENS.index("<|bos|>"),
        "eos_token_id": None,
        _MARK: True,
    }


def _tokenizer() -> str:
    """The text of tokenizer.json: byte-level BPE without merges, so a text is its UTF-8 bytes."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    except ImportError as error:
        raise ImportError(
            "the tokenizer of the demo model needs the package `tokenizers`: in a checkout, pip install '.[serve]'"
        ) from error
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    # Ids that no text encodes to, only random weights draw: letters, so that an answer is something to look at.
    fillers = ("".join(letters) for letters in product("bdfghjklmnprstvwz", "aeiou", ("", "n", "s")))
    pieces = [*_byte_letters(byte_level.alphabet()), *SPECIAL_TOKENS, *fillers][:VOCABULARY]
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS])
    return str(tokenizer.to_str(pretty=True))


def _byte_letters(alphabet: list[str]) -> list[str]:
    """The letter that stands for each byte 0 to 255 in byte-level BPE.

    Source: GPT-2's bytes_to_unicode. A byte whose own character is printable keeps it, the others take, in byte order,
    the characters from U+0100 on.
    """
    stand_ins = iter(sorted(letter for letter in alphabet if ord(letter) > 255))
    return [chr(byte) if chr(byte) in alphabet else next(stand_ins) for byte in range(256)]


def _json(value: object) -> str:
    return json.dumps(value, indent=2) + "\n"
