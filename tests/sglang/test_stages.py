"""ξ with stages of a pipeline, which work at several chunks of a prompt at once."""

from __future__ import annotations

import pytest

from radix_tlru import Config
from radix_tlru.objective.calibration import PrefillBatch
from radix_tlru.objective.overhead import FirstToken
from radix_tlru.sglang.scheduler.live_threshold import LiveThreshold
from tests.helpers.caches import our_cache

STAGES, STAGE_MS, CHUNK = 2, 50.0, 100


@pytest.mark.parametrize("in_step", [False, True])
def test_a_prompt_takes_from_the_launch_of_its_first_chunk_until_its_last_is_done(in_step: bool) -> None:
    """Of 1 to 8 chunks, 50 ms each in either stage: 50 ms, and 0.5 ms a token. First tokens wait 12 ms more."""
    live = LiveThreshold(our_cache(4_000, ttft_slo_ms=212), Config(ttft_slo_ms=212), page_size=1, stages=STAGES)
    told: tuple[FirstToken, ...] = ()
    for number in range(40):
        name, chunks = f"{number}", number % 8 + 1
        for chunk in range(chunks):
            launched_ms = 1_000.0 * number + STAGE_MS * chunk  # when the first stage is done with the chunk before
            done_ms = launched_ms + STAGES * STAGE_MS
            ms = live.stopwatch.batch_ms(chunk, launched_ms / 1_000.0, done_ms / 1_000.0, in_step=in_step)
            assert ms == pytest.approx(100.0)
            is_last = chunk == chunks - 1
            live.stopwatch.done = done_ms / 1_000.0  # of others, who decode
            live.count_batch(PrefillBatch((name,), None if is_last else name, CHUNK, told if is_last else ()), ms)
        told = (FirstToken(name, STAGE_MS + STAGE_MS * chunks + 12.0),)
    assert live.estimate is not None
    assert live.estimate.overhead_ms == pytest.approx(12.0)
    assert live.estimate.line.alpha == pytest.approx(0.5)
    assert live.estimate.line.beta == pytest.approx(50.0)
    assert live.estimate.tokens == pytest.approx(300.0)  # (212 - 12 - 50) / 0.5
