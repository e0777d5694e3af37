"""The flags of `python -m eval paper`, the experiments one after the other, and the files that it writes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from eval.arguments import Several, add_page_size, check_page_sizes, number, output_folder, whole
from eval.parallel import in_parallel
from eval.render import html
from eval.render.html import Image
from eval.simulate.rows import CELLS, Rows
from eval.simulate.timing import ASSUMED, Timing, TimingError, read_timing, write_timing
from eval.studies.paper import tables
from eval.studies.paper.grid import BASELINES, Results, Study, missing, run_batch
from eval.studies.paper.published import (
    CAPACITIES,
    FIGURE_THRESHOLDS_MS,
    OBJECTIVE_MS,
    SHAREGPT,
    THRESHOLDS_MS,
    WILDCHAT,
    DataSet,
)
from eval.studies.paper.sheet import Sheet
from eval.studies.paper.sources import Reading, drawn, load, stand_in
from eval.terminal import show
from eval.trace_arguments import add_text_arguments

TEXT, PAGE, FIGURES, TIMING = "paper.md", "paper.html", "figures", "timing.json"
TITLE = "The experiments of “Tail-Optimized Caching for LLM Inference”"

_WEIGHT = 0.2  # w of a further T-LRU: tail, median and mean all improve with it on the Mooncake trace
_SPREADS = (0.0, 1.0)  # σ of log λ_i in the experiment with ET-LRU


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run. Capacities in tokens."""

    turns: int  # of each trace
    capacities: tuple[int, ...]
    thresholds_ms: tuple[float, ...]
    learned_turns: int  # of each trace for the table of ET-LRU
    learned_seeds: int
    learned_capacities: tuple[int, ...]


FULL = Scale(2_000, CAPACITIES, THRESHOLDS_MS, 4_000, 3, (4_000, 10_000))
QUICK = Scale(300, (2_000, 10_000), (100.0, 200.0), 300, 1, (4_000,))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Traces, α and β, and where to write."""
    parser.add_argument(
        "--trace",
        metavar="PATH_OR_NAME",
        help="for Tables 1–3 and Figures 4 and 6: a file or name as `simulate` takes it (default: WildChat from the "
        "hub; where that cannot be loaded, the stochastic model)",
    )
    parser.add_argument(
        "--sharegpt",
        metavar="PATH_OR_NAME",
        help="likewise for Tables 4–6 and Figures 5 and 7 (default: ShareGPT)",
    )
    parser.add_argument("--limit", type=whole(1), metavar="N", help=f"turns of a trace (default: {FULL.turns:,})")
    parser.add_argument("--seed", type=whole(0), default=0, help="of the model, and of the stamps of ShareGPT")
    add_text_arguments(parser)
    parser.add_argument(
        "--alpha", type=number(above=0), metavar="MS", help=f"ms a token (default: {ASSUMED.alpha:.4f}, assumed)"
    )
    parser.add_argument(
        "--beta", type=number(least=0), metavar="MS", help="ms of a request without uncached tokens (default: 0)"
    )
    parser.add_argument("--timing", type=Path, metavar="FILE", help='JSON: {"alpha": ms a token, "beta": ms}')
    parser.add_argument(
        "--calibrate", metavar="URL", help=f"measure α and β on this idle SGLang server; they are kept in DIR/{TIMING}"
    )
    parser.add_argument("--capacity", action=Several, type=whole(1), metavar="TOKENS", help="instead of the paper's")
    add_page_size(parser)
    parser.add_argument(
        "--out", type=output_folder, default=Path(".out/paper"), metavar="DIR", help="(default: %(default)s)"
    )
    parser.add_argument(
        "--jobs", type=whole(1), default=1, metavar="N", help="cells side by side (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="two capacities, two ξ_s, 300 turns")


def run(args: argparse.Namespace) -> int:
    """Run what has no result in DIR yet and print all tables."""
    start = time.monotonic()
    scale = _scale(args)
    reading = Reading(scale.turns, args.seed, args.tokenizer, args.characters_per_token, args.skip_bad)
    folder: Path = args.out
    timing = _timing(args, folder)
    timing.tokens(OBJECTIVE_MS)  # or it cannot be met, which is said before anything is written
    scale = replace(scale, thresholds_ms=tuple(ms for ms in scale.thresholds_ms if ms >= timing.ms(0)))
    studies = [
        _study(data, wanted, reading, timing, scale, args.page_size)
        for data, wanted in ((WILDCHAT, args.trace), (SHAREGPT, args.sharegpt))
    ]
    learned = [studies_of_learned_rates(reading, timing, scale, sigma, args.page_size) for sigma in _SPREADS]
    folder.mkdir(parents=True, exist_ok=True)
    rows = Rows(folder / CELLS)
    _fill(rows, [*studies, *chain(*learned)], args.jobs)

    preface = _preface(studies, timing)
    results = [Results(study, rows) for study in studies]
    titles = [f"log-normal, σ = {sigma:g}" if sigma else "the same for all" for sigma in _SPREADS]
    sheets = [
        *_sheets(results),
        tables.learned([[Results(study, rows) for study in seeds] for seeds in learned], titles),
        tables.headline(results[0]),
    ]
    show(*preface)
    for sheet in sheets:
        show(sheet.title, sheet.rich(), f"{sheet.provenance}\n")
    from eval.studies.paper.figures import draw  # matplotlib: not before there is something to draw

    figures = draw(folder / FIGURES, timing, results)
    (folder / TEXT).write_text(_text(preface, sheets, figures))
    (folder / PAGE).write_text(_page(preface, sheets, figures))
    seconds = time.monotonic() - start
    print(f"{folder / TEXT}, {folder / PAGE}, {len(figures)} figures in {folder / FIGURES}/: {seconds:.0f} s")
    return 0


def _scale(args: argparse.Namespace) -> Scale:
    scale = QUICK if args.quick else FULL
    if args.limit is not None:
        scale = replace(scale, turns=args.limit)
    if args.capacity is not None:
        scale = replace(scale, capacities=tuple(sorted(set(args.capacity))))
    check_page_sizes([args.page_size], scale.capacities)
    if (least := min(scale.learned_capacities)) < args.page_size:
        raise ValueError(f"--page-size {args.page_size}: must be at most {least}, the least capacity of Table B")
    return scale


def _timing(args: argparse.Namespace, folder: Path) -> Timing:
    """α and β from the one place that was named."""
    given = args.alpha is not None or args.beta is not None
    if given + (args.timing is not None) + (args.calibrate is not None) > 1:
        raise TimingError("--alpha and --beta, --timing, --calibrate: only one of these")
    if args.timing is not None:
        return read_timing(args.timing)
    if args.calibrate is not None:
        from eval.live.calibrate import calibrate

        measured = calibrate(args.calibrate, seed=args.seed)
        folder.mkdir(parents=True, exist_ok=True)
        write_timing(folder / TIMING, measured)
        return measured
    if given:
        if args.alpha is None:
            raise TimingError(f"--beta {args.beta:g}: needs --alpha")
        return Timing(args.alpha, args.beta or 0.0, "given by --alpha and --beta")
    return ASSUMED


def _study(data: DataSet, wanted: str | None, reading: Reading, timing: Timing, scale: Scale, page_size: int) -> Study:
    source = load(data, wanted, reading)
    future_ms = tuple(ms for ms in scale.thresholds_ms if ms in FIGURE_THRESHOLDS_MS)
    return Study(
        source,
        timing,
        scale.capacities,
        scale.thresholds_ms,
        source.next_prompt_estimate,
        page_size,
        future_ms,
        weights=(_WEIGHT,),
    )


def studies_of_learned_rates(
    reading: Reading, timing: Timing, scale: Scale, sigma: float, page_size: int
) -> list[Study]:
    """ET-LRU where it is optimal: on the model and given its rates. A study for each seed."""
    thresholds_ms = tuple(ms for ms in scale.thresholds_ms if ms in FIGURE_THRESHOLDS_MS)
    studies = []
    for seed in range(reading.seed, reading.seed + scale.learned_seeds):
        longer = replace(reading, limit=scale.learned_turns, seed=seed)
        model = replace(stand_in(WILDCHAT, longer), turn_rate_sigma=sigma)
        source = drawn(model, WILDCHAT, longer)
        studies.append(
            Study(
                source,
                timing,
                scale.learned_capacities,
                thresholds_ms,
                source.next_prompt_estimate,
                page_size,
                others=("etlru-given", "tail-belady"),
                death_rate=1 / model.mean_life_s,
            )
        )
    return studies


def _fill(rows: Rows, studies: Sequence[Study], jobs: int) -> None:
    """Run the cells that have no row yet."""
    calls = [(batch,) for batch in missing(studies, rows)]
    for done in in_parallel(run_batch, calls, jobs=jobs, title="batches of cells", ordered=False):
        for row in done:
            rows.append(row)
    rows.sort(cell.name for study in studies for cell in study.cells())


def _preface(studies: Sequence[Study], timing: Timing) -> list[str]:
    """Where the traces, α and β are from, a line each."""
    lines = []
    for study in studies:
        data = study.source.data
        numbers = ", ".join(map(str, data.tables))
        lines.append(f"Tables {numbers}, Figures {data.figures[0]} and {data.figures[1]}: {study.source.statement}.")
        lines.append(
            f"Q̂ = {study.next_prompt_estimate} tokens, the average prompt of that trace "
            f"(the paper's: {data.next_prompt_estimate})."
        )
    r2 = "" if timing.r2 is None else f", R² = {timing.r2:.4f}"
    lines.append(f"{timing}: α = {timing.alpha:.4g} ms a token, β = {timing.beta:.4g} ms{r2} ({timing.origin}).")
    xi = ", ".join(f"{ms:g} ms = {timing.tokens(ms):,}" for ms in studies[0].thresholds_ms)
    lines.append(
        f"ξ in tokens: {xi}. Prompt and (where the trace tells it) answer are cached, optional caching, "
        f"page size {studies[0].page_size}."
    )
    if unmet := [f"{ms:g} ms" for ms in THRESHOLDS_MS if ms < timing.ms(0)]:
        lines.append(f"ξ_s = {', '.join(unmet)}: left out, a request without uncached tokens takes longer.")
    for study in studies:
        useless = [f"{ms:g} ms" for ms in study.thresholds_ms if timing.tokens(ms) <= study.next_prompt_estimate]
        if useless:
            of = study.source.label
            lines.append(f"ξ_s = {', '.join(useless)}: ξ is not above the Q̂ of {of}, so that T-LRU is LRU there.")
    return lines


def _sheets(studies: Sequence[Results]) -> list[Sheet]:
    sheets = [tables.base_latency(studies)]
    for results in studies:
        sheets += [tables.relative_latency(results, over) for over in BASELINES]
        sheets += [tables.relative_p99(results), tables.violations(results)]
        if OBJECTIVE_MS in results.study.thresholds_ms:
            capacities = results.study.capacities
            shown = dict.fromkeys((capacities[len(capacities) // 2 - 1], capacities[-1]))
            sheets.append(tables.policies(results, tuple(shown)))
    return sheets


def _title(figure: Image) -> str:
    return figure.path.stem.replace("-", " ").capitalize()


def _text(preface: Sequence[str], sheets: Sequence[Sheet], figures: Sequence[Image]) -> str:
    parts = [
        f"# {TITLE}\n",
        'Zhang, Li, Moallemi, Peng, NeurIPS 2025, arXiv 2510.15152. "paper", in italics: its own numbers.\n',
        "\n".join(f"- {line}" for line in preface) + "\n",
        *(sheet.markdown() for sheet in sheets),
        *(f"### {_title(figure)}\n\n![]({FIGURES}/{figure.path.name})\n" for figure in figures),
    ]
    return "\n".join(parts)


def _page(preface: Sequence[str], sheets: Sequence[Sheet], figures: Sequence[Image]) -> str:
    source = 'Zhang, Li, Moallemi, Peng, NeurIPS 2025, arXiv 2510.15152. "paper": its own numbers.'
    parts = [
        html.paragraph(source, "lead"),
        *(html.paragraph(line) for line in preface),
        *(sheet.html() for sheet in sheets),
        *(html.figure(_title(figure), figure, "") for figure in figures),
    ]
    return html.page(TITLE, parts)
