"""``radix-tlru top``: a server's eviction on a screen, live: the policy in force, TEL, predicted returns, next victims.

In come snapshots of the server's metrics (:mod:`~radix_tlru.tools.scrape`), out goes a screen. Nothing is asked of the
server but ``/metrics``, so a look changes nothing there.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import requests
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from radix_tlru.learning.guard import FIGURES
from radix_tlru.learning.selector import IN_FORCE
from radix_tlru.tools.scrape import Ahead, Rank, ScrapeError, Snapshot, WarmPrompt, scrape

__all__ = ["frame", "watch"]

_MOST_RANKS = 6  # columns on a screen
_MOST_WARM = 10  # warm prompts on a screen
_SIDE_BY_SIDE = 130  # columns of a screen on which two tables fit beside each other
_WRAPPED = 60  # columns of a screen on which what a row means, beside one rank, may take a second line
_TRUSTED = (2 / 3, 3 / 2)  # returns seen by predicted, outside of which hazards are not to be believed
_ENOUGH = 20  # returns, predicted or seen, before that can be told
_SELDOM = 0.2  # P(over ξ) below which it is said to be the reason
_NONE = "–"


def watch(
    url: str, interval_s: float, *, once: bool = False, api_key: str | None = None, console: Console | None = None
) -> int:
    """Show a server until the user interrupts, or once; returns an exit status.

    Where the output is no terminal it is shown once. The last screen stays while a server does not answer,
    with the reason above it.

    Args:
        url: of the server, as :func:`~radix_tlru.tools.scrape.scrape` takes it.
        interval_s: seconds from one look to the next.
        once: print one frame and end.
        api_key: of the server, or of what is before it, if one is asked for.
        console: to draw on; by default standard output.

    Returns:
        0; or 2 if the first look found nothing to show, after one line on standard error that says why.
    """
    console = console or Console()
    session = requests.Session()
    if api_key is not None:
        session.headers["Authorization"] = f"Bearer {api_key}"
    try:
        before = scrape(url, session)
        if once or not console.is_terminal:
            console.print(frame(before, None, console.width))
            return 0
        first = _fitted(frame(before, None, console.width), console)
        with Live(first, console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                try:
                    now = scrape(url, session)
                except ScrapeError as error:
                    silent = f"{error}; as of {time.monotonic() - before.at:.0f} s ago:"
                    last = Group(Text(silent, "bold red"), frame(before, None, console.width))
                    live.update(_fitted(last, console), refresh=True)
                    continue
                live.update(_fitted(frame(now, before, console.width), console), refresh=True)
                before = now
    except ScrapeError as error:
        print(f"radix-tlru: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 0


def _fitted(screen: RenderableType, console: Console) -> RenderableType:
    """The same in as many lines as there are; the last one says how many it lacks."""
    lines = console.render_lines(screen)
    more = len(lines) - console.height
    if more <= 0:
        return screen
    kept = [[*line, Segment.line()] for line in lines[: -more - 1]]
    told = f"… {more + 1} more lines need a higher screen; --once prints all"
    return Group(Segments(chain.from_iterable(kept)), Text(told, "bold", overflow="ellipsis", no_wrap=True))


def frame(now: Snapshot, before: Snapshot | None, width: int) -> RenderableType:
    """A screen: what is in force and what it did, shadow caches, returns, the next victims, what no request asked for.

    Args:
        now: the server as it is. Shadows, returns and victims are those of its first rank.
        before: an earlier snapshot of the same server, for tokens evicted per second; None: totals are shown.
        width: of the screen, in columns.
    """
    first = now.ranks[0]
    shadows, returns = _shadows(first), _returns(first)
    if width >= _SIDE_BY_SIDE:
        beside = Table.grid(padding=(0, 4))
        beside.add_row(shadows, returns)
        lower: tuple[RenderableType, ...] = (beside,)
    else:
        lower = (shadows, Text(), returns)
    warm = (Text(), _warm(now.warm)) if now.warm else ()
    ahead = (Text(), _ahead(now.ahead)) if now.ahead is not None else ()
    if first.is_dry_run:
        saved = _dry_run(first)
        return Group(_title(now), Text(), saved, Text(), _state(now, before, width), Text(), *lower, *warm, *ahead)
    state = _state(now, before, width)
    return Group(_title(now), Text(), state, Text(), *lower, Text(), _victims(first), *warm, *ahead)


def _title(now: Snapshot) -> Text:
    return Text.assemble(("radix-tlru top", "bold"), f"   {now.url}   {now.model}", overflow="ellipsis", no_wrap=True)


def _dry_run(rank: Rank) -> Text:
    """What would have been saved, in words."""
    would = f"{rank.policy} would be in force now"
    text = Text.assemble(("dry run: ", "bold"), f"stock lru evicts; {would}. ")
    excess, violations, cached = _shadow_figures(rank)
    if not excess["lru"]:
        return text.append("So far nothing in the shadow caches went beyond ξ under lru: there is no tail to save.")
    tel, beyond = (_percent(each[IN_FORCE] / each["lru"] - 1.0, "+") for each in (excess, violations))
    hits = f"{_percent(cached[IN_FORCE])} instead of {_percent(cached['lru'])}"
    asked = f"{rank.value('shadow_requests_total'):,.0f} requests"
    return text.append(
        f"With what would have been in force so far: TEL {tel}, requests beyond ξ {beyond}, {hits} of prompt tokens "
        f"cached. So say shadow caches, of {asked}."
    )


def _shadow_figures(rank: Rank) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """By candidate, in shadow caches: TEL (tokens), requests beyond ξ, the share of prompt tokens that was cached."""
    excess, violations, uncached = (
        rank.by(f"shadow_{name}_total", "policy") for name in ("excess_tokens", "violations", "uncached_tokens")
    )
    prompt = rank.value("shadow_prompt_tokens_total") or math.inf
    return excess, violations, {name: 1.0 - tokens / prompt for name, tokens in uncached.items()}


def _table(title: str) -> Table:
    return Table(
        box=None, title=title, title_justify="left", title_style="bold cyan", header_style="underline", padding=(0, 1)
    )


# ---- what is in force and what it did: a column for each rank ----


def _state(now: Snapshot, before: Snapshot | None, width: int) -> Table:
    table = Table(box=None, padding=(0, 2), show_header=len(now.ranks) > 1)
    table.add_column("", style="bold", no_wrap=True)
    ranks = now.ranks[:_MOST_RANKS]
    for rank in ranks:
        table.add_column(rank.name, justify="right", no_wrap=True)
    more = len(now.ranks) - len(ranks)
    table.add_column(f"(and {more} more ranks)" if more else "", style="dim")
    one_line = len(ranks) > 1 or width < _WRAPPED
    earlier = {rank.name: rank for rank in before.ranks} if before is not None else {}
    passed = now.at - before.at if before is not None else 0.0

    def evicted(phase: str) -> Callable[[Rank], str]:
        def told(rank: Rank) -> str:
            tokens = rank.by("evicted_tokens_total", "phase").get(phase, 0.0)
            if rank.name not in earlier or passed <= 0.0:
                return _whole(tokens)
            grown = tokens - earlier[rank.name].by("evicted_tokens_total", "phase").get(phase, 0.0)
            return f"{tokens:,.0f} ({max(grown, 0.0) / passed:,.0f}/s)"

        return told

    def row(name: str, told: Callable[[Rank], str | None], meaning: str, *, alike: bool = False) -> None:
        cells = [told(rank) or _NONE for rank in ranks]
        everywhere = {(rank.replica, told(rank)) for rank in now.ranks}
        differ = alike and len(everywhere) > len({rank.replica for rank in now.ranks})
        text = Text(f"RANKS DIFFER: {meaning}" if differ else meaning, no_wrap=one_line, overflow="ellipsis")
        table.add_row(name, *cells, text, style="bold yellow" if differ else None)

    is_dry_run = now.ranks[0].is_dry_run
    meaning = "if this were no dry run" if is_dry_run else "by whose order leaves go"
    if any(rank.value("fallen_back") for rank in now.ranks):
        meaning = "AFTER A FAULT, which the server's log tells"
    row("policy in force", lambda rank: rank.policy, meaning, alike=True)
    row(
        "threshold ξ",
        lambda rank: _whole(rank.value("threshold_tokens"), " tokens"),
        "uncached tokens that still meet the objective",
        alike=True,
    )
    row("weight w", _weight, "of tokens whose request is not in the tail", alike=True)
    if any(rank.value("threshold_samples") is not None for rank in ranks):
        row("prefill takes", _line, "β + α a token near the objective, as fitted here; 19 of 20 at most so much more")
        row("first token waits", _overhead, "for other things than its prefill")
        row("learned from", lambda rank: _whole(rank.value("threshold_samples")), "recent prefills, or requests")
    row("requests served", lambda rank: _whole(rank.value("requests_total")), _cached(now.hit_ratio))
    row("beyond ξ", _violations, "requests that had to prefill more than ξ")
    row(
        "TEL",
        lambda rank: _whole(rank.value("excess_tokens_total"), " tokens"),
        "by how much, all together: tail excess latency",
    )
    row("answers repeated", _repeated, "by next prompts, as they were cached; where few are, answers are not kept")
    if is_dry_run:
        return table
    row("evictable leaves", lambda rank: _whole(rank.value("evictable_leaves")), "ends of cached paths, not in use")
    row(
        "over budget",
        lambda rank: _whole(rank.value("over_budget_tokens"), " tokens"),
        "could go, and all next turns stay within ξ",
    )
    row("evicted, free", evicted("tel_safe"), "tokens beyond their budget")
    row("evicted, not free", evicted("lru"), "tokens that may be missed")
    return table


def _repeated(rank: Rank) -> str | None:
    continued = rank.by("continued_total", "answer")
    total = sum(continued.values())
    return f"{continued['as_cached'] / total:.1%} of {total:,.0f}" if total else None


def _whole(value: float | None, unit: str = "") -> str:
    return _NONE if value is None else f"{value:,.0f}{unit}"


def _cached(ratio: float | None) -> str:
    return "" if ratio is None else f"{_percent(ratio)} of all prompt tokens were cached"


def _percent(share: float, sign: str = "") -> str:
    return f"{100.0 * share:{sign}.1f} %"


def _weight(rank: Rank) -> str | None:
    weight = rank.value("median_weight")
    return None if weight is None else f"{weight:.2f}"


def _line(rank: Rank) -> str | None:
    alpha, beta = rank.value("alpha_ms_per_token"), rank.value("beta_ms")
    more = max((rank.value("prefill_late_ratio") or 1.0) - 1.0, 0.0)
    return f"{beta:.1f} ms + {alpha:.4f} ms (+{more:.0%})" if alpha and beta is not None else None


def _overhead(rank: Rank) -> str | None:
    overhead = rank.value("overhead_ms")
    return f"{overhead:.1f} ms" if overhead else None


def _violations(rank: Rank) -> str | None:
    requests, violations = rank.value("requests_total"), rank.value("violations_total")
    if not requests or violations is None:
        return None
    return f"{violations:,.0f} ({_percent(violations / requests)})"


# ---- the same requests under other policies ----


def _shadows(rank: Rank) -> Table:
    asked = rank.value("shadow_requests_total") or 0
    table = _table("TEL in shadow caches")
    table.add_column("policy", no_wrap=True)
    for name in ("tokens", "against lru", "beyond ξ", "cached"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("worse in", no_wrap=True)
    refused = rank.by("refused", "policy")
    excess, violations, cached = _shadow_figures(rank)
    lru = excess.get("lru", 0.0)
    for name, tokens in excess.items():
        ratio = _percent(tokens / lru - 1.0, "+") if lru and name != "lru" else _NONE
        in_force = name == rank.policy
        figure = int(refused.get(name, 0.0))
        worse = FIGURES[figure - 1] if figure else ""
        label = f"{name} ◂ in force" if in_force else "as was in force" if name == IN_FORCE else name
        figures = _whole(tokens), ratio, _whole(violations[name]), _percent(cached[name]) if asked else _NONE
        table.add_row(label, *figures, worse, style="bold" * in_force)
    table.caption = f"tokens; {asked:,.0f} requests of sampled conversations" if asked else "nothing sampled yet"
    table.caption_justify = "left"
    return table


# ---- returns, predicted and seen ----


def _returns(rank: Rank) -> Table:
    table = _table("Returns of conversations, predicted and seen")
    for name in ("silent for", "predicted", "seen", "seen / predicted", "predicted / h", "seen / h"):
        table.add_column(name, justify="left" if name == "silent for" else "right")
    expected, seen = rank.by("expected_returns_total", "silent"), rank.by("returns_total", "silent")
    for span, watched_s in rank.by("watched_seconds_total", "silent").items():
        predicted, came = expected[span], seen[span]
        ratio = came / predicted if predicted else math.nan
        trusted = max(predicted, came) < _ENOUGH or _TRUSTED[0] <= ratio <= _TRUSTED[1]
        rates = [f"{count / watched_s * 3600:.2f}" if watched_s else _NONE for count in (predicted, came)]
        table.add_row(
            Text(span.replace("-", " to ").replace("s", " s"), no_wrap=True),
            f"{predicted:,.1f}",
            _whole(came),
            Text(_NONE if math.isnan(ratio) else f"{ratio:.2f}", "" if trusted else "bold yellow"),
            *rates,
        )
    if not any(expected.values()):
        table.caption = "nothing is predicted: tlru goes by recency, etlru by recency until it has learned"
    else:
        table.caption = "/ h: in an hour of silence; yellow: not to be believed there"
    table.caption_justify = "left"
    return table


# ---- what goes next ----


def _victims(rank: Rank) -> Table:
    learned = (rank.policy or "").startswith("etlru")
    table = _table("Next to go, if nothing is used before")
    for name in ("", "cached", "stays", "history", "silent", "λ", "P(over ξ)", "cost", "why"):
        table.add_column(name, justify="left" if name in ("", "why") else "right", no_wrap=name != "why")
    for victim in _next(rank):
        exceed = victim["exceed_probability"]
        if victim["return_rate"] == 0.0:
            why, style = "in no later prompt", "green"
        elif exceed == 0.0:
            why, style = "free: with what stays the next turn is within ξ", "green"
        elif exceed < _SELDOM:
            why, style = "few next prompts are long enough to miss it", "green"
        else:
            why, style = "not likely to return soon" if learned else "the longest unused", "yellow"
        silent = victim["silent_seconds"]
        table.add_row(
            str(table.row_count + 1),
            *(_whole(victim[name]) for name in ("cached_tokens", "keep_tokens", "history_tokens")),
            _NONE if math.isnan(silent) else f"{silent:,.0f} s",
            f"{victim['return_rate']:.2g}",
            f"{exceed:.2f}",
            f"{victim['cost']:.2g}",
            Text(why, style),
        )
    unit = "1 / s" if learned else "1 / uses of the cache since"
    if table.row_count:
        table.caption = f"tokens from the root of the path; λ: how soon it returns, {unit}; lowest cost goes first"
    else:
        table.caption = "nothing can be evicted now"
    table.caption_justify = "left"
    return table


def _next(rank: Rank) -> Iterator[dict[str, float]]:
    names = (
        "cached_tokens",
        "keep_tokens",
        "history_tokens",
        "silent_seconds",
        "return_rate",
        "exceed_probability",
        "cost",
    )
    columns = {name: rank.by(f"next_victim_{name}", "position") for name in names}
    for position in sorted(columns["cached_tokens"], key=int):
        if columns["cached_tokens"][position]:  # else there is none, and a server that never had one says no more of it
            yield {name: column[position] for name, column in columns.items()}


# ---- what is kept warm ----


def _warm(prompts: Sequence[WarmPrompt]) -> Table:
    table = _table("Warm prompts")
    for name in ("", "tokens", "were cached"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for prompt in prompts[:_MOST_WARM]:
        table.add_row(Text(prompt.name), _whole(prompt.tokens), _whole(prompt.cached))
    more = len(prompts) - _MOST_WARM
    table.caption = "tokens; as found when they were asked for last" + (f"; and {more} more" if more > 0 else "")
    table.caption_justify = "left"
    return table


def _ahead(ahead: Ahead) -> Text:
    done, *others = (ahead.answers.get(outcome, 0.0) for outcome in ("done", "dropped", "failed"))
    not_done = "".join(
        f", {_whole(count)} {why}"
        for count, why in zip(others, ("dropped, as requests were always in flight", "failed"), strict=True)
        if count
    )
    told = f"after {_whole(done)} answers, {_whole(ahead.tokens)} tokens{not_done}"
    return Text.assemble(("Prefilled ahead: ", "bold"), told)
