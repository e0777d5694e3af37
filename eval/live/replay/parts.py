"""Playing a run part by part: each arm in each repeat, on a fresh server."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict

import requests

from eval.errors import RunError
from eval.live.replay.arms import Arm
from eval.live.replay.facts import facts
from eval.live.replay.hosts import Host
from eval.live.replay.plan import Plan
from eval.live.replay.play import Sent, play
from eval.live.replay.probe import prefill_alone, warm_up
from eval.live.replay.rows import Folder, Part, PartName, Row, risen
from eval.live.server import ServerError
from eval.terminal import Progress

__all__ = ["play_all"]


def play_all(plan: Plan, folder: Folder) -> bool:
    """Play what the folder has not; returns whether it has everything then. Ctrl-C loses no row that came in."""
    arms = {arm.name: arm for arm in plan.arms}
    failures: list[str] = []
    try:
        for missing in folder.missing:
            with Progress("", plan.load.requests, unit="requests", keep=True) as progress:
                try:
                    _play_part(plan, folder, arms[missing.arm], missing.repeat, progress)
                    progress.say(f"{missing}: done")
                except (RunError, requests.RequestException) as error:
                    progress.say(f"{missing}: cut off")
                    failures.append(f"{missing.arm}, repeat {missing.repeat + 1}: {error}")
    finally:
        for failure in failures:
            print(f"eval replay: {failure}", file=sys.stderr)
        if folder.missing:
            parts = ", ".join(map(str, folder.missing))
            print(
                f"eval replay: missing: {parts}. Their rows so far are in {folder.path / 'rows'}; "
                "the same command plays what is missing.",
                file=sys.stderr,
            )
    return not folder.missing


def _play_part(plan: Plan, folder: Folder, arm: Arm, repeat: int, progress: Progress) -> None:
    label, log = str(PartName(repeat, arm.name)), f"replay-{repeat}-{arm.stem}"
    progress.say(f"{label}: server starts")
    with plan.launch(arm, plan.common, log) as host, folder.begin(arm.name, repeat) as rows:
        found = facts(host, arm)
        progress.say(f"{label}: warm-up")
        warm_up(host.base_url, plan.timeout_s)
        alone = [prefill_alone(host.base_url, plan.timeout_s)]
        host.flush_cache()
        before = _metrics(host)
        progress.say(f"{label}: replay")

        def keep(sent: Sent) -> None:
            rows.append(Row.of(sent))
            progress.advance()

        start = time.perf_counter()
        play(
            host.base_url,
            plan.load,
            plan.pace,
            api=plan.run.api,  # type: ignore[arg-type]
            sessions=plan.run.sessions,
            retries=plan.retries,
            timeout_s=plan.timeout_s,
            on_sent=keep,
            alive=host.alive,
        )
        seconds = time.perf_counter() - start
        metrics = risen(_metrics(host), before)
        alone.append(prefill_alone(host.base_url, plan.timeout_s))
    folder.finish(
        Part(
            arm=arm.name,
            repeat=repeat,
            seconds=round(seconds, 3),
            facts=asdict(found),
            metrics=metrics,
            prefill_alone_ms=tuple(round(ms, 3) for ms in alone),
        )
    )


def _metrics(host: Host) -> dict[str, float]:
    with contextlib.suppress(ServerError):  # a server at a URL may run without --enable-metrics
        return host.get_metrics()
    return {}
