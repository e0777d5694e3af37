"""`python -m eval dashboard`: every panel of the Grafana dashboard in one picture, of a server under load.

A real server without a GPU, a Prometheus that scrapes it, and the queries of the panels: the picture of what an
operator sees who has a Grafana.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.models.units import PercentUnit, Short
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from eval.arguments import output_file, whole
from eval.live.prometheus import Prometheus, check_installed
from eval.live.replay.client import Request, send, session
from eval.live.running_server import ServerError
from eval.live.server import Server, cpu_flags, ensure_demo_model
from eval.render.looks import MUTED, RC
from radix_tlru.tools.dashboard import PANELS, Panel
from radix_tlru.tools.demo_model import VOCABULARY

OUTPUT = Path("eval/results/dashboard.png")
POOL, PAGE_SIZE, SLO_MS = 65_536, 16, 100
CLIENTS, CONVERSATIONS, LONGEST, ANSWER, PAUSE_S = 4, 160, 2_500, 12, 0.1
"""At once; that take turns; tokens of one, after which it begins anew; of an answer; before the next one."""

COLUMNS = 3
FEW = 5  # series, beyond which a legend has two columns
RATE_S, STEP_S = 20, 2  # over which rates are taken; from one point to the next


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """For how long, and where to put it."""
    parser.add_argument("--seconds", type=whole(30), default=240, metavar="S", help="under load (default: %(default)s)")
    parser.add_argument("--out", type=output_file, default=OUTPUT, metavar="FILE", help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Serve, scrape, draw, write.

    Raises:
        ValueError: the file is of no format that matplotlib knows.
        OSError: it cannot be written.
        RunError: Prometheus is not installed, or it or the server failed.
    """
    if args.out.suffix[1:] not in FigureCanvasAgg.filetypes:
        raise ValueError(f"--out {args.out}: must end in one of {', '.join(FigureCanvasAgg.filetypes)}")
    check_installed()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    flags = [*cpu_flags(ensure_demo_model(), POOL, PAGE_SIZE), "--radix-eviction", "etlru"]
    flags += ["--tlru-ttft-slo", str(SLO_MS)]
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(flags, name="dashboard") as server,
        Prometheus(Path(folder), server) as prometheus,
    ):
        prometheus.wait_for("up == 1")
        start = time.time()
        asyncio.run(use(server, args.seconds))
        picture = draw(prometheus, start + RATE_S, time.time())
    picture.savefig(args.out, dpi=80)
    print(args.out)
    return 0


async def use(server: Server, seconds: float) -> None:
    """Conversations take turns, each in a client's hands: some return at once, most after a while."""
    deadline = time.monotonic() + seconds

    async def client(seed: int) -> None:
        rng, histories = random.Random(seed), dict[int, tuple[int, ...]]()
        while time.monotonic() < deadline:
            number = int(CONVERSATIONS / CLIENTS * rng.random() ** 2)  # the first ones more often
            history = histories.get(number, ())
            if len(history) > LONGEST:
                history = ()
            history += tuple(rng.randrange(VOCABULARY) for _ in range(rng.randrange(20, 300)))
            result = await send(http, server.base_url, Request(number, 0, history, ANSWER))
            if result.error is not None:
                raise ServerError(result.error)
            histories[number] = history + result.output_ids
            await asyncio.sleep(rng.expovariate(1 / PAUSE_S))

    async with session() as http:
        await asyncio.gather(*map(client, range(CLIENTS)))


def draw(prometheus: Prometheus, start: float, end: float) -> Figure:
    """Every panel of the dashboard between two times, s since the epoch."""
    rows = -(-len(PANELS) // COLUMNS)
    with rc_context(RC):
        figure = Figure(figsize=(4.4 * COLUMNS, 2.3 * rows), layout="constrained")
        axes = [*figure.subplots(rows, COLUMNS).flat]
        for panel, place in zip(PANELS, axes, strict=False):
            _panel(place, panel, prometheus, start, end)
        for place in axes[len(PANELS) :]:
            place.set_axis_off()
    return figure


def _panel(place: Axes, panel: Panel, prometheus: Prometheus, start: float, end: float) -> None:
    place.set_title(panel.title)
    for query in panel.queries:
        expression = query.expression.replace("$__rate_interval", f"{RATE_S}s").replace("$instance", ".*")
        for labels, values in prometheus.series(expression, start, end, STEP_S):
            legend = re.sub(r"\{\{(\w+)\}\}", _value_of(labels), query.legend)
            place.plot([at - start for at, _ in values], [value for _, value in values], label=legend, linewidth=1.1)
    place.set_xlabel("s")
    if panel.unit == PercentUnit:
        place.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.unit != Short:
        place.set_ylabel(panel.unit, color=MUTED)
    if place.lines:
        place.legend(fontsize=5.5, frameon=False, ncols=1 + (len(place.lines) > FEW), loc="best")


def _value_of(labels: dict[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: labels.get(match[1], "")
