"""Tail-optimised eviction for SGLang's RadixAttention.

``tel`` ← ``models`` ← ``order`` hold the policy, and ``learning`` what a server learns of its turns; none of them
knows of SGLang. ``radix_tlru.sglang`` puts them behind the real cache.
Start with :mod:`radix_tlru.policy.tel`.
"""

from radix_tlru.config import Config, ConfigError
from radix_tlru.policy.models import Leaf, Policy, policy_for
from radix_tlru.policy.order import EvictionOrder
from radix_tlru.policy.victims import Victim

__version__ = "0.1.0"

__all__ = ["Config", "ConfigError", "EvictionOrder", "Leaf", "Policy", "Victim", "__version__", "policy_for"]
