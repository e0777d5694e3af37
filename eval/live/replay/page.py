"""The page of a replay, one HTML file that needs no other file, and its figures as PNGs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

from eval.live.replay.facts import PLUGIN
from eval.live.replay.figures import arm_looks, percentiles, scatter, ttft_cdf
from eval.live.replay.predict import TOLERANCE, Prediction, fitted_line, measured_points, predict
from eval.live.replay.rows import Folder
from eval.live.replay.summary import ArmSummary, interval_note
from eval.live.replay.table import sentences, server_sentences, table_rows
from eval.live.replay.turns import Load
from eval.live.warm_start import in_a_fork
from eval.render import html
from eval.render.html import save_figure
from eval.render.looks import RC, percent
from eval.simulate.timing import Timing

PAGE, FIGURES = "replay.html", "figures"


class _Plot(NamedTuple):
    file: str  # stem of the PNG
    title: str
    caption: str
    draw: Callable[[], Figure]


def write_page(folder: Folder, load: Load | None, arms: Sequence[ArmSummary]) -> list[str]:
    """Write the page and the PNGs into the folder.

    Args:
        load: what was sent; without it nothing is predicted.

    Returns:
        Lines to print: the fitted line, the predictions, where the page is.
    """
    timing = fitted_line(measured_points(folder))
    predictions: list[Prediction] = []
    reasons: dict[str, str] = {}
    if timing is not None and load is not None:
        predictions, reasons = in_a_fork(predict, folder, load, timing)  # which imports SGLang, for real caches
    with mpl.rc_context(RC):
        figures = [
            html.figure(plot.title, save_figure(plot.draw(), folder.path / FIGURES / f"{plot.file}.png"), plot.caption)
            for plot in _plots(folder, arms, timing)
        ]
    findings = (*sentences(arms), *server_sentences(folder))
    parts = [
        _lead(folder, arms),
        f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in findings)}</ul>",
        _table(folder, arms),
        *figures,
        _predictions(timing, predictions, reasons),
        _servers(folder),
    ]
    (folder.path / PAGE).write_text(html.page(f"Live replay of {folder.run.trace}", parts))
    return [*_lines(timing, predictions, reasons), f"{folder.path / PAGE}"]


def _plots(folder: Folder, arms: Sequence[ArmSummary], timing: Timing | None) -> list[_Plot]:
    looks = arm_looks(folder, arms)
    plots = [
        _Plot(
            "ttft",
            "TTFT of every request",
            "Left all requests, right the slowest tenth on a scale that gives p90 to p99.9 the same room. Lower and "
            "further left is better.",
            lambda: ttft_cdf(folder, arms, looks),
        ),
        _Plot(
            "percentiles",
            "Percentiles with their intervals",
            "Each percentile of TTFT, of uncached tokens and of inter-token latency (ITL); bars are 95 % intervals, by "
            "bootstrap over conversations and repeats.",
            lambda: percentiles(arms, looks),
        ),
    ]
    if timing is not None:
        plots.append(
            _Plot(
                "line",
                "TTFT against uncached tokens",
                f"Each dot is a request; the line is {timing} "
                f"(R² {timing.r2 or 0:.2f}), robust to outliers. Dots far above the line waited for others.",
                lambda: scatter(folder, arms, looks, timing),
            )
        )
    return plots


def _lines(timing: Timing | None, predictions: Sequence[Prediction], reasons: Mapping[str, str]) -> list[str]:
    if timing is None:
        return ["TTFT does not rise with uncached tokens: no line, no prediction."]
    lines = [f"{timing} tokens (R² {timing.r2 or 0:.2f})"]
    lines += [
        f"{one.arm}: p95 {one.ttft_ms:,.0f} ms, the simulator says {one.predicted_ms:,.0f} ms ({one.error:+.0%}); "
        f"{one.verdict(timing)}"
        for one in predictions
    ]
    return lines + [f"{arm}: not predicted: {reason}" for arm, reason in reasons.items()]


def _lead(folder: Folder, arms: Sequence[ArmSummary]) -> str:
    run = folder.run
    played = {arm.name: sum(part.arm == arm.name for part in folder.parts) for arm in arms}
    turns = f", {run.turns}" if run.turns else ""
    text = (
        f"{run.requests:,} requests an arm and repeat · played: "
        + ", ".join(f"{name} {count} of {run.repeats}" for name, count in played.items())
        + f" · {run.loop} loop{turns}, {run.api}, ξ = {run.threshold:,}, Q̂ = {run.next_prompt_estimate:,} tokens"
        + (f" · an arm is {run.servers}" if run.servers else "")
        + (" · requests name their sessions, which are closed where the trace says so" if run.sessions else "")
    )
    missing = "; ".join(map(str, folder.missing))
    warning = html.missing(f"Missing: {missing}. The same command plays it.")
    return html.paragraph(text, "lead") + (warning if missing else "")


def _table(folder: Folder, arms: Sequence[ArmSummary]) -> str:
    head, highlighted = [""], list[int]()
    for number, arm in enumerate(arms):
        columns = [arm.name, f"against {arms[0].name}"] if number else [arm.name]
        if (facts := folder.facts(arm.name)) is not None and facts.policy == PLUGIN:
            highlighted += range(len(head), len(head) + len(columns))
        head += columns
    rows = [
        [title, values[0], *(text for pair in zip(values[1:], changes, strict=True) for text in pair)]
        for title, values, changes in table_rows(arms)
    ]
    counts = " · ".join(f"{arm.name}: {arm.errors} errors, {arm.retries} retries" for arm in arms)
    note = f"{interval_note(arms[0])} TEL and requests over ξ: of one repeat."
    return html.table(head, rows, highlighted) + html.paragraph(f"{note}\n{counts}")


def _predictions(timing: Timing | None, predictions: Sequence[Prediction], reasons: Mapping[str, str]) -> str:
    title = html.heading("What the simulator predicts")
    if timing is None:
        return title + html.missing("TTFT does not rise with uncached tokens: no line, no prediction.")
    head = ("", "uncached p95", "predicted", "requests alike", "TTFT p95 (ms)", "predicted", "off by", "")
    rows = [
        (
            one.arm,
            f"{one.uncached:,.0f}",
            f"{one.predicted_uncached:,.0f}",
            percent(one.same_tokens),
            f"{one.ttft_ms:,.0f}",
            f"{one.predicted_ms:,.0f}",
            percent(one.error, sign=True),
            one.verdict(timing),
        )
        for one in predictions
    ]
    text = (
        "The same requests, in the order in which they were sent, through a simulated cache of the server's size; "
        f"{timing}. A p95 within {TOLERANCE:.0%} counts as "
        "predicted."
    )
    without = "".join(html.paragraph(f"{arm}: not predicted: {reason}") for arm, reason in reasons.items())
    return title + html.paragraph(text) + html.table(head, rows) + without


def _servers(folder: Folder) -> str:
    rows = ""
    for arm, flags in folder.run.arms.items():
        facts = folder.facts(arm)
        if facts is None:
            continue
        engine = f"SGLang {facts.version}, {facts.device}, {facts.attention_backend}, model {facts.model}"
        size = f"pool {facts.pool:,}, page {facts.page_size}, chunk {facts.chunk:,} tokens"
        rows += f"{arm}: {flags}\n    {engine}, {size}\n"
    machine = json.dumps(folder.machine)
    return html.heading("Servers and machine") + f"<pre>{escape(rows)}{escape(machine)}</pre>"
