"""How long prefills take: a line through what was measured, from which ξ is read.

Prefill time grows with the uncached tokens of a request, β + α·uncached, from where the machine is busy with them;
below that it may be flat. What is measured are batches, some of a chunk of a prompt, some late for what else went on.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

__all__ = ["Line", "LocalFit", "PrefillFit", "Sample", "WholePrompts"]

_WRONG = 0.3  # of its time: as far off as a sample can be from a line


class Line(NamedTuple):
    """Prefill time of a request by its uncached tokens: β + α·uncached."""

    alpha: float  # ms a token, above 0
    beta: float  # ms; below 0 in a line near some time, if a token of a long prompt takes longer than one of a short

    def ms(self, tokens: float) -> float:
        """Time with so many uncached tokens."""
        return self.beta + self.alpha * tokens

    def tokens(self, ms: float) -> float:
        """Uncached tokens that take ``ms``; negative if not even a request without any is that quick."""
        return (ms - self.beta) / self.alpha


class LocalFit(NamedTuple):
    """The line where prefills take about some time, and how much longer than it they take."""

    line: Line
    late: float  # 1 or more: 19 of 20 take at most so many times what the line says


class Sample(NamedTuple):
    """One measured prefill."""

    tokens: int  # prefilled, 1 or more
    ms: float


class WholePrompts:
    """Joins the batches of chunked prefill, so that a sample is what the first token of a prompt had to wait for.

    A long prompt is prefilled chunk by chunk. Its first token comes after the last, so each chunk adds its own fixed
    cost, which a line through single batches would miss beyond the size of a chunk. Requests that share a batch share
    its time, hence tokens are those of the whole batch, and a batch full of requests is as good a sample as a lone one.
    """

    def __init__(self) -> None:
        self._unfinished: str | None = None
        self._begun = Sample(0, 0.0)  # what the unfinished prompt took so far

    def add(self, requests: Collection[str], unfinished: str | None, tokens: int, ms: float) -> Sample | None:
        """One prefill batch; None unless the oldest prompt in it is finished with it.

        Args:
            requests: ids of those with prompt tokens in the batch.
            unfinished: of them, the one of which more is to come.
            tokens, ms: that the batch prefilled, and the time it took.
        """
        goes_on = self._unfinished in requests
        whole = Sample(self._begun.tokens + tokens, self._begun.ms + ms) if goes_on else Sample(tokens, ms)
        if goes_on and unfinished == self._unfinished:
            self._begun = whole
            return None
        self._unfinished, self._begun = unfinished, Sample(tokens, ms)
        return whole if goes_on or unfinished is None else None


class PrefillFit:
    """α and β of the last prefills, whatever a third of them had to wait for.

    1. *Forgets*: the last 256 samples count, and no other.
    2. *Is not led by the many*: tokens are grouped by size, four groups an octave. Chats prefill a thousand short
       prompts for each long one, and it is the long ones that ξ is about.
    3. *Is not led by outliers*: the median of each group, and through these the median of all slopes (Theil 1950, Sen
       1968), is wrong only once half of a group is. Where few samples are left, through these themselves.
    4. *Sees the bend*: small batches may all take as long as the weights take to read, so below some size the time is
       taken to be flat, if that explains the groups better than a line through all of them. The line is that above it.
    5. *Is exact all the same*: least squares of relative errors over the samples above the bend that are within three
       times the median error.
    """

    WINDOW = 256
    """Samples remembered."""

    ENOUGH = 32
    """Samples needed for a line."""

    SPREAD = 4.0
    """The largest group of tokens must be so many times the smallest, or a slope would be a guess."""

    _ONE_SIZE = 2 ** (1 / 4)  # from the smallest to the largest of a group, but
    _GROUP_OF = 3  # at least so many: the median of fewer is no defence
    _FEW = 40  # samples above a bend, up to which each counts for itself
    _ABOVE_BEND = 2.5  # times its tokens, that the largest group must have
    _AS_GOOD = 0.005  # more error, with which the lower bend is taken
    _ENOUGH_NEAR = 16  # samples, at least
    _STALLED = 2.0  # times what the line says: more is a stall, which no margin covers

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=self.WINDOW)

    def __len__(self) -> int:
        """Samples remembered."""
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """One more prefill; one without tokens or time is none."""
        if sample.tokens > 0 and sample.ms > 0.0 and math.isfinite(sample.ms):
            self._samples.append(sample)

    def line(self) -> Line | None:
        """The fit, or None: fewer than 32 samples, all of much the same size, or time does not rise with tokens.

        Some milliseconds of work, meant for every now and then.
        """
        if len(self._samples) < self.ENOUGH:
            return None
        groups = self._groups(self._samples)
        points = [_middle(group) for group in groups]
        if len(points) < 2 or points[-1].tokens < self.SPREAD * points[0].tokens:
            return None
        bends = list(self._bends(groups, points))
        if not bends:
            return None
        enough = min(bend.error for bend in bends) + self._AS_GOOD
        bend = next(bend for bend in bends if bend.error <= enough)
        line, above = bend.line, [sample for group in groups[bend.first :] for sample in group]
        for _ in range(2):
            line = _least_squares(above, line) or line
        return Line(line.alpha, max(line.beta, 0.0))

    def near(self, ms: float) -> LocalFit | None:
        """The fit where prefills take about ``ms``; None if there is no line.

        Attention makes a token of a long prompt, and one behind a long history, take longer, so no line is right for
        all sizes. This one is through the prefills of half to twice the tokens, at least the 16 nearest, by the median
        of slopes and least squares as above. If ``ms`` lies beyond them it is the line through all. What took over
        twice as long as the line says was stalled: it does not count for how late prefills are.
        """
        line = self.line()
        if line is None:
            return None
        middle = line.tokens(ms)
        for _ in range(3):  # it is the line that tells which are near
            near = self._around(middle)
            tangent = self._tangent(near)
            if tangent is None or tangent.beta < -ms:  # steeper than the square of the tokens, which attention is not
                break
            middle = min(max(tangent.tokens(ms), near[0].tokens), near[-1].tokens)
            if middle == tangent.tokens(ms):
                line = tangent
        ratios = sorted(each.ms / max(line.ms(each.tokens), 1e-6) for each in self._around(line.tokens(ms)))
        ratios = [ratio for ratio in ratios if ratio <= self._STALLED]
        return LocalFit(line, max(ratios[len(ratios) * 19 // 20], 1.0) if ratios else self._STALLED)

    def _around(self, tokens: float) -> list[Sample]:
        """The samples near so many tokens, by size."""

        def octaves(sample: Sample) -> float:
            return abs(math.log2(sample.tokens / max(tokens, 1.0)))

        nearest = sorted(self._samples, key=octaves)
        return sorted(nearest[: max(sum(octaves(each) <= 1.0 for each in nearest), self._ENOUGH_NEAR)])

    def _tangent(self, samples: Sequence[Sample]) -> Line | None:
        few = len(samples) <= self._FEW
        points = [_Point(*each, 1) for each in samples] if few else [_middle(group) for group in self._groups(samples)]
        line = _theil_sen(points)
        return line and (_least_squares(samples, line) or line)

    def _groups(self, samples: Iterable[Sample]) -> list[list[Sample]]:
        groups: list[list[Sample]] = [[]]
        for sample in sorted(samples):
            last = groups[-1]
            # Groups share no size, so that no two have the same median.
            if len(last) >= self._GROUP_OF and sample.tokens > max(self._ONE_SIZE * last[0].tokens, last[-1].tokens):
                groups.append([])
            groups[-1].append(sample)
        if len(groups) > 1 and len(groups[-1]) < self._GROUP_OF:
            groups[-2:] = [groups[-2] + groups[-1]]
        return groups

    def _bends(self, groups: Sequence[Sequence[Sample]], points: Sequence[_Point]) -> Iterator[_Bend]:
        """Flat below a group and a line from there on: each that can be drawn, from no bend at all upwards."""
        left = len(self._samples)
        for first, point in enumerate(points[:-1]):
            if first and points[-1].tokens < self._ABOVE_BEND * point.tokens:
                return
            few = left <= self._FEW
            if few or first % 2 == 0:  # of many groups every other will do
                above = [_Point(*sample, 1) for each in groups[first:] for sample in each] if few else points[first:]
                line = _theil_sen(above)
                if line is not None:
                    flat = Line(0.0, _weighted_median((p.ms, p.weight) for p in points[:first]) if first else 0.0)
                    errors = [_error(group, flat if low < first else line) for low, group in enumerate(groups)]
                    yield _Bend(first, line, sum(errors) / len(errors))
            left -= point.weight


class _Point(NamedTuple):
    tokens: float
    ms: float
    weight: int  # samples in it


class _Bend(NamedTuple):
    first: int  # group above it
    line: Line
    error: float  # of the groups, relative, on average


def _error(group: Sequence[Sample], line: Line) -> float:
    """Of the samples on average, relative; what had to wait is as wrong as anything may be."""
    alpha, beta = line
    off = [abs(ms / max(beta + alpha * tokens, 1e-6) - 1.0) for tokens, ms in group]
    return sum(error if error < _WRONG else _WRONG for error in off) / len(off)


def _middle(group: Sequence[Sample]) -> _Point:
    return _Point(median(s.tokens for s in group), median(s.ms for s in group), len(group))


def _theil_sen(points: Sequence[_Point]) -> Line | None:
    """The weighted median of the slopes of all pairs; errors are taken to grow with the time."""
    slopes = [
        ((b.ms - a.ms) / (b.tokens - a.tokens), min(a.weight, b.weight) * (b.tokens - a.tokens) / (a.ms + b.ms))
        for a, b in combinations(points, 2)
        if b.tokens > a.tokens
    ]
    alpha = _weighted_median(slopes) if slopes else 0.0
    if alpha <= 0.0:
        return None
    return Line(alpha, _weighted_median((p.ms - alpha * p.tokens, p.weight / p.ms) for p in points))


def _weighted_median(weighted: Iterable[tuple[float, float]]) -> float:
    ordered = sorted(weighted)
    half, below = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        below += weight
        if below >= half:
            return value
    raise AssertionError("a median of nothing")


def _least_squares(samples: Iterable[Sample], line: Line) -> Line | None:
    """The line of least squared relative errors through the samples near ``line``; None if they do not make one."""
    expected = [(sample, max(line.ms(sample.tokens), 1e-6)) for sample in samples]
    near = 3.0 * median(abs(sample.ms / ms - 1.0) for sample, ms in expected)
    weight = x = y = xx = xy = 0.0
    for sample, ms in expected:
        if abs(sample.ms / ms - 1.0) <= near:
            share = 1.0 / (ms * ms)
            weight += share
            x += share * sample.tokens
            y += share * sample.ms
            xx += share * sample.tokens * sample.tokens
            xy += share * sample.tokens * sample.ms
    spread = weight * xx - x * x
    if spread <= 1e-9 * weight * xx:
        return None
    alpha = (weight * xy - x * y) / spread
    return Line(alpha, (y - alpha * x) / weight) if alpha > 0.0 else None
