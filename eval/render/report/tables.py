"""The figures of a report as HTML tables: the arms side by side, and every cell."""

from __future__ import annotations

from html import escape

from eval.render.looks import compact, ink, percent
from eval.render.report.labels import label
from eval.render.report.rows import Row, Variant
from eval.render.report.scene import ARMS, Arm, Scene, is_candidate, is_online
from eval.simulate.grid import is_own_weight

_FIGURES = ("mean", "p50", "p90", "p95", "p99")


def cards(scene: Scene) -> str:
    """A card for each arm in the chosen cell."""
    return f'<div class="cards">{"".join(_card(scene, arm) for arm in ARMS)}</div>'


def _card(scene: Scene, arm: Arm) -> str:
    variant = scene.arm(arm)
    row = None if variant is None else scene.chosen(variant)
    if variant is None or row is None:
        return f'<div class="card absent"><h3>{arm.title}</h3><p>Not in this folder: {_code(arm.run)}</p></div>'
    done, colour = row.outcome, ink(variant.policy)
    name = f"<code>{escape(variant.policy)}</code>" + (
        "" if is_own_weight(variant.policy, variant.weight) else f", w = {variant.w}"
    )
    lines = [
        ("gap closed", percent(scene.gap_closed(row))),
        ("p50 uncached", _figure(scene, row, "p50")),
        ("p95 uncached", _figure(scene, row, "p95")),
        ("over ξ", f"{done.violations:,} <small>{percent(done.violations / done.requests)}</small>"),
    ]
    return (
        f'<div class="card" style="--policy:{colour}"><h3>{arm.title} {name}</h3>'
        f'<p class="big">{percent(scene.tel_saved(row))}</p><p class="unit">of the TEL of lru saved</p>'
        f"<dl>{''.join(f'<dt>{name}</dt><dd>{text}</dd>' for name, text in lines)}</dl></div>"
    )


def _figure(scene: Scene, row: Row, name: str) -> str:
    change = scene.change(row, name)
    return f"{getattr(row.outcome, name):,.0f} <small>{percent(change, sign=True)}</small>"


def arms_by_cell(scene: Scene) -> str:
    """A line for each capacity and ξ: TEL saved, gap closed and change of p50 of each arm."""
    variants = [scene.arm(arm) for arm in ARMS]
    columns = [("TEL saved", "gap closed", "p50") if arm.title != "oracle" else ("TEL saved", "p50") for arm in ARMS]
    heads = "".join(
        f'<th colspan="{len(names)}" class="start">{arm.title}{_absent(variant, arm)}</th>'
        for arm, variant, names in zip(ARMS, variants, columns, strict=True)
    )
    units = "".join(f"<th{' class=start' * (n == 0)}>{name}</th>" for names in columns for n, name in enumerate(names))
    lines = []
    for capacity in scene.capacities:
        for number, threshold in enumerate(scene.thresholds):
            cells = []
            for variant, names in zip(variants, columns, strict=True):
                row = None if variant is None else scene.at(variant, capacity, threshold)
                shares = {"TEL saved": "–", "gap closed": "–", "p50": "–"}
                if row is not None:
                    shares["TEL saved"] = percent(scene.tel_saved(row))
                    shares["gap closed"] = percent(scene.gap_closed(row))
                    shares["p50"] = percent(scene.change(row, "p50"), sign=True)
                tint = " highlight" * (variant is not None and is_candidate(variant))
                cells += [f'<td class="{"start" * (n == 0)}{tint}">{shares[name]}</td>' for n, name in enumerate(names)]
            size = f'<th scope="rowgroup" rowspan="{len(scene.thresholds)}">{compact(capacity)}</th>'
            first = size if number == 0 else ""
            lines.append(f"<tr{' class=top' * (number == 0)}>{first}<th>{compact(threshold)}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr><th rowspan="2">capacity<br>tokens</th><th rowspan="2">ξ<br>tokens</th>'
        f"{heads}</tr><tr>{units}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _absent(variant: Variant | None, arm: Arm) -> str:
    return f"<br><small>not here: {_code(arm.run)}</small>" if variant is None else ""


def all_cells(scene: Scene) -> str:
    """Every cell of a group, a block for each capacity and ξ: the arms first, the best policy of a server marked."""
    names = ("hit ratio", *_FIGURES, "over ξ", "TEL", "TEL saved", "gap closed", "evicted TEL-safe", "seconds")
    head = "".join(f"<th>{name}</th>" for name in names)
    arms = [scene.arm(arm) for arm in ARMS]
    blocks = []
    for capacity in scene.capacities:
        for threshold in scene.thresholds:
            rows = scene.place(capacity, threshold)
            best = scene.best_online(rows)
            lines = []
            for arm, variant in zip(ARMS, arms, strict=True):
                row = None if variant is None else scene.at(variant, capacity, threshold)
                lines.append(_line(scene, row, row in best) if row is not None else _absent_line(arm))
            lines += [_line(scene, row, row in best) for row in rows if row.variant not in arms]
            title = f"capacity {compact(capacity)} · ξ {compact(threshold)}"
            if scene.latency is not None:
                title += f" = {scene.latency.ms(threshold):,.0f} ms"
            blocks.append(f'<tbody><tr class="place"><th colspan="13">{title}</th></tr>{"".join(lines)}</tbody>')
    head = f"<thead><tr><th>policy</th>{head}</tr></thead>"
    return f'<div class="scroll"><table class="cells">{head}{"".join(blocks)}</table></div>'


def _absent_line(arm: Arm) -> str:
    return f'<tr class="absent"><th>{arm.title}</th><td colspan="12">not here: {_code(arm.run)}</td></tr>'


def _line(scene: Scene, row: Row, best: bool) -> str:
    done, policy = row.outcome, row.cell.policy
    kinds = ["highlight"] * is_candidate(row.variant) + ["oracle"] * (not is_online(row.variant)) + ["best"] * best
    name = f'<span class="dot" style="background:{ink(policy)}"></span>{escape(label(row.variant, scene.variants))}'
    if label(row.variant) != policy and policy not in label(row.variant):
        name += f" <code>{escape(policy)}</code>"
    if best:
        name += ' <span title="least TEL of the policies that a server can run">★</span>'
    if not row.asked_for:
        name += " <small>reference</small>"
    evicted = sum(done.evicted.values())
    safe = percent(done.evicted.get("tel_safe", 0) / evicted) if evicted else "–"
    values = [
        percent(done.hit_ratio),
        *(f"{getattr(done, figure):,.0f}" for figure in _FIGURES),
        f"{done.violations:,}",
        f"{done.tel:,}",
        percent(scene.tel_saved(row)),
        percent(scene.gap_closed(row)),
        safe,
        f"{done.seconds:,.1f}",
    ]
    cells = "".join(f"<td>{value}</td>" for value in values)
    return f'<tr class="{" ".join(kinds)}"><th scope="row">{name}</th>{cells}</tr>'


def _code(flags: str) -> str:
    return f"<code>simulate {escape(flags)}</code>"
