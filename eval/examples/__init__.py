"""Short programs to start from, each run by a test.

| file | what it shows |
|---|---|
| `eviction.py` | one eviction, through the public API of the package alone |
| `tool_calls.py` | a return model of one's own |
"""
