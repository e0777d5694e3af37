"""Resampled sessions: the figures of each resample are those of the requests that were drawn."""

from __future__ import annotations

import numpy as np
import pytest

from eval.compare.bootstrap import FEWEST, FEWEST_SESSIONS, RESAMPLES, Sample, draws, interval, percentiles, resampled
from eval.compare.changes import METRICS, figures_of
from eval.simulate.cells import Outcome

THRESHOLD = 300


@pytest.fixture(scope="module")
def sample() -> Sample:
    """500 requests of 60 sessions; many requests have the same number of uncached tokens."""
    rng = np.random.default_rng(5)
    session = np.concatenate([np.arange(60), rng.integers(0, 60, 440)])
    prompt = rng.integers(1, 1_000, 500)
    return Sample(np.minimum(rng.integers(0, 40, 500) * 25, prompt), prompt, session)


def drawn_requests(sample: Sample, line: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(sample.uncached)), line[sample.session])


def test_percentiles_of_a_resample_are_those_of_all_requests_that_were_drawn(sample: Sample) -> None:
    drawn, shares = draws(60)[:50], [0.0, 0.5, 0.9, 0.99, 1.0]
    found = percentiles(sample.uncached, sample.session, drawn, shares)
    for line, figures in zip(drawn, found, strict=True):
        values = sample.uncached[drawn_requests(sample, line)]
        assert figures.tolist() == pytest.approx(np.percentile(values, [100 * share for share in shares]).tolist())


def test_other_figures_are_for_as_many_requests_as_the_trace_has(sample: Sample) -> None:
    drawn = draws(60)[:20]
    for line, figures in zip(drawn, resampled(sample, THRESHOLD, drawn), strict=True):
        chosen = drawn_requests(sample, line)
        uncached, prompt = sample.uncached[chosen], sample.prompt[chosen]
        over = np.maximum(uncached - THRESHOLD, 0)
        named = dict(zip(METRICS, figures.tolist(), strict=True))
        assert named["hit_ratio"] == pytest.approx(1 - uncached.sum() / prompt.sum())
        assert named["mean"] == pytest.approx(uncached.mean())
        assert named["violations"] == pytest.approx((over > 0).mean() * 500)
        assert named["tel"] == pytest.approx(over.mean() * 500)


def test_a_draw_of_every_session_once_has_the_figures_of_the_trace(sample: Sample) -> None:
    over = np.maximum(sample.uncached - THRESHOLD, 0)
    p50, p90, p95, p99 = np.percentile(sample.uncached, [50, 90, 95, 99]).tolist()
    hit_ratio, mean = 1 - float(sample.uncached.sum() / sample.prompt.sum()), float(sample.uncached.mean())
    whole = Outcome(500, hit_ratio, mean, p50, p90, p95, p99, int(over.sum()), int((over > 0).sum()), {}, 0.0)
    (once,) = resampled(sample, THRESHOLD, np.ones((1, 60), dtype=np.uint8))
    assert once.tolist() == pytest.approx(figures_of(whole).tolist())


@pytest.mark.parametrize("at_once", [7 * 500, 1])  # 7 resamples in a part; a trace longer than what is held at once
def test_a_long_trace_is_resampled_in_parts_with_the_same_result(
    at_once: int, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = draws(60)[:30]
    whole = percentiles(sample.uncached, sample.session, drawn, [0.5, 0.95])
    monkeypatch.setattr("eval.compare.bootstrap._AT_ONCE", at_once)
    assert percentiles(sample.uncached, sample.session, drawn, [0.5, 0.95]).tolist() == whole.tolist()


def test_an_interval_holds_95_of_100_resamples() -> None:
    low, high = interval(np.arange(1001.0))
    assert (low, high) == pytest.approx((25.0, 975.0))


def test_draws_are_the_same_for_every_policy() -> None:
    assert draws(60)[:10].tolist() == draws(60)[:10].tolist()
    assert draws(60)[:10].sum(axis=1).tolist() == [60] * 10


def test_a_trace_of_very_many_sessions_has_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws(60).shape == (RESAMPLES, 60)
    monkeypatch.setattr("eval.compare.bootstrap._MOST_DRAWN", 200 * 60)
    assert draws(60).nbytes == 200 * 60
    assert len(draws(1_000)) == FEWEST


def test_few_sessions_have_no_intervals() -> None:
    for sessions in (1, FEWEST_SESSIONS - 1, FEWEST_SESSIONS):
        own = np.arange(sessions)
        found = resampled(Sample(100 * own + 1, 100 * own + 1, own), THRESHOLD, draws(sessions))
        assert np.isnan(found).all() == (sessions < FEWEST_SESSIONS)
