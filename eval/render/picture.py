"""`python -m eval picture`: the picture of the README, drawn from what the real caches keep.

Pool 4,000 tokens, ξ = 600, Q̂ = 100. A (2,000 tokens) and B (1,500) are cached when C (900) arrives: 400 are missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from eval.arguments import output_file
from eval.render.looks import ACCENT, INK
from radix_tlru.policy.tel import keep_within_budget

OUTPUT = Path("eval/results/how-it-works.png")
POOL, THRESHOLD, NEXT_PROMPT = 4000, 600, 100
CONVERSATIONS = {"A": 2000, "B": 1500, "C": 900}
"""Tokens of each, in the order in which they are served."""

CACHED, EVICTED, LATE = "#7f8fa6", "#ffffff", "#c23616"
PLUGIN = "radix-tlru"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to put it."""
    parser.add_argument("--out", type=output_file, default=OUTPUT, metavar="FILE", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Fill the caches, draw, write.

    Raises:
        ValueError: the file cannot be written, or is of no format that matplotlib knows.
    """
    formats = Figure().canvas.get_supported_filetypes()
    if args.out.suffix.lower().removeprefix(".") not in formats:
        raise ValueError(f"--out {args.out}: must end with {', '.join(f'.{name}' for name in sorted(formats))}")
    picture = draw(kept_by_each_cache())
    try:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        picture.savefig(args.out, dpi=170)
    except (OSError, ValueError) as error:
        raise ValueError(f"--out {args.out}: {error}") from None
    print(args.out)
    return 0


def kept_by_each_cache() -> dict[str, dict[str, int]]:
    """Tokens of each conversation that are cached after C was served, by policy, from the real caches."""
    from radix_tlru import Config
    from radix_tlru.sglang import build_cache
    from radix_tlru.sglang.offline import OfflineCache, cache_params, stock_cache

    stock = {"threshold": THRESHOLD, "next_prompt_estimate": NEXT_PROMPT}
    config = Config(threshold=THRESHOLD, next_prompt_estimate=NEXT_PROMPT)
    caches = {
        "stock lru": stock_cache(POOL, core="rust"),
        "stock tlru": stock_cache(POOL, policy="tlru", policy_config=stock, core="rust"),
        PLUGIN: build_cache(cache_params(POOL), config),
    }
    kept: dict[str, dict[str, int]] = {}
    for name, cache in caches.items():
        offline, first = OfflineCache(cache), 0
        contexts = {}
        for conversation, length in CONVERSATIONS.items():
            contexts[conversation] = range(first, first + length)
            first += length
            offline.request(contexts[conversation])
        kept[name] = {conversation: offline.resident(tokens) for conversation, tokens in contexts.items()}
    return kept


def draw(kept: dict[str, dict[str, int]]) -> Figure:
    """A panel for each policy with a bar for each conversation, filled as far as it is cached."""
    figure = Figure(figsize=(10.5, 2.9), layout="constrained")
    panels = figure.subplots(1, len(kept), sharey=True)
    for panel, (policy, cached) in zip(panels, kept.items(), strict=True):
        _panel(panel, policy, cached)
    return figure


def _panel(panel: Axes, policy: str, cached: dict[str, int]) -> None:
    names = list(CONVERSATIONS)
    colour = ACCENT if policy == PLUGIN else CACHED
    for row, name in enumerate(names):
        length, budget = CONVERSATIONS[name], keep_within_budget(CONVERSATIONS[name], NEXT_PROMPT, THRESHOLD)
        prefill = length - cached[name] + NEXT_PROMPT
        panel.barh(row, length, height=0.56, color=EVICTED, edgecolor=INK, linewidth=0.8, hatch="////", alpha=0.35)
        panel.barh(row, cached[name], height=0.56, color=colour)
        panel.plot([budget, budget], [row - 0.38, row + 0.38], color=INK, linewidth=1.6)
        late = prefill > THRESHOLD
        text = f"next turn prefills {prefill:,}" + (f" > {THRESHOLD}" if late else "")
        style: dict[str, Any] = {"color": LATE if late else INK, "fontweight": "bold" if late else "normal"}
        panel.annotate(text, (length, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, **style)
    panel.set_title(policy, loc="left", fontsize=11, fontweight="bold", color=ACCENT if policy == PLUGIN else INK)
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.set_xlim(0, 3500)
    panel.set_xticks([0, 1000, 2000], ["0", "1,000", "2,000 tokens"], fontsize=8)
    panel.tick_params(length=0)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    if policy == "stock lru":
        budget = keep_within_budget(CONVERSATIONS["A"], NEXT_PROMPT, THRESHOLD)
        panel.annotate(
            "safe budget", (budget, -0.38), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=7.5,
            color=INK,
        )  # fmt: skip
