"""Figures 3–7 in the paper's arrangement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from eval.render.html import Image, save_figure
from eval.render.looks import DOTTED, INK, MUTED, RC, Look, look
from eval.simulate.timing import Timing
from eval.studies.paper.grid import BASELINES, BOTH, FUTURE, Results
from eval.studies.paper.published import OBJECTIVE_MS
from eval.studies.paper.sources import Source, prompt_lengths
from eval.studies.paper.tables import NAMES, PERCENTILES

_BARS = "#5b8fb9"
_OWN_LOOKS = {
    BOTH: Look("#56657a", "P", (0, (3, 1.2, 1, 1.2)), 1.3, 3),
    "end-aware": replace(look("end-aware"), colour="#8a98a8", width=1.3),
}


def draw(folder: Path, timing: Timing, studies: Sequence[Results]) -> list[Image]:
    """Write the PNGs; returns the figures in the order of the paper."""
    with mpl.rc_context(RC):
        figures = {"figure-3": _timing(timing)}
        for results in studies:
            source = results.study.source
            distributions, latencies = source.data.figures
            figures[f"figure-{distributions}"] = _distributions(source)
            if results.study.future_ms:
                figures[f"figure-{latencies}"] = _latencies(results)
        images = []
        for name in sorted(figures):
            FigureCanvasAgg(figures[name])
            images.append(save_figure(figures[name], folder / f"{name}.png"))
    return images


def _timing(timing: Timing) -> Figure:
    """Figure 3: TTFT against uncached tokens."""
    figure = Figure(figsize=(4.4, 2.9))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.13, right=0.96, bottom=0.16, top=0.88)
    right = max((point.uncached for point in timing.points), default=8_192)
    ends = np.array([0.0, right * 1.03])
    bends = [0.0, timing.corner, float(ends[1])]
    axes.plot(bends, [timing.ms(tokens) for tokens in bends], color=INK, linewidth=1.3, zorder=3)
    if timing.points:
        tokens, ms = np.array(timing.points, dtype=np.float64).T
        axes.scatter(tokens, ms, s=13, color=look("tlru").colour, alpha=0.65, linewidth=0, zorder=4)
        fitted = "" if timing.r2 is None else f"   R² = {timing.r2:.4f}"
        axes.set_title(f"{len(timing.points)} requests, fitted")
    else:
        fitted = ""
        axes.set_title("assumed: nothing was measured" if "assumed" in timing.origin else "given: no points with it")
    axes.text(
        0.04, 0.93, f"{timing}{fitted}",
        transform=axes.transAxes, va="top", fontsize=8,
    )  # fmt: skip
    if timing.ms(0) <= OBJECTIVE_MS <= timing.ms(float(ends[1])):
        tokens_within = timing.tokens(OBJECTIVE_MS)
        axes.plot([0, tokens_within, tokens_within], [OBJECTIVE_MS, OBJECTIVE_MS, 0], color=MUTED, linewidth=0.8,
                  linestyle=(0, (1, 2)))  # fmt: skip
        axes.annotate(
            f"{OBJECTIVE_MS:g} ms: ξ = {tokens_within:,}", (tokens_within, OBJECTIVE_MS / 2), xytext=(5, 0),
            textcoords="offset points", fontsize=7.5, va="center",
        )  # fmt: skip
    axes.set(xlim=(0, ends[1]), ylim=(0, None), xlabel="uncached tokens", ylabel="TTFT (ms)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:,.6g}")
    return figure


def _distributions(source: Source) -> Figure:
    """Figures 4 and 5: turns of a conversation, tokens of prompts and of answers."""
    figure = Figure(figsize=(7.2, 2.4))
    turns, prompts, answers = figure.subplots(1, 3)
    figure.subplots_adjust(left=0.075, right=0.975, bottom=0.235, top=0.87, wspace=0.28)
    of_conversation = Counter(request.conversation for request in source.requests if request.conversation is not None)
    if of_conversation:
        _bars(turns, list(of_conversation.values()), "turns of a conversation", whole=True)
    else:
        turns.set_axis_off()
        turns.text(0.5, 0.5, "conversations are\nnot in the trace", ha="center", va="center", transform=turns.transAxes)
    lengths = prompt_lengths(source.requests) or [request.prompt_tokens for request in source.requests]
    _bars(prompts, lengths, "tokens of a prompt" if prompt_lengths(source.requests) else "tokens of an input")
    _bars(answers, [request.output_tokens for request in source.requests], "tokens of an answer")
    (turns if of_conversation else prompts).set_ylabel("share")
    _name_source(figure, source)
    return figure


def _bars(axes: Axes, values: Sequence[int], name: str, *, whole: bool = False) -> None:
    """A histogram up to p99. Values beyond are in the last bar."""
    array = np.asarray(values)
    last = float(np.percentile(array, 99))
    edges = np.arange(0.5, max(round(last), 2) + 1) if whole else np.linspace(0, max(last, 1.0), 31)
    clipped = np.clip(array, None, edges[-1] - 1e-9)
    shares = np.histogram(clipped, edges)[0] / len(array)
    axes.bar(edges[:-1], shares, np.diff(edges), align="edge", color=_BARS, edgecolor="white", linewidth=0.4)
    axes.axvline(float(array.mean()), color=INK, linewidth=0.9, linestyle=(0, (3, 1.5)))
    axes.annotate(
        f"mean {array.mean():,.1f}" if whole else f"mean {array.mean():,.0f}", (float(array.mean()), 0.97),
        xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points", fontsize=7.5, va="top",
    )  # fmt: skip
    axes.set_title(name)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("beyond p99 in the last bar", fontsize=7, color=MUTED)
    axes.yaxis.set_major_formatter("{x:.0%}")
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_formatter("{x:,.0f}")


def _latencies(results: Results) -> Figure:
    """Figures 6 and 7: median, p90, p95 and p99 against capacity, a line of panels for each ξ_s."""
    study = results.study
    lines = len(study.future_ms)
    height = 0.88 + 1.75 * lines
    figure = Figure(figsize=(7.2, height))
    panels = figure.subplots(lines, 4, squeeze=False)
    figure.subplots_adjust(
        left=0.085, right=0.985, bottom=0.55 / height, top=1 - 0.68 / height, wspace=0.33, hspace=0.2
    )
    shown = [*BASELINES, "tlru", *(policy for policy in FUTURE if policy != "length-aware")]
    for line, ms in enumerate(study.future_ms):
        for column, percentile in enumerate(PERCENTILES):
            axes = panels[line, column]
            for policy in shown:
                style = _OWN_LOOKS.get(policy, look(policy))
                values = [results.ttft(policy, capacity, ms, percentile) for capacity in study.capacities]
                axes.plot(
                    study.capacities, values, color=style.colour, linestyle=style.dash, linewidth=style.width,
                    marker=style.marker, markersize=3 if style.marker != "*" else 4.5, markeredgewidth=0,
                    zorder=style.layer, label=NAMES[policy],
                )  # fmt: skip
            _capacity_axis(axes, study.capacities, named=line == lines - 1)
            low, high = axes.get_ylim()
            if low < ms < high:
                axes.axhline(ms, **DOTTED, zorder=1)
            if line == 0:
                axes.set_title("median" if percentile == "p50" else percentile)
            if column == 0:
                axes.set_ylabel(f"$ξ_s$ = {ms:g} ms\nTTFT (ms)", parse_math=True)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncol=3, frameon=False, fontsize=7.5, handlelength=3)
    _name_source(figure, study.source)
    return figure


def _name_source(figure: Figure, source: Source) -> None:
    """Name the trace in the lower right corner, so that no figure is taken for one of another data set."""
    figure.text(0.995, 0.008, source.label, ha="right", va="bottom", fontsize=6.5, color=MUTED)


def _capacity_axis(axes: Axes, capacities: Sequence[int], *, named: bool) -> None:
    axes.xaxis.set_major_locator(FixedLocator(list(capacities)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}"))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0.05, y=0.1)
    if named:
        axes.set_xlabel("capacity (1,000 tokens)")
    else:
        axes.set_xticklabels([])
