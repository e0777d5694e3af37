"""The evaluation harness, run from the checkout as `python -m eval <command>`.

``README.md`` says what each folder cares about, which command makes which table, and how to add a policy or a trace.

| module | its job |
|---|---|
| `__main__.py` | names of commands, and the module of each |
| `command.py` | how a command runs (`add_arguments(parser)`, `run(args) -> int`), and how it fails |
| `arguments.py`, `trace_arguments.py`, `timing_arguments.py` | flags that several commands take |
| `terminal.py`, `parallel.py` | tables, progress, processes |

Nothing here is imported by the package `radix_tlru`.
"""
