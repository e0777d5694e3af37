"""How the tokens of texts are counted: by a tokenizer, or by their length."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

from eval.traces.reading.options import Options
from eval.traces.request import TraceError

TokenCount = Callable[[str], int]

_FAR = 2.0
"""Times that tokens as read and as counted by servers may differ unnoted; at 4, 3/4 of each prompt may be missing."""


def counted(options: Options) -> str:
    """How the tokens of texts are counted, for the notes of a trace."""
    by_length = f"length: {options.characters_per_token:g} characters each (--tokenizer NAME counts them)"
    return f"tokens of texts, counted by {options.tokenizer or by_length}; those of a chat template are left out"


def compared(prompts: Sequence[tuple[int, int]]) -> str:
    """What is noted where servers counted far more or far fewer tokens: something is missing, or is no text.

    Args:
        prompts: the tokens of each as read, and as counted.
    """
    read, told = sum(tokens for tokens, _ in prompts), sum(tokens for _, tokens in prompts)
    if told / _FAR <= read <= told * _FAR:
        return ""
    why = "parts of them may be missing in the log, or --characters-per-token is far off"
    return f"{len(prompts):,} prompts have {read:,} tokens; their servers counted {told:,}: {why}"


def token_count(options: Options) -> TokenCount:
    """Counts the tokens of a message, at least one.

    Raises:
        TraceError: the tokenizer cannot be loaded.
    """
    if options.tokenizer is None:
        ratio = options.characters_per_token
        return lambda text: max(1, math.ceil(len(text) / ratio))
    tokenize = load_tokenizer(options.tokenizer)
    return lambda text: max(1, len(tokenize(text)))


def load_tokenizer(name: str) -> Callable[[str], Sequence[int]]:
    """A Hugging Face tokenizer, by its name or path, as a function from a text to token ids.

    Raises:
        TraceError: it cannot be loaded.
    """
    if name.startswith(("/", "./", "../", "~")) and not os.path.isdir(os.path.expanduser(name)):
        raise TraceError(f"tokenizer {name}: no such folder")
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(os.path.expanduser(name))
    except ImportError:
        raise TraceError(
            f"tokenizer {name}: needs the package transformers: in a checkout, pip install '.[serve]'"
        ) from None
    except Exception as error:  # of the hub, of the file system, of the tokenizer's own format
        lines = (str(error).strip() or type(error).__name__).splitlines()
        reason = " ".join(lines) if lines[0].endswith(":") else lines[0]
        raise TraceError(f"tokenizer {name}: {reason}") from None
    return lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
