"""Real servers: started, played against, and compared by the TTFT that a client measures.

| file | its job | in → out |
|---|---|---|
| `running_server.py` | a server that runs, whoever started it | URL → health, metrics |
| `server.py` | one SGLang server as a context manager | flags → base URL |
| `warm_start.py` | servers that start in seconds: forked off a process that has imported SGLang | flags → base URL |
| `preloaded.py`, `forked.py` | what that process imports; what a fork of it does to be a server | – |
| `router.py`, `disaggregated.py` | replicas behind SGLang's router; a prefill and a decode server | flags → base URL |
| `calibrate.py` | α and β of a running server | URL → `Timing` |
| `replay/` | `python -m eval replay`: conversations against several servers | trace, arms → rows, table, page |
| `prometheus.py` | a Prometheus that scrapes a server | server → answers to queries |
| `dashboard.py` | `python -m eval dashboard`: the panels of the Grafana dashboard | a server under load → PNG |
| `demo.py`, `gpu.py` | `replay` with everything chosen: without and with a GPU | – |
| `gpu_report.py` | the page of `gpu` | rows → `results.md` |
"""
