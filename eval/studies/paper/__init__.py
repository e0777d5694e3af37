"""`python -m eval paper`: the experiments of the paper on T-LRU, in its own layout.

Zhang, Li, Moallemi, Peng, "Tail-Optimized Caching for LLM Inference", NeurIPS 2025, arXiv 2510.15152v1. Each table
shows what is found here and, below it, the paper's own numbers. It also says what is from the paper and what is not,
and where the traces, α and β are from.

| file | its job | in → out |
|---|---|---|
| `published.py` | what the paper reports | – |
| `sources.py` | WildChat and ShareGPT, or a model in their place | names → `Source` |
| `grid.py` | what is simulated | `Source`, `Timing` → rows of cells, `Results` |
| `sheet.py`, `tables.py` | Tables 1–6, and three more | `Results` → terminal, Markdown, HTML |
| `figures.py` | Figures 3–7 | `Results` → PNG |
| `command.py` | flags and files | – |

The setting is the paper's. Prompt and answer are cached, and a context may be trimmed as soon as it is served (optional
caching). A page is one token, and capacities are 1,000 to 10,000 tokens. The first 2,000 turns of a trace are served.
TTFT follows from uncached tokens alone: nothing is batched and no request queues.
"""
