"""`python -m eval bench`: what things cost. Ratios within a run can be compared; times of two runs cannot.

| file | what is timed | beside |
|---|---|---|
| `simulator.py` | the cache side of a request, and a simulated one | stock lru's, on either tree core |
| `served.py` | the same with all tokens and all that is learned | stock lru's |
| `decision.py` | a decision of the order | one of tlru's |
| `eviction.py` | one eviction, among up to a million leaves | stock lru's |
| `decode.py` | a decoded token, in a full pool | stock lru's |
| `trim.py` | nothing: what coarser trims cost the tail | trims to the page |
| `memory.py` | bytes of a leaf | stock lru's |
| `scheduler.py` | eviction in the steps of live servers, inter-token latency | stock lru's |
| `command.py` | flags | – |
"""

from __future__ import annotations

from eval.cost.command import add_arguments, run

__all__ = ["add_arguments", "run"]
