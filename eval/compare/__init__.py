"""`python -m eval compare`: policies against stock lru on many traces, and one verdict for each.

| file | its job | in → out |
|---|---|---|
| `traces.py` | which traces: those that were named, a folder, or the suite | flags → sources → surveys |
| `settings.py` | which cells: traces × capacities × ξ × policies | surveys, flags → settings |
| `cells.py` | running the cells of a setting beside lru | setting → rows |
| `bootstrap.py` | figures of resampled sessions | uncached tokens → figures of each resample |
| `changes.py` | what a change against lru is, and from where it counts | figures → relative changes |
| `verdict.py` | never worse than lru, or where it is | rows → sentences |
| `table.py` | rows as tables | rows → lines of text |
| `picture.py`, `page.py` | the page | verdicts → heat maps, HTML |
| `command.py` | the command | – |

A setting is one trace at one capacity under one ξ. A cell is one policy in one setting. Nothing here knows how a policy
works: names come from :data:`eval.simulate.grid.EVICTIONS`, cells are run by :mod:`eval.simulate.evaluate`.
"""
