"""What is drawn: HTML pages, figures and the picture of the README.

| file | its job | in → out |
|---|---|---|
| `html.py`, `page.css` | the one shell of every page: figures, tables, captions | parts → one file |
| `looks.py` | one look for each policy in every figure; numbers as people read them | policy, number → colour, text |
| `picture.py` | `python -m eval picture` | real caches → the picture of the README |
| `report/` | `python -m eval report` | a folder of cells → page and figures |
"""
