"""The figures of a replay: TTFT of every request, percentiles with intervals, TTFT against uncached tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from eval.live.replay.facts import PLUGIN
from eval.live.replay.rows import Folder
from eval.live.replay.summary import ITL_PERCENTILES, PERCENTILES, ArmSummary
from eval.render.looks import DOTTED, INK, MUTED, Look, look, nines_axis, percent
from eval.simulate.timing import Timing

_OTHERS = ("#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6a3d9a")


def arm_looks(folder: Folder, arms: Sequence[ArmSummary]) -> dict[str, Look]:
    """The look of each arm: that of its policy, if no other arm has it."""
    known = {PLUGIN: look("tlru"), "lru": look("lru"), "tlru": look("sglang-tlru")}
    others = iter(_OTHERS * (1 + len(arms)))
    chosen: dict[str, Look] = {}
    for arm in arms:
        facts = folder.facts(arm.name)
        style = known.pop(facts.policy, None) if facts is not None else None
        chosen[arm.name] = style or Look(next(others), "o")
    return chosen


def _ttft(folder: Folder, arm: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.sort([row.ttft_ms for row in folder.answered(arm) if row.ttft_ms])


def ttft_cdf(folder: Folder, arms: Sequence[ArmSummary], looks: Mapping[str, Look]) -> Figure:
    """TTFT of every request: all of them, and the slowest tenth enlarged."""
    figure = Figure(figsize=(7.2, 3.0))
    whole, tail = figure.subplots(1, 2, width_ratios=(1, 1.25))
    figure.subplots_adjust(left=0.078, right=0.98, bottom=0.15, top=0.9, wspace=0.22)
    for arm in arms:
        values, style = _ttft(folder, arm.name), looks[arm.name]
        shares = np.linspace(0, 1, 600)
        whole.plot(np.quantile(values, shares), shares, color=style.colour, linewidth=0.8 * style.width, label=arm.name)
        shares = 1 - np.geomspace(0.1, 0.001, 600)
        tail.plot(np.quantile(values, shares), -np.log10(1 - shares), color=style.colour, linewidth=0.8 * style.width)
    whole.set(title="all requests", ylabel="share of requests", xlabel="TTFT (ms)", ylim=(0, 1))
    whole.set_xlim(left=0, right=max(float(np.quantile(_ttft(folder, arm.name), 0.98)) for arm in arms))
    whole.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share, digits=0)))
    whole.legend(frameon=False, fontsize=7.5, loc="lower right")
    tail.set_xscale("log")
    tail.set(title="the tail, enlarged", xlabel="TTFT (ms)", ylim=(1, 3))
    nines_axis(tail.yaxis, (0.9, 0.95, 0.99, 0.999))
    tail.xaxis.set_major_locator(LogLocator(10, (1, 2, 3, 5)))
    tail.xaxis.set_minor_formatter(NullFormatter())
    tail.xaxis.set_major_formatter("{x:,.0f}")
    if folder.run.slo_ms is not None:
        for axes in (whole, tail):
            axes.axvline(folder.run.slo_ms, **DOTTED)
        whole.annotate(f"SLO {folder.run.slo_ms:,.0f} ms", (folder.run.slo_ms, 0.03), xytext=(4, 0),
                       textcoords="offset points", fontsize=7.5)  # fmt: skip
    return figure


def percentiles(arms: Sequence[ArmSummary], looks: Mapping[str, Look]) -> Figure:
    """Percentiles of TTFT, of uncached tokens and of inter-token latency with their intervals."""
    figure = Figure(figsize=(7.2, 2.6))
    figure.subplots_adjust(left=0.07, right=0.985, bottom=0.12, top=0.9, wspace=0.28)
    kinds = (
        ("ttft", "TTFT (ms)", PERCENTILES),
        ("uncached", "uncached tokens", PERCENTILES),
        ("itl", "ITL (ms)", ITL_PERCENTILES),
    )
    panels: Sequence[Axes] = figure.subplots(1, len(kinds), width_ratios=[len(shown) for _, _, shown in kinds])
    for axes, (kind, title, shown) in zip(panels, kinds, strict=True):
        for number, arm in enumerate(arms):
            style = looks[arm.name]
            found = [arm.figures[f"{kind}_p{p}"] for p in shown]
            places = np.arange(len(shown)) + (number - (len(arms) - 1) / 2) * 0.16
            values = np.array([one.value for one in found])
            bars = [[max(one.value - one.low, 0) for one in found], [max(one.high - one.value, 0) for one in found]]
            axes.errorbar(places, values, yerr=bars, fmt=style.marker, markersize=4, color=style.colour,
                          linewidth=1.2, capsize=2, label=arm.name)  # fmt: skip
        axes.set_xticks(range(len(shown)), [f"p{p}" for p in shown])
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set(title=title, ylim=(0, None))
    panels[0].legend(frameon=False, fontsize=7.5, loc="upper left")
    return figure


def scatter(folder: Folder, arms: Sequence[ArmSummary], looks: Mapping[str, Look], timing: Timing) -> Figure:
    """TTFT against uncached tokens, and the line that was fitted."""
    figure = Figure(figsize=(7.2, 3.2))
    figure.subplots_adjust(left=0.078, right=0.98, bottom=0.14, top=0.97)
    axes = figure.subplots()
    longest = 0
    for arm in arms:
        rows = [row for row in folder.answered(arm.name) if row.ttft_ms is not None]
        longest = max(longest, *(row.uncached_tokens for row in rows))
        axes.scatter([row.uncached_tokens for row in rows], [row.ttft_ms or 0.0 for row in rows], s=5, alpha=0.5,
                     linewidths=0, color=looks[arm.name].colour, label=arm.name)  # fmt: skip
    bends = [0.0, min(timing.corner, longest), float(longest)]
    axes.plot(bends, [timing.ms(tokens) for tokens in bends], color=INK, linewidth=1)
    axes.axvline(folder.run.threshold, **DOTTED)
    axes.annotate(f"ξ = {folder.run.threshold:,}", (folder.run.threshold, 0.97), xycoords=("data", "axes fraction"),
                  xytext=(4, 0), textcoords="offset points", fontsize=7.5, va="top", color=MUTED)  # fmt: skip
    axes.set(xlabel="uncached tokens", ylabel="TTFT (ms)", xlim=(0, None), ylim=(0, None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.0f}")
    axes.legend(frameon=False, fontsize=7.5, loc="upper left", markerscale=2)
    return figure
