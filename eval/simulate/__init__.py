"""`python -m eval simulate` and `through-sglang`: every combination of the flags, and what came of each.

| file | its job | in → out |
|---|---|---|
| `cells.py` | one combination, and its figures | – |
| `grid.py` | which combinations the flags mean | flags → cells |
| `evaluate.py` | running a cell | cell, trace → outcome |
| `rows.py` | what is on the disk, and how a run goes on | outcomes ↔ `cells.jsonl` |
| `per_request.py` | the requests of a cell on the disk | cached tokens → Parquet |
| `table.py` | cells as a table to read | rows → table |
| `timing.py` | uncached tokens to ms and back | points → α, β |
| `command.py`, `through_sglang.py` | the commands | – |
"""
