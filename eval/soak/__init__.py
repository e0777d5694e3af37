"""`python -m eval soak`: audited steps by the million, and a cache that costs at the end what it cost at the start.

| file | its job | in → out |
|---|---|---|
| `prefixes.py` | what a cache ought to hold | contexts → a number for each prefix; events → a subscriber |
| `sessions.py` | what open sessions refer to | names, closes → prefixes |
| `audit.py` | a real cache, and a dictionary beside it | steps of a scheduler → nothing, or what was lost |
| `hybrids.py` | the same of models with windows and states | – |
| `command.py` | shapes of caches, random steps, requests by the million | flags → tables |
"""

from __future__ import annotations

from eval.soak.command import add_arguments, run

__all__ = ["add_arguments", "run"]
