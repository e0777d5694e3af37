"""`python -m eval constants`: every tuned constant of the package, and what happens at half and at twice its value.

| file | its job | in → out |
|---|---|---|
| `table.py` | the constants, as data | – |
| `changed.py` | another value of a constant, in this process | constant, factor → the package with it |
| `measure.py` | a trace through the cache with such a value | trace, constant, factor → figures |
| `command.py` | flags, the list, the table of changes | – |
"""
