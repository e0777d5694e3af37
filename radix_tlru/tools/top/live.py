"""Looks at a server again and again, and draws what it finds."""

from __future__ import annotations

import sys
import time
from itertools import chain

import requests
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.text import Text

from radix_tlru import __version__
from radix_tlru.tools.http import ServerError, bearer
from radix_tlru.tools.scrape import Snapshot, scrape
from radix_tlru.tools.top.screen import frame

__all__ = ["watch"]


def watch(
    url: str, interval_s: float, *, once: bool = False, api_key: str | None = None, console: Console | None = None
) -> int:
    """Show a server until the user interrupts, or once; returns an exit status.

    Where the output is no terminal, or one that cannot draw (``TERM=dumb``), it is shown once. The last screen stays
    while a server does not answer, with the reason above it.

    Args:
        url: of the server, as :func:`~radix_tlru.tools.scrape.scrape` takes it.
        interval_s: seconds from one look to the next.
        once: print one frame and end.
        api_key: of the server, or of what is before it, if one is asked for.
        console: to draw on; by default standard output.

    Returns:
        0; or 2 if the first look found nothing to show, after one line on standard error that says why.
    """
    console = console or _Console()
    session = requests.Session()
    try:
        session.auth = bearer(api_key)
        before = scrape(url, session)
        if once or not console.is_terminal or console.is_dumb_terminal:
            console.print(_frame(before, None, console.width))
            return 0
        first = _fitted(_frame(before, None, console.width), console)
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                try:
                    now = scrape(url, session)
                    screen = _frame(now, before, console.width)
                except ServerError as error:
                    silent = f"{error}; as of {time.monotonic() - before.at:.0f} s ago:"
                    last = Group(Text(silent, "bold red"), frame(before, None, console.width))
                    live.update(_fitted(last, console), refresh=True)
                    continue
                live.update(_fitted(screen, console), refresh=True)
                before = now
    except ServerError as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads any more: that is an error as where one prints. Rich would end the process with status 1."""
        raise BrokenPipeError


def _frame(now: Snapshot, before: Snapshot | None, width: int) -> RenderableType:
    """A screen.

    Raises:
        ServerError: metrics lack what belongs to others, or have what means nothing here: those of another release.
    """
    try:
        return frame(now, before, width)
    except (ArithmeticError, LookupError, ValueError) as error:
        others = f"has other metrics than radix-tlru {__version__}"
        raise ServerError(
            f"{now.url}/metrics: {others}; give the server and this command the same: {error!r}"
        ) from None


def _fitted(screen: RenderableType, console: Console) -> RenderableType:
    """The same in as many lines as there are; the last one says how many it lacks."""
    lines = console.render_lines(screen)
    more = len(lines) - console.height
    if more <= 0:
        return screen
    kept = [[*line, Segment.line()] for line in lines[: -more - 1]]
    told = f"… {more + 1} more lines need a higher screen; --once prints all"
    return Group(Segments(chain.from_iterable(kept)), Text(told, "bold", overflow="ellipsis", no_wrap=True))
