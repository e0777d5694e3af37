"""Caches that a trace is served through: what each policy, engine or fleet finds cached.

| file | its job | in → out |
|---|---|---|
| `simulator.py` | a radix cache without KV under the server's own eviction order | requests → cached tokens |
| `context_tree.py` | the tree of that cache | a context → its nodes |
| `policies.py` | every policy of the simulator by name: two models and a weight | name, sizes → `SimulatedCache` |
| `models.py` | return and prompt models that need more than a server knows | known facts of a leaf → λ, Q |
| `knowledge.py`, `futures.py` | what may be known of a whole trace, its future included | requests → facts by request |
| `real.py` | the real caches of SGLang, stock and with radix-tlru | name, sizes → `RealCache` |
| `pages.py` | numbers for the pages of a context | units of a trace → page ids, token ids |
| `blocks.py`, `nodes.py` | a tree of pages, and one of nodes, that a rule evicts from | requests → cached tokens |
| `vllm.py`, `tensorrt.py` | the eviction rules of other engines | sizes → a cache |
| `published/` | published policies, one a file | sizes → a cache |
| `baselines.py` | all of these, and stock SGLang, by name | name, sizes → a cache |
| `routing.py`, `prefix_aware.py` | several caches behind a router | requests → cached tokens |

Everything here is a :class:`~eval.caches.simulator.Cache`: it serves one request after the other and says how many
tokens of each prompt were cached. Nothing here reads flags, prints, or knows of time to first token.
"""
