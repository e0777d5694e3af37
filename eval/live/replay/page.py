"""The page of a replay, one HTML file that needs nothing beside it, and its figures as PNGs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from eval.live.replay.load import Load
from eval.live.replay.predict import TOLERANCE, Prediction, fitted_line, measured_points, predict
from eval.live.replay.rows import Folder
from eval.live.replay.summary import PERCENTILES, ArmSummary, machine_sentences, sentences, table_rows
from eval.render.report.gallery import data_uri
from eval.render.report.style import INK, MUTED, RC, Look, look, percent
from eval.studies.paper.timing import Timing

__all__ = ["PAGE", "write_page"]

PAGE = "replay.html"
_STYLE = Path(__file__).parent.parent / "report" / "page.css"
_OTHERS = ("#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#8a6d3b", "#6a3d9a")
_DPI = 220


def write_page(folder: Folder, load: Load | None, arms: Sequence[ArmSummary]) -> list[str]:
    """Write the page and the PNGs into the folder; returns what to print: the line, the predictions, the place."""
    timing = fitted_line(measured_points(folder))
    predictions: list[Prediction] = []
    reasons: dict[str, str] = {}
    if timing is not None and load is not None:
        predictions, reasons = predict(folder, load, timing)
    looks = _looks(folder, arms)
    figures: dict[str, tuple[str, str, Callable[[], Figure]]] = {
        "ttft": (
            "TTFT of every request",
            "Left all requests, right the slowest tenth on a scale that gives p90 to p99.9 the same room. Lower and "
            "further left is better.",
            lambda: _cdf(folder, arms, looks),
        ),
        "percentiles": (
            "Percentiles with their intervals",
            "Each percentile of TTFT and of uncached tokens; bars are 95 % intervals, by bootstrap over conversations.",
            lambda: _percentiles(arms, looks),
        ),
    }
    if timing is not None:
        figures["line"] = (
            "TTFT against uncached tokens",
            f"Each dot is a request; the line is TTFT = {timing.beta:.1f} ms + {timing.alpha:.4f} ms · uncached "
            f"(R² {timing.r2 or 0:.2f}), robust to outliers. Dots far above the line waited for others.",
            lambda: _scatter(folder, arms, looks, timing),
        )
    (folder.path / "figures").mkdir(exist_ok=True)
    images = {}
    with mpl.rc_context(RC):
        for name, (_, _, draw) in figures.items():
            figure = draw()
            figure.savefig(folder.path / "figures" / f"{name}.png", dpi=_DPI)
            images[name] = data_uri(figure)
    drawn = "".join(
        f'<h2>{title}</h2><figure><img src="{images[name]}" alt="{title}" style="width:936px">'
        f"<figcaption>{caption} <code>figures/{name}.png</code></figcaption></figure>"
        for name, (title, caption, _) in figures.items()
    )
    said = (*sentences(arms), *machine_sentences(folder))
    (folder.path / PAGE).write_text(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Live replay of {escape(folder.run.trace)}</title>\n<style>{_STYLE.read_text()}</style>\n</head>\n"
        f"<body>\n"
        f"<h1>Live replay of {escape(folder.run.trace)}</h1>{_lead(folder, arms)}"
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>"
        f"{_table(folder, arms)}{drawn}{_predictions(timing, predictions, reasons)}{_servers(folder)}"
        "</body>\n</html>\n"
    )
    return [*_lines(timing, predictions, reasons), f"{folder.path / PAGE}"]


def _lines(timing: Timing | None, predictions: Sequence[Prediction], reasons: Mapping[str, str]) -> list[str]:
    if timing is None:
        return ["TTFT does not rise with uncached tokens: no line, no prediction."]
    lines = [f"TTFT = {timing.beta:.1f} ms + {timing.alpha:.4f} ms · uncached tokens (R² {timing.r2 or 0:.2f})"]
    lines += [
        f"{one.arm}: p95 {one.ttft_ms:,.0f} ms, the simulator says {one.predicted_ms:,.0f} ms ({one.error:+.0%}); "
        f"{one.verdict(timing)}"
        for one in predictions
    ]
    return lines + [f"{arm}: not predicted: {reason}" for arm, reason in reasons.items()]


def _looks(folder: Folder, arms: Sequence[ArmSummary]) -> dict[str, Look]:
    """The colours of the other pages where an arm is one of their policies."""
    known = {"ours": look("tlru"), "lru": look("lru"), "tlru": look("sglang-tlru")}
    others = iter(_OTHERS * (1 + len(arms)))
    chosen: dict[str, Look] = {}
    for arm in arms:
        facts = folder.facts(arm.name)
        style = known.pop(facts.policy, None) if facts is not None else None
        chosen[arm.name] = style or Look(next(others), "o")
    return chosen


def _ttft(folder: Folder, arm: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.sort([row.ttft_ms for _, row in folder.finished_rows(arm) if row.error is None and row.ttft_ms])


def _cdf(folder: Folder, arms: Sequence[ArmSummary], looks: Mapping[str, Look]) -> Figure:
    figure = Figure(figsize=(7.2, 3.0))
    whole, tail = figure.subplots(1, 2, width_ratios=(1, 1.25))
    figure.subplots_adjust(left=0.078, right=0.98, bottom=0.15, top=0.9, wspace=0.22)
    tails = (0.9, 0.95, 0.99, 0.999)
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
    tail.yaxis.set_major_locator(FixedLocator([-np.log10(1 - share) for share in tails]))
    tail.yaxis.set_major_formatter(FuncFormatter(lambda nines, _: f"p{100 - 100 * 10**-nines:g}"))
    tail.yaxis.set_minor_locator(NullLocator())
    tail.xaxis.set_major_locator(LogLocator(10, (1, 2, 3, 5)))
    tail.xaxis.set_minor_formatter(NullFormatter())
    tail.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if folder.run.slo_ms is not None:
        for axes in (whole, tail):
            axes.axvline(folder.run.slo_ms, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
        whole.annotate(f"SLO {folder.run.slo_ms:,.0f} ms", (folder.run.slo_ms, 0.03), xytext=(4, 0),
                       textcoords="offset points", fontsize=7.5)  # fmt: skip
    return figure


def _percentiles(arms: Sequence[ArmSummary], looks: Mapping[str, Look]) -> Figure:
    figure = Figure(figsize=(7.2, 2.6))
    figure.subplots_adjust(left=0.078, right=0.98, bottom=0.12, top=0.9, wspace=0.22)
    panels: Sequence[Axes] = figure.subplots(1, 2)
    for axes, kind, title in zip(panels, ("ttft", "uncached"), ("TTFT (ms)", "uncached tokens"), strict=True):
        for number, arm in enumerate(arms):
            style = looks[arm.name]
            found = [arm.figures[f"{kind}_p{p}"] for p in PERCENTILES]
            places = np.arange(len(PERCENTILES)) + (number - (len(arms) - 1) / 2) * 0.16
            values = np.array([one.value for one in found])
            bars = [[max(one.value - one.low, 0) for one in found], [max(one.high - one.value, 0) for one in found]]
            axes.errorbar(places, values, yerr=bars, fmt=style.marker, markersize=4, color=style.colour,
                          linewidth=1.2, capsize=2, label=arm.name)  # fmt: skip
        axes.xaxis.set_major_locator(FixedLocator(range(len(PERCENTILES))))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: f"p{PERCENTILES[round(place)]}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set(title=title, ylim=(0, None))
    panels[0].legend(frameon=False, fontsize=7.5, loc="upper left")
    return figure


def _scatter(folder: Folder, arms: Sequence[ArmSummary], looks: Mapping[str, Look], timing: Timing) -> Figure:
    figure = Figure(figsize=(7.2, 3.2))
    figure.subplots_adjust(left=0.078, right=0.98, bottom=0.14, top=0.97)
    axes = figure.subplots()
    longest = 0
    for arm in arms:
        rows = [row for _, row in folder.finished_rows(arm.name) if row.error is None and row.ttft_ms is not None]
        longest = max(longest, *(row.uncached_tokens for row in rows))
        axes.scatter([row.uncached_tokens for row in rows], [row.ttft_ms or 0.0 for row in rows], s=5, alpha=0.5,
                     linewidths=0, color=looks[arm.name].colour, label=arm.name)  # fmt: skip
    ends = np.array([0, longest])
    axes.plot(ends, timing.beta + timing.alpha * ends, color=INK, linewidth=1)
    axes.axvline(folder.run.threshold, color=INK, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.annotate(f"ξ = {folder.run.threshold:,}", (folder.run.threshold, 0.97), xycoords=("data", "axes fraction"),
                  xytext=(4, 0), textcoords="offset points", fontsize=7.5, va="top", color=MUTED)  # fmt: skip
    axes.set(xlabel="uncached tokens", ylabel="TTFT (ms)", xlim=(0, None), ylim=(0, None))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.legend(frameon=False, fontsize=7.5, loc="upper left", markerscale=2)
    return figure


# ---- the text ----


def _lead(folder: Folder, arms: Sequence[ArmSummary]) -> str:
    run = folder.run
    played = {arm.name: sum(part.arm == arm.name for part in folder.parts) for arm in arms}
    text = (
        f"{run.requests:,} requests an arm and repeat · played: "
        + ", ".join(f"{name} {count} of {run.repeats}" for name, count in played.items())
        + f" · {run.loop} loop, {run.api}, ξ = {run.threshold:,}, Q̂ = {run.next_prompt_estimate:,} tokens"
        + (f" · an arm is {run.servers}" if run.servers else "")
        + (" · conversations are sessions, closed where the trace says so" if run.sessions else "")
    )
    missing = "".join(f"{name} #{repeat + 1}; " for repeat, name in folder.missing)
    warning = f'<p class="missing">Missing: {escape(missing.rstrip("; "))}. The same command plays it.</p>'
    return f'<p class="lead">{escape(text)}</p>{warning if missing else ""}'


def _table(folder: Folder, arms: Sequence[ArmSummary]) -> str:
    ours = {arm.name for arm in arms if (facts := folder.facts(arm.name)) is not None and facts.policy == "ours"}
    tints = [' class="ours"' if arm.name in ours else "" for arm in arms]
    head = "".join(
        f"<th>{escape(arm.name)}</th>" + (f"<th>against {escape(arms[0].name)}</th>" if number else "")
        for number, arm in enumerate(arms)
    )
    body = ""
    for title, values, changes in table_rows(arms):
        cells = ""
        for number, value in enumerate(values):
            cells += f"<td{tints[number]}>{value}</td>"
            if number:
                cells += f"<td{tints[number]}><small>{changes[number - 1]}</small></td>"
        body += f"<tr><th>{title}</th>{cells}</tr>"
    counts = " · ".join(f"{escape(arm.name)}: {arm.errors} errors, {arm.retries} retries" for arm in arms)
    table = f'<table class="cells"><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>'
    note = "In brackets: 95 % intervals, by bootstrap over conversations. TEL and requests over ξ: of one repeat."
    return f'<div class="scroll">{table}</div><p>{note}<br>{counts}</p>'


def _predictions(timing: Timing | None, predictions: Sequence[Prediction], reasons: Mapping[str, str]) -> str:
    title = "<h2>Was it to be expected?</h2>"
    if timing is None:
        return f'{title}<p class="missing">TTFT does not rise with uncached tokens: no line, no prediction.</p>'
    body = "".join(
        f"<tr><th>{escape(one.arm)}</th><td>{one.uncached:,.0f}</td><td>{one.predicted_uncached:,.0f}</td>"
        f"<td>{percent(one.same_tokens)}</td><td>{one.ttft_ms:,.0f}</td><td>{one.predicted_ms:,.0f}</td>"
        f'<td>{percent(one.error, sign=True)}</td><td style="text-align:left">{escape(one.verdict(timing))}</td></tr>'
        for one in predictions
    )
    without = "".join(f"<li>{escape(arm)}: not predicted: {escape(reason)}</li>" for arm, reason in reasons.items())
    return (
        f"{title}<p>The same requests, in the order in which they were sent, through a simulated cache of the server's "
        f"size; TTFT = {timing.beta:.1f} ms + {timing.alpha:.4f} ms · uncached. A p95 within {TOLERANCE:.0%} counts as "
        "predicted.</p>"
        '<div class="scroll"><table class="cells"><thead><tr><th></th><th>uncached p95</th><th>predicted</th>'
        "<th>requests alike</th><th>TTFT p95 (ms)</th><th>predicted</th><th>off by</th><th></th></tr></thead>"
        f"<tbody>{body}</tbody></table></div><ul>{without}</ul>"
    )


def _servers(folder: Folder) -> str:
    rows = ""
    for arm, flags in folder.run.arms.items():
        facts = folder.facts(arm)
        if facts is None:
            continue
        said = f"SGLang {facts.version}, {facts.device}, {facts.attention_backend}, model {facts.model}"
        size = f"pool {facts.pool:,}, page {facts.page_size}, chunk {facts.chunk:,} tokens"
        rows += f"{arm}: {flags}\n    {said}, {size}\n"
    machine = json.dumps(folder.machine)
    return f"<h2>Servers and machine</h2><pre>{escape(rows)}{escape(machine)}</pre>"
