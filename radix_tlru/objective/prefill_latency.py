"""How long prefills take, by size: how many tokens can be prefilled so that 19 of 20 such requests are quick enough.

Batches are measured. Some hold a chunk of a prompt, some are late because the machine did something else. All that is
assumed of the time is that it does not fall as tokens rise. It is flat where reading the weights takes longest, and
rises faster than the tokens where attention does.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from statistics import median
from typing import NamedTuple

__all__ = ["Line", "LocalFit", "PrefillTimes", "Sample", "WholePrompts"]

_GROUP_OF = 3
"""Samples in a group, at least: the median of fewer is no defence against one that was stalled."""

_ENOUGH_NEAR = 32
"""Samples near a size, at least, that tell how late prefills of it are."""

_STALLED = 2.0
"""Times the usual: a prefill that took longer was stalled, which no margin covers."""


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
    """The usual time of prefills of about some size, and how much longer than it they take."""

    line: Line
    late: float  # 1 or more: 19 of 20 take at most so many times what the line says
    most: float = math.inf  # tokens: the line is not to be trusted beyond


class Sample(NamedTuple):
    """One measured prefill."""

    tokens: int  # prefilled, 1 or more
    ms: float


class WholePrompts:
    """Joins the batches of chunked prefill, so that a sample is what the first token of a prompt had to wait for.

    A long prompt is prefilled chunk by chunk. Its first token comes after the last chunk, so each chunk adds its own
    fixed cost. A line through single batches would miss that cost beyond the size of a chunk. Requests that share a
    batch share its time, so the tokens of a sample are those of all prompts in it.
    """

    def __init__(self) -> None:
        self._unfinished: str | None = None
        self._begun = Sample(0, 0.0)  # what the unfinished prompt took so far

    def add(
        self, requests: Collection[str], unfinished: str | None, tokens: int, ms: float, overlap_ms: float = 0.0
    ) -> Sample | None:
        """One prefill batch; None unless the oldest prompt in it is finished with it.

        Args:
            requests: ids of those with prompt tokens in the batch.
            unfinished: of them, the one of which more is to come.
            tokens, ms: that the batch prefilled, and the time it took.
            overlap_ms: of it, while the batch before was at work, too: with a prompt's chunks in several stages.
        """
        goes_on = self._unfinished in requests
        whole = Sample(tokens, ms)
        if goes_on:
            whole = Sample(self._begun.tokens + tokens, self._begun.ms + ms - overlap_ms)
        if goes_on and unfinished == self._unfinished:
            self._begun = whole
            return None
        self._unfinished, self._begun = unfinished, Sample(tokens, ms)
        return whole if goes_on or unfinished is None else None


class PrefillTimes:
    """The last prefills, and the largest of which 19 of 20 are quick enough.

    1. Prefills are grouped by size, two groups an octave: a thousand short prompts do not outweigh the few long ones.
    2. The usual time of a group is its median. Groups whose usual times do not rise with the size are joined.
    3. The p95 of a group is its usual time, and how late it and those beside it are, in times what is usual.
    4. Between groups times are interpolated. Beyond the last they go on as they did over two octaves, and so below the
       first, where they fall no faster than the tokens: a line through two long prompts can be below 0 at a short one.
    5. How far beyond is bounded (``LocalFit.most``): to four times the largest prefills, or to as many tokens as the
       time allows if it rises in proportion from there. Where all that was seen took as long as the weights to read,
       the rise is noise, and lines through it reach anywhere.
    6. Where all prefills are of much the same size, as full chunks of a busy server are, nothing tells what one token
       more costs: times are in proportion to those of the largest. So they are where none takes longer than a smaller.
    """

    WINDOW = 512
    """Samples remembered."""

    ENOUGH = 32
    """Samples needed for an answer."""

    SPREAD = 4.0
    """The largest group of tokens must be so many times the smallest for a slope, or that would be a guess. A slope
    holds up to so many times the largest prefills."""

    _ONE_SIZE = 2**0.5  # from the smallest to the largest of a group

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self._by_size: list[Sample] = []

    def __len__(self) -> int:
        """Samples remembered."""
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """One more prefill; one without tokens or time is none."""
        if sample.tokens <= 0 or sample.ms <= 0.0 or not math.isfinite(sample.ms):
            return
        self._samples.append(sample)
        insort(self._by_size, sample)
        if len(self._samples) > self.WINDOW:
            del self._by_size[bisect_left(self._by_size, self._samples.popleft())]

    def near(self, ms: float) -> LocalFit | None:
        """The times of the largest prefills of which 19 of 20 take at most ``ms``.

        These are of ``line.tokens(ms / late)`` tokens; negative: not even the smallest are that quick. None: fewer than
        32 samples. Some tenths of a millisecond of work.
        """
        if len(self._samples) < self.ENOUGH:
            return None
        groups = _join_until_rising(self._groups())
        # Three at least were so large. Groups that were joined have one usual time, up to their largest.
        largest = max(self._by_size[-_GROUP_OF].tokens, groups[-1].tokens)
        if groups[-1].tokens < self.SPREAD * groups[0].tokens:
            usual_ms = groups[-1].ms
            return LocalFit(Line(usual_ms / largest, 0.0), _late(each.ms / usual_ms for each in groups[-1].samples))
        usual = _UsualTimes(groups, self.SPREAD)
        slow = bisect_right(usual.times, ms / _STALLED)  # no p95 of a group below is more than twice the usual time
        high = 0.0
        while slow < len(groups) and (high := usual.p95(slow)) <= ms:
            slow += 1
        if slow == 0:
            return LocalFit(usual.below, usual.late(0))
        if slow == len(groups):
            late = usual.late(len(groups) - 1)
            return LocalFit(usual.above, late, largest * max(self.SPREAD, ms / late / groups[-1].ms))
        low = usual.p95(slow - 1)
        share = (ms - low) / (high - low)
        tokens = usual.sizes[slow - 1] + share * (usual.sizes[slow] - usual.sizes[slow - 1])
        return LocalFit(usual.tangent(tokens), ms / usual.ms(tokens))

    def _groups(self) -> Iterator[_Group]:
        samples, begin, tokens_of = self._by_size, 0, attrgetter("tokens")
        while begin < len(samples):
            end = bisect_right(samples, self._ONE_SIZE * samples[begin].tokens, key=tokens_of)
            if len(samples) - end < _GROUP_OF:
                end = len(samples)
            # Groups share no size, so that no two have the same median.
            last = min(max(end, begin + _GROUP_OF), len(samples)) - 1
            end = bisect_right(samples, samples[last].tokens, lo=last, key=tokens_of)
            yield _group(samples[begin:end])
            begin = end


class _Group(NamedTuple):
    """Samples of about one size, the least first, and the medians of their tokens and times."""

    samples: list[Sample]
    tokens: float
    ms: float


class _UsualTimes:
    """The usual time of a prefill by its tokens: lines between the medians of the groups, which rise.

    Args:
        groups: two or more, the largest at least ``ratio`` times as large as the smallest.
        ratio: the line below the smallest group goes through it and through the first group at least ``ratio`` times as
            large, but no token of a shorter prompt takes longer; the line above the largest group goes through one at
            most 1 / ``ratio`` as large.
    """

    def __init__(self, groups: Sequence[_Group], ratio: float) -> None:
        self._groups = groups
        self.sizes = [group.tokens for group in groups]
        self.times = [group.ms for group in groups]
        last = len(groups) - 1
        below = self._chord(0, bisect_left(self.sizes, ratio * self.sizes[0]))
        self.below = below if below.beta >= 0.0 else Line(self.times[0] / self.sizes[0], 0.0)
        self.above = self._chord(bisect_right(self.sizes, self.sizes[-1] / ratio) - 1, last)
        self._lines = [self.below, *(self._chord(number, number + 1) for number in range(last)), self.above]
        self._ratios: dict[int, list[float]] = {}  # by group: a group is asked for with each of those beside it

    def ms(self, tokens: float) -> float:
        """The usual time of so many tokens, above 0."""
        return self._lines[bisect_right(self.sizes, tokens)].ms(tokens)

    def tangent(self, tokens: float) -> Line:
        """A line through the usual time of so many tokens, as steep as times are over the groups around it."""
        above = bisect_right(self.sizes, tokens)
        alpha = self._chord(max(above - 2, 0), min(above + 1, len(self.sizes) - 1)).alpha
        return Line(alpha, self.ms(tokens) - alpha * tokens)

    def p95(self, number: int) -> float:
        """The time that 19 of 20 prefills of a group meet, stalled ones left out."""
        return self.times[number] * self.late(number)

    def late(self, number: int) -> float:
        """That time in times the usual one: 1 or more, by at least 32 samples of the group and of those beside it."""
        first, last = max(number - 1, 0), number + 2
        while sum(len(group.samples) for group in self._groups[first:last]) < _ENOUGH_NEAR and (
            first > 0 or last < len(self._groups)
        ):
            first, last = max(first - 1, 0), last + 1
        return _late(ratio for near in range(first, min(last, len(self._groups))) for ratio in self._ratios_of(near))

    def _ratios_of(self, number: int) -> list[float]:
        """The times of a group in times what is usual for so many tokens."""
        if number not in self._ratios:
            self._ratios[number] = [ms / self.ms(tokens) for tokens, ms in self._groups[number].samples]
        return self._ratios[number]

    def _chord(self, low: int, high: int) -> Line:
        alpha = (self.times[high] - self.times[low]) / (self.sizes[high] - self.sizes[low])
        return Line(alpha, self.times[low] - alpha * self.sizes[low])


def _late(ratios: Iterable[float]) -> float:
    """What 19 of 20 prefills take at most, in times what is usual: 1 or more. Stalled ones are left out."""
    usable = sorted(ratio for ratio in ratios if ratio <= _STALLED)
    return max(usable[len(usable) * 19 // 20], 1.0)


def _group(samples: list[Sample]) -> _Group:
    return _Group(samples, median(each.tokens for each in samples), median(each.ms for each in samples))


def _join_until_rising(groups: Iterable[_Group]) -> list[_Group]:
    rising: list[_Group] = []
    for group in groups:
        while rising and group.ms <= rising[-1].ms:
            group = _group(rising.pop().samples + group.samples)
        rising.append(group)
    return rising
