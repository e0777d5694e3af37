"""`python -m eval soak`: audited random steps by the million, and a cache whose requests must not get dearer.

| file | its job | in → out |
|---|---|---|
| `shape.py` | which caches are audited | – |
| `prefixes.py` | what a cache ought to hold | contexts → a number for each prefix; events → a subscriber |
| `sessions.py` | what open sessions refer to | names, closes → prefixes |
| `ledger.py` | a real cache, a dictionary beside it, and the audit | – → nothing, or an AssertionError |
| `audit.py` | steps of a scheduler, each followed by an audit | numbers → steps |
| `hybrids.py` | the same for models with windows and states | – |
| `steps.py` | the shapes, random steps, requests by the million | counts, seed → tables |
| `command.py` | – | flags |
"""
