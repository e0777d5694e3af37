"""Tables 1–6 in the paper's layout, with the paper's own numbers below, and three tables that it does not have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from eval.studies.paper.grid import BASELINES, BOTH, FUTURE, STEPS, Results, improvement
from eval.studies.paper.published import HEADLINE, OBJECTIVE_MS, TABLES, Headline
from eval.studies.paper.sheet import Column, Line, Sheet, per_cent

NAMES = {
    "lru": "LRU",
    "threshold-lru": "Threshold-LRU (1,024)",
    "tlru": "T-LRU",
    "etlru-given": "ET-LRU",
    "end-aware": "End-Aware T-LRU",
    "length-aware": "T-LRU, next length known",
    BOTH: "Length-Aware T-LRU",
    "tail-belady": "Tail-Optimized Belady",
}
"""Names of the paper. "Next length known" is not in it: the paper's Length-Aware knows the end as well."""

_SHORT = {"lru": "LRU", "threshold-lru": "Thre-LRU"}
PERCENTILES = ("p50", "p90", "p95", "p99")


def relative_latency(results: Results, over: str) -> Sheet:
    """Tables 1 and 4 (over LRU), 2 and 5 (over Threshold-LRU)."""
    study = results.study
    number = study.source.data.tables[BASELINES.index(over)]
    cells = list(product(study.thresholds_ms, ("p90", "p95")))
    cells += [column for column in TABLES[number].columns if column[1] == "p99" and column[0] in study.thresholds_ms]
    return Sheet(
        f"Table {number}. Relative latency improvement of T-LRU over {NAMES[over]}, % ({study.source.label})",
        [Column("capacity"), *(Column(name, _ms(ms)) for ms, name in cells)],
        _lines(results, number, cells, [
            [results.faster(over, capacity, ms, name) for ms, name in cells] for capacity in study.capacities
        ]),
        f"layout, capacities, {_layout_ms(results, number)}, Q̂ as the average prompt, and the lines in between",
        f"trace, α and β, {_extra_ms(results, number)}page size {study.page_size}, so that capacity is in tokens",
    )  # fmt: skip


def relative_p99(results: Results) -> Sheet:
    """p99, which the paper shows only for ξ_s = 500 ms."""
    study = results.study
    first, second, _ = study.source.data.tables
    cells = list(product(study.thresholds_ms, BASELINES))
    return Sheet(
        f"Tables {first} and {second}, p99. Relative improvement of T-LRU in p99, % ({study.source.label})",
        [Column("capacity"), *(Column(_SHORT[over], _ms(ms)) for ms, over in cells)],
        [
            Line([f"{capacity:,}", *(per_cent(results.faster(over, capacity, ms, "p99")) for ms, over in cells)])
            for capacity in study.capacities
        ],
        "the question; Table 1 has p99 for ξ_s = 500 ms",
        "this table",
    )


def violations(results: Results) -> Sheet:
    """Tables 3 and 6."""
    study = results.study
    number = study.source.data.tables[2]
    cells = list(product(study.thresholds_ms, BASELINES))
    unread = "; a fifth pair of its columns has no ξ_s that can be read in our copy" if number == 6 else ""
    return Sheet(
        f"Table {number}. Relative improvement of T-LRU: % reduction in requests with latency > {OBJECTIVE_MS:g} ms "
        f"({study.source.label})",
        [Column("capacity"), *(Column(_SHORT[over], _ms(ms)) for ms, over in cells)],
        _lines(results, number, cells, [
            [results.fewer(over, capacity, ms) for ms, over in cells] for capacity in study.capacities
        ]),
        f"layout, capacities, objective, {_layout_ms(results, number)}, and the lines in between{unread}",
        f"trace, α and β, {_extra_ms(results, number)}page size {study.page_size}",
    )  # fmt: skip


def base_latency(studies: Sequence[Results]) -> Sheet:
    """TTFT under LRU at the smallest capacity, which shows how like the paper's the trace is."""
    lines = []
    for results in studies:
        data, capacity = results.study.source.data, results.study.capacities[0]
        own = [f"{results.ttft('lru', capacity, OBJECTIVE_MS, percentile):,.0f}" for percentile in PERCENTILES]
        quoted = [f"{ms:,.0f}" for ms in data.lru_ms]
        lines.append(Line([results.study.source.label, f"{capacity:,}", *own]))
        lines.append(Line(["  paper", "1,000", *quoted], quoted=True, last=True))
    return Sheet(
        "TTFT under LRU at the smallest capacity, ms",
        [Column("trace"), Column("capacity"), *map(Column, PERCENTILES)],
        lines,
        "the lines named so (sections 5.2 and G.2), at a capacity of 1,000",
        "the others; they are as near to the paper's as the trace and α are",
    )


def policies(results: Results, capacities: Sequence[int]) -> Sheet:
    """All policies at the objective: the numbers of Figures 6 and 7."""
    study = results.study
    figure = study.source.data.figures[1]
    known = OBJECTIVE_MS in study.future_ms
    arms = [(policy, 0.0) for policy in (*BASELINES, "tlru")] + [("tlru", weight) for weight in study.weights]
    arms += [(policy, 0.0) for policy in FUTURE if known]
    lines = []
    for capacity in capacities:
        for policy, weight in arms:
            row = results.row(policy, capacity, OBJECTIVE_MS, weight)
            name = NAMES[policy] + (f", w = {weight:g}" if weight else "")
            lines.append(
                Line(
                    [
                        f"{capacity:,}",
                        name,
                        *(f"{study.timing.ms(row[percentile]):,.0f}" for percentile in PERCENTILES),
                        f"{row['over_objective']:,}",
                        per_cent(row["hit_ratio"]),
                        per_cent(results.tel_saved(policy, capacity, OBJECTIVE_MS, weight)),
                        per_cent(results.gap_closed(policy, capacity, OBJECTIVE_MS, weight)) if known else "–",
                    ],
                    last=(policy, weight) == arms[-1],
                )
            )
    return Sheet(
        f"Table A{figure}. The policies of Figure {figure} in numbers, ξ_s = {OBJECTIVE_MS:g} ms "
        f"({study.source.label})",
        [
            *(Column("capacity"), Column("policy")),
            *(Column(percentile, "TTFT (ms)") for percentile in PERCENTILES),
            *(Column(f"> {OBJECTIVE_MS:g} ms"), Column("hit %"), Column("TEL saved %"), Column("gap closed %")),
        ],
        lines,
        "the policies and what they know",
        "the table; T-LRU with the next length alone, and with a weight w on the median; gap closed is the share of "
        "the TEL between LRU and Tail-Optimized Belady",
        texts=2,
    )


def learned(groups: Sequence[Sequence[Results]], titles: Sequence[str]) -> Sheet:
    """ET-LRU (Definition 1) on the model for which Theorem 2 proves it optimal. A group is one model, seed by seed."""
    study = groups[0][0].study
    columns = list(product(study.thresholds_ms, _LEARNED))
    lines = [
        Line(
            [title, f"{capacity:,}", *(per_cent(_pooled(group, policy, capacity, ms)) for ms, policy in columns)],
            last=capacity == study.capacities[-1],
        )
        for group, title in zip(groups, titles, strict=True)
        for capacity in study.capacities
    ]
    traces = "a trace" if len(groups[0]) == 1 else f"{len(groups[0])} traces"
    return Sheet(
        "Table B. ET-LRU on the stochastic model: TEL saved against LRU, %",
        [Column("λ_i"), Column("capacity"), *(Column(_LEARNED[policy], _ms(ms)) for ms, policy in columns)],
        lines,
        "the model (section 4), the policy (Definition 1), that it is optimal there (Theorem 2), but no such table",
        f"the table, {traces} of {len(study.source.requests):,} turns a line; ET-LRU is given λ_i, μ and the lengths "
        f"of prompts in {STEPS} steps; optimum: Tail-Optimized Belady, which sees the future. The belief of Definition "
        "1, e^(−μ·silence), does not take silence itself for a sign of the end, as Bayes' rule would: with unequal "
        "λ_i, T-LRU can be ahead of it",
    )


_LEARNED = {"tlru": "T-LRU", "etlru-given": "ET-LRU", "tail-belady": "optimum"}


def _pooled(group: Sequence[Results], policy: str, capacity: int, threshold_ms: float) -> float | None:
    """Share of LRU's TEL that is gone, of all traces together."""
    lru, own = (sum(one.row(name, capacity, threshold_ms)["tel"] for one in group) for name in ("lru", policy))
    return improvement(lru, own)


def headline(results: Results) -> Sheet:
    """The abstract's numbers, and ours in the same cell and in the best cell."""
    return Sheet(
        f"The headline: reductions, % ({results.study.source.label})",
        [*map(Column, ("", "paper", "of its table", "here, same cell", "here, best cell", "which is"))],
        [_headline(results, entry) for entry in HEADLINE],
        "the first number and its cell; the abstract's 38.9 % is against Threshold-LRU, against LRU Table 3 has 40.7 %",
        "the others; the paper's and our best are both picked from all cells",
    )


def _headline(results: Results, entry: Headline) -> Line:
    study = results.study

    def value(capacity: int, ms: float) -> float:
        if entry.table == 3:
            return results.fewer(entry.column, capacity, ms) or 0.0
        return results.faster("lru", capacity, ms, entry.column) or 0.0

    there = entry.capacity in study.capacities and entry.threshold_ms in study.thresholds_ms
    best = max(product(study.capacities, study.thresholds_ms), key=lambda cell: value(*cell))
    cells = [
        f"{entry.per_cent}",
        f"{entry.table}: {entry.capacity:,}, {entry.threshold_ms:g} ms",
        per_cent(value(entry.capacity, entry.threshold_ms)) if there else "–",
        per_cent(value(*best)),
        f"{best[0]:,}, {best[1]:g} ms",
    ]
    return Line([entry.what, *cells])


def _lines(
    results: Results, number: int, cells: Sequence[tuple[float, str]], values: Sequence[Sequence[float | None]]
) -> list[Line]:
    """A line for each capacity, and below it the paper's where it has any."""
    lines = []
    for capacity, shares in zip(results.study.capacities, values, strict=True):
        quoted = [TABLES[number].at(capacity, ms, name) for ms, name in cells]
        has_any = any(value is not None for value in quoted)
        lines.append(Line([f"{capacity:,}", *map(per_cent, shares)], last=not has_any))
        if has_any:
            texts = ["" if value is None else per_cent(value / 100) for value in quoted]
            lines.append(Line(["  paper", *texts], quoted=True, last=True))
    return lines


def _ms(ms: float) -> str:
    return f"{ms:g} ms"


def _layout_ms(results: Results, number: int) -> str:
    shown = dict.fromkeys(ms for ms, _ in TABLES[number].columns if ms in results.study.thresholds_ms)
    return f"ξ_s = {', '.join(f'{ms:g}' for ms in shown)} ms"


def _extra_ms(results: Results, number: int) -> str:
    theirs = {ms for ms, _ in TABLES[number].columns}
    extra = [f"{ms:g}" for ms in results.study.thresholds_ms if ms not in theirs]
    return f"ξ_s = {', '.join(extra)} ms, " if extra else ""
