"""Published policies, each on the same pages and requests as the simulator; `baselines.py` has them by name.

| file | rule | source |
|---|---|---|
| `frequency.py` | SGLang's lfu and slru, by the page | SGLang 0.5.23 |
| `hits_per_token.py` | (hits + 1) / size of a node | sgl-project/sglang#30300 |
| `arc.py` | used once, used more often, and how much room for which | Megiddo and Modha, FAST 2003 |
| `s3_fifo.py` | a small queue before a large one | Yang et al., SOSP 2023 |
| `sieve.py` | a hand that passes over what was used | Zhang et al., NSDI 2024 |
| `workload_aware.py` | how likely a use soon is, by kind of request | KVCache Cache in the Wild, arXiv 2506.02634 |
| `tool_ttl.py` | pins while a tool runs | Continuum, arXiv 2511.02230 |
| `token_kinds.py` | worth of each kind of token | SAECache, arXiv 2605.18825 |
| `turns.py` | which turn a request is, for the three above | – |

A rule is a subclass of :class:`~eval.caches.blocks.TreeCache` (or ``GroupedCache``, ``QueuedCache``, or a rank of
:class:`~eval.caches.nodes.NodeCache`). Rules made for single objects are applied to the tree of prefixes in one
way. Only leaves go. A request uses each page of its path once, and its deepest page goes first. Rules that look at
pages in turn look at all of them, and what they evict goes as soon as it is a leaf.
"""
