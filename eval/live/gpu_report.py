"""What `python -m eval gpu` writes: the tail, TTFT by uncached tokens, what evictions took, decoding, the commands."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eval.live.replay.rows import Folder, Row
from eval.live.replay.summary import ArmSummary, NoResultError, summarise
from eval.live.replay.table import markdown, sentences, server_sentences
from eval.simulate.timing import Timing

TOLERANCE = 0.01
"""By how much decoding with radix-tlru may be slower than with stock lru, relative."""


class Report(NamedTuple):
    """A run on one machine, as far as it has come."""

    out: Path  # with `tail/` and, once it was played, `decode/`
    facts: Mapping[str, object]  # of the machine
    timing: Timing
    slo_ms: float
    settle_s: float
    commands: Sequence[Sequence[str]]  # words of `python -m eval replay`

    def write(self) -> Path:
        """Write `results.md`. Without decoding, if that was not played: a machine may be taken away before.

        Raises:
            NoResultError: no arm of the tail was played, or no request of an arm succeeded.
        """
        folder = Folder(self.out / "tail", settle_s=self.settle_s)
        tail = summarise(folder)
        if not tail:
            raise NoResultError(f"{folder.path}: {', '.join(folder.run.arms)} not played; the same command goes on")
        lines = [
            "# Live on one machine",
            "",
            *(f"- {name}: {value}" for name, value in self.facts.items()),
            f"- {self.timing} tokens (R² {self.timing.r2 or 0:.3f}), {self.timing.origin}",
            f"- ξ = {self.timing.tokens(self.slo_ms):,} tokens for {self.slo_ms:g} ms",
            "",
            "## The tail",
            "",
            markdown(tail),
            "",
            *sentences(tail),
            *server_sentences(folder),
            "",
            "### TTFT by uncached tokens, under this load",
            "",
            *_size_lines(folder, self.slo_ms, self.timing.tokens(self.slo_ms)),
            "",
            "### What evictions took",
            "",
            *_eviction_lines(folder),
            "",
            "## Decoding at saturation",
            "",
            *self._decoding(),
            "",
            "## Commands",
            "",
            "```console",
            *(f"$ python -m eval replay {shlex.join(words)}" for words in self.commands),
            "```",
        ]
        path = self.out / "results.md"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _decoding(self) -> Iterator[str]:
        decoded = summarise(Folder(self.out / "decode")) if (self.out / "decode" / "run.json").is_file() else []
        if len(decoded) < 2:
            yield "Not played."
            return
        yield markdown(decoded)
        yield ""
        yield from (line for _, line in decode_verdicts(decoded))


def decode_verdicts(arms: Sequence[ArmSummary]) -> list[tuple[bool, str]]:
    """Whether the last arm decodes as fast as the first within the tolerance, and a line that says so."""
    baseline, candidate = arms[0], arms[-1]
    throughput = candidate.tokens_per_s / baseline.tokens_per_s - 1
    latency = candidate.changes["itl_p50"]
    rates = f"{candidate.tokens_per_s:,.1f} against {baseline.tokens_per_s:,.1f} tokens/s"
    waits = f"{candidate.figures['itl_p50'].value:.2f} against {baseline.figures['itl_p50'].value:.2f} ms"
    interval = f"{latency.low:+.2%} to {latency.high:+.2%}"
    return [
        _verdict(throughput >= -TOLERANCE, f"decode throughput: {rates} ({throughput:+.2%})"),
        _verdict(latency.value <= TOLERANCE, f"inter-token latency: {waits} ({latency.value:+.2%}, {interval})"),
    ]


def _verdict(met: bool, text: str) -> tuple[bool, str]:
    return met, f"{text}: {'not more' if met else 'MORE'} than {TOLERANCE:.0%} worse"


class SizeGroup(NamedTuple):
    """Requests of ``least`` to ``most`` uncached tokens: half an octave."""

    least: int
    most: int
    ttft_ms: tuple[float, ...]

    @property
    def p95(self) -> float:
        """Of their TTFT, in ms."""
        return float(np.percentile(self.ttft_ms, 95))


def by_size(rows: Sequence[Row]) -> list[SizeGroup]:
    """The requests that were answered, by how many tokens were prefilled for them."""
    groups: dict[int, list[float]] = {}
    for row in rows:
        if row.ttft_ms is not None and row.uncached_tokens:
            groups.setdefault(math.ceil(2 * math.log2(row.uncached_tokens)), []).append(row.ttft_ms)
    return [
        SizeGroup(math.floor(2 ** ((half - 1) / 2)) + 1, math.floor(2 ** (half / 2)), tuple(found))
        for half, found in sorted(groups.items())
    ]


def _size_lines(folder: Folder, slo_ms: float, threshold: int) -> Iterator[str]:
    """p95 of TTFT by size, a column an arm; and the largest size that meets the objective, as it was seen."""
    groups = {arm: {group.most: group for group in by_size(folder.answered(arm))} for arm in folder.run.arms}
    yield f"| uncached tokens | {' | '.join(f'{arm}: requests, TTFT p95 (ms)' for arm in groups)} |"
    yield f"|---|{'---:|' * len(groups)}"
    sizes = {most: group.least for found in groups.values() for most, group in found.items()}
    for most, least in sorted(sizes.items()):
        cells = [
            f"{len(group.ttft_ms):,}, {group.p95:,.0f}" if (group := found.get(most)) else "–"
            for found in groups.values()
        ]
        yield f"| {least:,} to {most:,} | {' | '.join(cells)} |"
    yield ""
    yield f"Predicted of a request that is alone: {threshold:,} uncached tokens in {slo_ms:g} ms. Seen by p95:"
    for arm, found in groups.items():
        met = 0
        for most, group in sorted(found.items()):
            if group.p95 > slo_ms:
                break
            met = most
        yield f"- {arm}: up to {met:,} uncached tokens" if met else f"- {arm}: no size"


def _eviction_lines(folder: Folder) -> Iterator[str]:
    """By SGLang's own metrics: how much of the time that a load was played its scheduler evicted."""
    yield "| | evictions | tokens evicted | mean (ms) | of the time played |"
    yield "|---|---:|---:|---:|---:|"
    for arm in folder.run.arms:
        parts = [part for part in folder.parts if part.arm == arm]
        total = {
            name: sum(part.metrics.get(f"sglang:{name}", 0.0) for part in parts)
            for name in ("eviction_duration_seconds_sum", "eviction_duration_seconds_count", "evicted_tokens_total")
        }
        spent, calls, evicted = total.values()
        share = spent / sum(part.seconds for part in parts) if parts else 0.0
        yield f"| {arm} | {calls:,.0f} | {evicted:,.0f} | {1e3 * spent / max(calls, 1):.3f} | {share:.3%} |"
