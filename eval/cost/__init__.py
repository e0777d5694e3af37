"""`python -m eval bench`: what things cost. Ratios within a run can be compared; times of two runs cannot.

| file | what is measured | compared with |
|---|---|---|
| `simulator.py` | a simulated request, and the cache's part of a real one | stock lru, on either tree core |
| `served.py` | the cache's part of a request with all tokens, learning included | stock lru |
| `decision.py` | one decision of the eviction order | tlru |
| `eviction.py` | one eviction, among up to a million leaves | stock lru |
| `decode.py` | a decoded token in a full pool | stock lru |
| `trim.py` | TEL and percentiles with coarser trims | trims to the page |
| `memory.py` | bytes of a leaf | stock lru |
| `longest.py` | the longest call of each kind in the scheduler's thread | stock lru |
| `scheduler.py` | eviction in the steps of live servers, inter-token latency | stock lru |
| `latency.py` | TTFT and ITL of live servers that are asked in turn | stock lru, twice |
| `command.py` | – | flags |

A section is a module with ``run(args)``, which measures and prints its tables.
"""
