"""Playing a run part by part: each arm in each repeat, on a fresh server."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import requests

from eval.command import RunError
from eval.live.replay.facts import facts
from eval.live.replay.hosts import Starting, server_of, together
from eval.live.replay.plan import Plan
from eval.live.replay.play import Sent, Target, play_in_turn
from eval.live.replay.probe import prefill_alone, warm_up
from eval.live.replay.rows import Folder, Part, PartName, Row, RowFile, risen
from eval.live.running_server import RunningServer, ServerError
from eval.terminal import Progress


def play_all(plan: Plan, folder: Folder) -> bool:
    """Play what the folder has not; returns whether it has everything then. Ctrl-C loses no row that came in."""
    failures: list[str] = []
    try:
        for _, repeat in groupby(folder.missing, key=lambda part: part.repeat):
            with _servers(plan, list(repeat)) as servers:
                alone = [{part: server} for part, server in servers.items()]
                at_once = alone if plan.run.turn_s is None else [servers]
                for each in at_once:
                    failures += _play_parts(plan, folder, each)
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
def _servers(plan: Plan, parts: Sequence[PartName]) -> Iterator[Mapping[PartName, Starting]]:
    """The servers of these parts: each starts when it is entered, or all at once, and then they end with the block."""
    arms = {arm.name: arm for arm in plan.arms}
    given = {part: (arms[part.arm], plan.common, f"replay-{part.repeat}-{arms[part.arm].stem}") for part in parts}
    if not plan.together:
        yield {part: plan.launch(*of) for part, of in given.items()}
        return
    with together({part: server_of(*of) for part, of in given.items()}) as servers:
        yield servers


def _play_parts(plan: Plan, folder: Folder, servers: Mapping[PartName, Starting]) -> list[str]:
    """Play some parts, in turn if it is more than one. Returns what failed, a line each."""
    failures: list[str] = []
    with contextlib.ExitStack() as stack:
        requests_of_all = plan.load.requests * len(servers)
        progress = stack.enter_context(Progress("", requests_of_all, unit="requests", keep=True))

        def cut_off(part: PartName, error: Exception) -> None:
            progress.say(f"{part}: cut off")
            failures.append(f"{part.arm}, repeat {part.repeat + 1}: {error}")

        playing: list[_Playing] = []
        for part, server in servers.items():
            progress.say(f"{part}: server starts")
            try:
                one = stack.enter_context(_begun(plan, folder, part, server, progress))
            except _FAILURES as error:
                cut_off(part, error)
            else:
                playing.append(one)
        if not playing:
            return failures
        progress.say(f"{', '.join(str(one.part) for one in playing)}: replay")
        start = time.perf_counter()
        found = play_in_turn([one.target for one in playing], plan.load, plan.manner, plan.run.turn_s or 0.0)
        seconds = time.perf_counter() - start
        for one, played in zip(playing, found, strict=True):
            try:
                if played.error is not None:
                    raise played.error
                folder.finish(one.ended(seconds if plan.run.turn_s is None else played.busy_s))
                progress.say(f"{one.part}: done")
            except _FAILURES as error:
                cut_off(one.part, error)
    return failures


_FAILURES = (RunError, requests.RequestException)


@contextlib.contextmanager
def _begun(plan: Plan, folder: Folder, part: PartName, server: Starting, progress: Progress) -> Iterator[_Playing]:
    """The server of a part runs, is warm and empty."""
    arm = next(arm for arm in plan.arms if arm.name == part.arm)
    with server as host, folder.begin(part.arm, part.repeat) as rows:
        found = asdict(facts(host, arm, plan.common))
        progress.say(f"{part}: warm-up")
        warm_up(host.base_url, plan.manner.timeout_s)
        alone_ms = prefill_alone(host.base_url, plan.manner.timeout_s)
        host.flush_cache()
        yield _Playing(part, host, rows, progress, found, plan.manner.timeout_s, alone_ms, _metrics(host))


@dataclass
class _Playing:
    """A part that is played."""

    part: PartName
    host: RunningServer
    rows: RowFile
    progress: Progress
    facts: dict[str, Any]
    timeout_s: float
    alone_ms: float  # of a prefill alone, before
    metrics: dict[str, float]  # before

    @property
    def target(self) -> Target:
        return Target(self.host.base_url, self._keep, self.host.alive)

    def _keep(self, sent: Sent) -> None:
        self.rows.append(Row.of(sent))
        self.progress.advance()

    def ended(self, seconds: float) -> Part:
        """It was played to its end in that time."""
        metrics = risen(_metrics(self.host), self.metrics)
        alone_ms = self.alone_ms, prefill_alone(self.host.base_url, self.timeout_s)
        return Part(
            arm=self.part.arm,
            repeat=self.part.repeat,
            seconds=round(seconds, 3),
            facts=self.facts,
            metrics=metrics,
            prefill_alone_ms=tuple(round(ms, 3) for ms in alone_ms),
        )


def _metrics(host: RunningServer) -> dict[str, float]:
    with contextlib.suppress(ServerError):  # a server at a URL may run without --enable-metrics
        return host.get_metrics()
    return {}
