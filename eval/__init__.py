"""The evaluation harness, run from the checkout as `python -m eval <command>`.

| where | its job | in → out |
|---|---|---|
| `traces/` | every trace as one stream of requests | files, data sets, generators → `Request` |
| `simulator.py`, `policies.py`, `baselines.py` | what each policy would keep | requests → cached tokens |
| `real.py`, `through_sglang.py` | the same through the real cache of SGLang | requests → cached tokens |
| `routing.py` | N caches behind a router | requests → cached tokens |
| `simulate.py`, `cells.py`, `table.py`, `report/` | grids of cells, and what they say | flags → rows, table, page |
| `paper/` | the paper's experiments in its own layout | flags → tables and figures |
| `tune.py` | settings for one's own trace | trace, objective → flags to paste |
| `server.py`, `router.py`, `disaggregated.py` | real servers as context managers | flags → base URL |
| `replay/`, `demo.py`, `gpu.py` | conversations against live servers, side by side | trace, arms → rows, table, page |
| `bench/` | what things cost beside stock | nothing → ratios of one run |
| `soak/`, `hostile.py` | what was tried to break it | random steps, an attacker → nothing lost, or what was |
| `later.py`, `unseen.py`, `rates.py` | whether what is learned is worth it | traces → figures of many seeds |

Nothing here is imported by the package `radix_tlru`.
"""
