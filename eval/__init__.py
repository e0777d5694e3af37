"""The evaluation harness: real servers, one workload, one table. Run from the checkout as `python -m eval`.

| file | its job | in → out |
|---|---|---|
| `workload.py` | what users send: conversations, turns, waits | mix and seed → conversations |
| `server.py` | one SGLang server as a context manager | flags → base URL, stopped for certain |
| `router.py` | several of them behind SGLang's own router | flags → base URL, stopped for certain |
| `client.py` | one streamed request and its clock | prompt token ids → `RequestResult` |
| `replay.py` | plays conversations against one server | workload → a result per request |
| `summary.py` | what the results say | results, threshold → `Summary`, a table |
| `demo.py` | settings and arms of `make demo` | nothing → the table |

Modules import upwards in this list only; nothing here is imported by the package `radix_tlru`.
"""
