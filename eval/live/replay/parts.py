"""Playing a run part by part: each arm in each repeat, on a fresh server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from itertools import groupby

import requests

from eval.errors import RunError
from eval.live.replay.facts import facts
from eval.live.replay.hosts import Host, server_of, together
from eval.live.replay.plan import Plan
from eval.live.replay.play import Sent, play
from eval.live.replay.probe import prefill_alone, warm_up
from eval.live.replay.rows import Folder, Part, PartName, Row, risen
from eval.live.server import ServerError
from eval.terminal import Progress

__all__ = ["play_all"]


def play_all(plan: Plan, folder: Folder) -> bool:
    """Play what the folder has not; returns whether it has everything then. Ctrl-C loses no row that came in."""
    failures: list[str] = []
    try:
        for _, repeat in groupby(folder.missing, key=lambda part: part.repeat):
            with _servers(plan, list(repeat)) as servers:
                for missing, server in servers.items():
                    with Progress("", plan.load.requests, unit="requests", keep=True) as progress:
                        try:
                            _play_part(plan, folder, missing, server, progress)
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


@contextlib.contextmanager
def _servers(plan: Plan, parts: Sequence[PartName]) -> Iterator[Mapping[PartName, AbstractContextManager[Host]]]:
    """The servers of these parts: each starts when it is entered, or all at once, and then they end with the block."""
    arms = {arm.name: arm for arm in plan.arms}
    given = {part: (arms[part.arm], plan.common, f"replay-{part.repeat}-{arms[part.arm].stem}") for part in parts}
    if not plan.together:
        yield {part: plan.launch(*of) for part, of in given.items()}
        return
    with together({part: server_of(*of) for part, of in given.items()}) as servers:
        yield servers


def _play_part(
    plan: Plan, folder: Folder, part: PartName, server: AbstractContextManager[Host], progress: Progress
) -> None:
    arm = next(arm for arm in plan.arms if arm.name == part.arm)
    progress.say(f"{part}: server starts")
    with server as host, folder.begin(part.arm, part.repeat) as rows:
        found = facts(host, arm)
        progress.say(f"{part}: warm-up")
        warm_up(host.base_url, plan.timeout_s)
        alone = [prefill_alone(host.base_url, plan.timeout_s)]
        host.flush_cache()
        before = _metrics(host)
        progress.say(f"{part}: replay")

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
            arm=part.arm,
            repeat=part.repeat,
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
