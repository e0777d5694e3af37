"""`python -m eval paper`: the experiments of the paper on T-LRU, in its own layout.

Zhang, Li, Moallemi, Peng, "Tail-Optimized Caching for LLM Inference", NeurIPS 2025, arXiv 2510.15152v1. Every table
shows ours and, below, the paper's own numbers, and says what of it is the paper's and what is ours; every run says
where its traces and its α and β are from.

| file | its job | in → out |
|---|---|---|
| `published.py` | what the paper reports | – |
| `timing.py`, `calibrate.py` | TTFT = β + α·uncached | flags, a file or a server → `Timing` |
| `sources.py` | WildChat and ShareGPT, or a model in their place | names → `Source` |
| `grid.py` | what is simulated | `Source`, `Timing` → rows of cells, `Results` |
| `sheet.py`, `tables.py` | Tables 1–6, and three of ours | `Results` → terminal, Markdown |
| `figures.py` | Figures 3–7 | `Results` → PNG |
| `command.py` | flags and files | – |

The setting is the paper's: prompt and answer are cached, a context may be trimmed as soon as it is served (optional
caching), the page is one token, the first 2,000 turns of a trace, capacities of 1,000 to 10,000 tokens. TTFT follows
from uncached tokens alone: nothing is batched and nobody queues.
"""

from __future__ import annotations

from eval.studies.paper.command import add_arguments, run

__all__ = ["add_arguments", "run"]
