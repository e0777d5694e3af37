"""Tail-optimised eviction for SGLang's RadixAttention.

``policy`` is the paper: what a token costs, and which leaf gives up its tail. ``objective`` makes its threshold out of
milliseconds, ``learning`` its models out of turns, ``hints`` out of what clients say. None of them knows of SGLang.
``radix_tlru.sglang`` puts them behind the real cache. ``cli`` and ``tools`` are the console script ``radix-tlru``.
Start with :mod:`radix_tlru.policy.tel`.
"""

from radix_tlru.config import Config, ConfigError
from radix_tlru.policy.checks import ModelError, check_prompt_model, check_return_model
from radix_tlru.policy.models import Leaf
from radix_tlru.policy.order import EvictionOrder, Victim
from radix_tlru.policy.policy import Policy, policy_for

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "EvictionOrder",
    "Leaf",
    "ModelError",
    "Policy",
    "Victim",
    "__version__",
    "check_prompt_model",
    "check_return_model",
    "policy_for",
]
