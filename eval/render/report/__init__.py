"""`python -m eval report DIR`: one page and its figures of a folder that `python -m eval simulate` filled.

| file | its job | in → out |
|---|---|---|
| `rows.py` | what the folder holds, checked | `cells.jsonl`, Parquet → `Row`, `Requests` |
| `scene.py` | which cells are shown, and what is compared | rows, chosen cell → `Scene` |
| `labels.py` | names of variants | – |
| `distribution.py`, `grids.py`, `frontier.py`, `timeline.py` | the figures | `Scene` → figure, or `Missing` |
| `gallery.py` | their titles and captions | `Scene` → PNGs, `Picture` |
| `tables.py`, `page.py` | the figures as numbers, and the page | `Scene`, pictures → HTML |
| `command.py` | flags | – |
"""
