"""The model of `queue --itl` against runs; here of a server whose times are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest

from eval.__main__ import main
from eval.caches.policies import simulated_cache
from eval.live.replay.rows import Folder, Row
from eval.simulate.timing import Timing
from eval.studies.batching import Engine, serve_batches
from eval.studies.queue_check import engine_of, modelled
from eval.traces import open_trace
from tests.helpers.replays import RUN, played, row

ENGINE = Engine(Timing(0.05, 15.0, "a test"), itl_ms=4.0, slope_ms=0.5)
ONE = msgspec.structs.replace(RUN, arms={"stock lru": ""}, repeats=1, loop="open")


def rows_of(engine: Engine, speed: float) -> list[Row]:
    """What clients measure of it on a trace that is played so many times as fast."""
    requests = [
        replace(one, arrival_s=one.arrival_s / speed, output_tokens=20)
        for one in open_trace("synthetic:conversations=60,seed=3").requests
    ]
    cache = simulated_cache("lru", 100_000, threshold=1_024, next_prompt_estimate=None, median_weight=None)
    served = serve_batches(cache, requests, engine)
    return [
        row(
            number,
            number,
            0,
            one.prompt_tokens,
            one.prompt_tokens - int(uncached),
            1000 * float(ttft),
            sent_s=one.arrival_s,
            output_tokens=20,
            itl_ms=(1000 * float(itl),) * 19,
            e2e_ms=1000 * float(ttft + 19 * itl),
        )
        for number, one, uncached, ttft, itl in zip(
            count(), requests, served.uncached, served.ttft_s, served.itl_s, strict=False
        )
    ]


def test_times_of_an_engine_are_found_where_few_wait() -> None:
    found = engine_of(rows_of(ENGINE, speed=0.2), ENGINE.chunk)
    assert [found.line.alpha, found.line.beta] == pytest.approx([ENGINE.line.alpha, ENGINE.line.beta], rel=0.01)
    assert found.itl_ms == pytest.approx(4.0, rel=0.01)


def test_a_prefill_takes_as_long_as_a_short_one_at_least() -> None:
    engine = replace(ENGINE, line=Timing(0.05, 5.0, "a test", floor=25.0))  # up to 400 tokens
    found = engine_of(rows_of(engine, speed=0.2), engine.chunk)
    assert [found.line.floor, found.line.alpha, found.line.beta] == pytest.approx([25.0, 0.05, 5.0], rel=0.05)


def test_a_decoding_step_takes_longer_for_every_other_request() -> None:
    # Two answers that begin and end together, and two that are alone. Each has a stall, which is no decoding step.
    times = [(0.0, 100, 4.5), (-0.01, 200, 4.5), (9.0, 300, 4.0), (18.0, 400, 4.0)]
    rows = [
        row(number, number, 0, prompt, 0, prompt / 10, sent_s=sent_s, itl_ms=(itl, 50.0, itl), e2e_ms=prompt / 10 + 60)
        for number, (sent_s, prompt, itl) in enumerate(times)
    ]
    found = engine_of(rows, 2048)
    assert [found.itl_ms, found.slope_ms] == pytest.approx([4.0, 0.5])
    assert [found.line.alpha, found.line.beta] == pytest.approx([0.1, 0.0])


def test_a_server_that_is_as_the_model_is_predicted_at_another_load() -> None:
    busy = rows_of(ENGINE, speed=60)
    assert np.percentile([one.ttft_ms for one in busy], 95) > 3 * (
        15 + 0.05 * np.percentile([one.uncached_tokens for one in busy], 95)
    )
    assert 1000 * modelled(busy, ENGINE).ttft_s == pytest.approx([one.ttft_ms for one in busy])


def test_the_command_has_a_row_for_each_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, speed in (("slow", 0.2), ("fast", 60)):
        played(Folder(tmp_path / name, ONE), "stock lru", 0, rows_of(ENGINE, speed))
    folders = [str(tmp_path / name) for name in ("slow", "fast")]
    assert main(["queue-check", *folders, "--calibrate", folders[0]]) == 0
    title, _, _, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("prefill 15.0 ms + 0.0500 ms a token, decoding 4.0")
    cells = {line.split()[0]: line.split() for line in lines if "#1" in line}
    assert list(cells) == ["slow", "fast"]
    assert int(cells["slow"][4].rstrip("%")) < 50 < int(cells["fast"][4].rstrip("%"))
    assert {cells["slow"][place] for place in (6, 8, 10)} <= {"+0%", "-0%"}


def test_requests_are_served_in_the_order_in_which_they_were_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A conversation whose turns wait for each other may send its later ones after those of a request behind it."""
    rows = rows_of(ENGINE, 60)
    backwards = [msgspec.structs.replace(one, number=len(rows) - one.number) for one in rows]
    tables = []
    for name, found in (("in-order", rows), ("backwards", backwards)):
        played(Folder(tmp_path / name, ONE), "stock lru", 0, found)
        assert main(["queue-check", str(tmp_path / name), "--calibrate", str(tmp_path / "in-order")]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if "#1" in line)
        tables.append(line.split()[1:])
    assert tables[0] == tables[1]


def test_answers_of_one_token_have_no_itl_and_no_error_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_of(ENGINE, 0.2)
    short = [msgspec.structs.replace(one, output_tokens=1, itl_ms=(), e2e_ms=one.ttft_ms) for one in rows]
    for name, found in (("long", rows), ("short", short)):
        played(Folder(tmp_path / name, ONE), "stock lru", 0, found)
    assert main(["queue-check", str(tmp_path / "short"), "--calibrate", str(tmp_path / "long")]) == 0
    printed = capsys.readouterr()
    (line,) = (line for line in printed.out.splitlines() if "#1" in line)
    assert line.split()[-6:-2] == ["–"] * 4  # ITL p50 and p95, measured and modelled
    assert "nan" not in printed.out + printed.err


def test_folders_that_say_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Folder(tmp_path, ONE)
    assert main(["queue-check", str(tmp_path), "--calibrate", str(tmp_path)]) == 2
    assert f"{tmp_path}: no part of a run was played to its end" in capsys.readouterr().err
    played(folder, "stock lru", 0, [row(0, 0, 0, 100, 0), row(1, 0, 0, 100, 0)])
    assert main(["queue-check", str(tmp_path), "--calibrate", str(tmp_path)]) == 2
    assert f"--calibrate {tmp_path}: TTFT does not rise with uncached tokens; " in capsys.readouterr().err


def test_a_run_whose_answers_have_one_token_tells_no_decoding_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [msgspec.structs.replace(one, output_tokens=1, itl_ms=()) for one in rows_of(ENGINE, 0.2)]
    played(Folder(tmp_path, ONE), "stock lru", 0, rows)
    assert main(["queue-check", str(tmp_path), "--calibrate", str(tmp_path)]) == 2
    assert f"--calibrate {tmp_path}: no answer has two tokens or more; " in capsys.readouterr().err
