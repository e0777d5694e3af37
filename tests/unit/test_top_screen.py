"""What `radix-tlru top` makes of figures: those of a real cache, of which some are set to what is to be shown."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO

import pytest
from prometheus_client import start_http_server
from rich.console import Console
from rich.text import Text

from radix_tlru import __version__
from radix_tlru.cli import main
from radix_tlru.config import PolicyName
from radix_tlru.learning.guard import REASONS
from radix_tlru.tools.http import ServerError
from radix_tlru.tools.scrape import Snapshot, read
from radix_tlru.tools.top import watch
from radix_tlru.tools.top.returns import returns_table
from radix_tlru.tools.top.victims import victim_table
from tests.helpers.answering import answering
from tests.helpers.watched import Watched, row, shown

SERVER = "http://server"


@pytest.fixture(scope="module")
def tlru() -> str:
    """What a cache says of itself that has evicted under tlru."""
    return said_by("tlru")


def said_by(policy: PolicyName) -> str:
    watched = Watched(policy)
    watched.serve(80)
    return watched.text()


def with_figure(text: str, name: str, value: float, **labels: str) -> str:
    """The same with another value of a metric of ours, of that with these labels if there are several."""
    lines, found = text.splitlines(), 0
    for number, line in enumerate(lines):
        if line.startswith(f"sglang:tlru_{name}{{") and all(
            f'{key}="{label}"' in line for key, label in labels.items()
        ):
            lines[number] = f"{line.rpartition(' ')[0]} {value}"
            found += 1
    assert found == 1, (name, labels)
    return "\n".join([*lines, ""])


def of_rank(text: str, number: int) -> str:
    return text.replace('tp_rank="0"', f'tp_rank="{number}"')


def look(*texts: str, at: float = 0.0) -> Snapshot:
    return replace(read("".join(texts), SERVER), at=at)


# ---- what is in force ----


def test_of_more_than_six_ranks_the_others_are_counted_and_looked_at_all_the_same(tlru: str) -> None:
    ranks = [of_rank(tlru, number) for number in range(8)]
    alike = shown(look(*ranks), width=200)
    assert "tp 5" in alike
    assert "tp 6" not in alike
    assert "(and 2 more ranks)" in alike
    assert "more ranks" not in shown(look(*ranks[:6]), width=200)
    assert "RANKS DIFFER" not in alike
    differs = shown(look(*ranks[:7], with_figure(ranks[7], "threshold_tokens", 700)), width=200)
    assert "RANKS DIFFER: uncached tokens that still meet the objective" in differs


def test_ranks_are_in_the_order_of_their_numbers(tlru: str) -> None:
    ranks = look(*(of_rank(tlru, number) for number in reversed(range(12)))).ranks
    assert [rank.name for rank in ranks] == [f"tp {number}" for number in range(12)]


def test_servers_whose_metrics_are_in_one_answer_are_not_mixed(tlru: str) -> None:
    """As what collects metrics gives them: with a label of its own, in which ranks of ours do not differ."""
    both = [re.sub(r"(sglang:\w+\{)", rf'\1worker_addr="{worker}",', tlru) for worker in ("a:1", "b:1")]
    with pytest.raises(ServerError, match=r"^http://server/metrics: several servers, that differ in no rank; give the"):
        look(*both)
    assert shown(look(both[0])) == shown(look(tlru))
    assert len(look(tlru, of_rank(both[0], 1)).ranks) == 2


def test_ranks_that_weigh_tokens_differently_are_told_so(tlru: str) -> None:
    other = with_figure(of_rank(tlru, 1), "median_weight", 0.5)
    assert row(shown(look(tlru, other)), "weight w") == (
        "0.00 0.50 RANKS DIFFER: of tokens whose request is not in the tail"
    )


def test_a_fault_of_any_rank_is_told(tlru: str) -> None:
    other = with_figure(of_rank(tlru, 1), "fallen_back", 1)
    assert row(shown(look(tlru, other)), "policy in force").endswith("AFTER A FAULT, which the server's log tells")
    assert row(shown(look(tlru)), "policy in force") == "tlru by whose order leaves go"


LEARNED = """
sglang:tlru_threshold_samples{{tp_rank="0",dp_rank="0",pp_rank="0",cache_type="TailRadixCache"}} {samples}
sglang:tlru_alpha_ms_per_token{{tp_rank="0",dp_rank="0",pp_rank="0",cache_type="TailRadixCache"}} {alpha}
sglang:tlru_beta_ms{{tp_rank="0",dp_rank="0",pp_rank="0",cache_type="TailRadixCache"}} {beta}
sglang:tlru_prefill_late_ratio{{tp_rank="0",dp_rank="0",pp_rank="0",cache_type="TailRadixCache"}} {late}
sglang:tlru_overhead_ms{{tp_rank="0",dp_rank="0",pp_rank="0",cache_type="TailRadixCache"}} {overhead}
"""


def test_what_the_threshold_is_learned_from_is_told_where_it_is_learned(tlru: str) -> None:
    learned = LEARNED.format(samples=1_200, alpha=0.1, beta=5, late=1.25, overhead=12.5)
    told = shown(look(tlru + learned))
    assert row(told, "prefill takes").startswith("5.0 ms + 0.1000 ms (+25%) β + α a token")
    assert row(told, "first token waits") == "12.5 ms for other things than its prefill"
    assert row(told, "learned from").startswith("1,200 recent prefills")
    nothing_yet = shown(look(tlru + LEARNED.format(samples=3, alpha=0, beta=0, late=0, overhead=0)))
    assert row(nothing_yet, "prefill takes").startswith("– β + α")
    assert row(nothing_yet, "first token waits").startswith("– for")
    assert "prefill takes" not in shown(look(tlru)), "its threshold is pinned"


# ---- what was served and evicted ----


def test_hits_are_those_of_all_replicas(tlru: str) -> None:
    def hits(prompt: int, cached: int) -> str:
        served = "".join(
            f'sglang:{name}_tokens_total{{model_name="qwen",dp_rank="{replica}"}} {tokens}\n'
            for name, counts in (("prompt", (100, prompt)), ("cached", (0, cached)))
            for replica, tokens in enumerate(counts)
        )
        return row(shown(look(tlru, served)), "requests served")

    assert hits(300, 100) == "80 25.0 % of all prompt tokens were cached"
    assert hits(300, 0) == "80 0.0 % of all prompt tokens were cached"
    assert row(shown(look(tlru)), "requests served") == "80", "no tokens so far, or a server that does not count them"


def test_a_server_that_does_not_name_its_model_is_shown_all_the_same(tlru: str) -> None:
    assert f"{SERVER}   unknown model" in shown(look(tlru))
    assert f"{SERVER}   qwen" in shown(look(tlru, 'sglang:num_running_reqs{model_name="qwen"} 1.0\n'))


def test_shares_are_of_what_there_was_and_a_dash_of_nothing(tlru: str) -> None:
    beyond = with_figure(with_figure(tlru, "violations_total", 3), "requests_total", 40)
    assert row(shown(look(beyond)), "beyond ξ") == "3 (7.5 %) requests that had to prefill more than ξ"
    for answer, count in (("as_cached", 3), ("otherwise", 1)):
        beyond = with_figure(beyond, "continued_total", count, answer=answer)
    assert row(shown(look(beyond)), "answers repeated").startswith("75.0% of 4 by next prompts")
    new = Watched("tlru").text()
    assert row(shown(look(new)), "beyond ξ").startswith("– requests")
    assert row(shown(look(new)), "answers repeated").startswith("– by next prompts")


def test_evicted_tokens_are_told_by_the_second_since_the_look_before(tlru: str) -> None:
    def evicted(tokens: int, rank: int = 0) -> str:
        return with_figure(of_rank(tlru, rank), "evicted_tokens_total", tokens, phase="lru")

    def told(now: Snapshot, before: Snapshot | None) -> str:
        return row(shown(now, before), "evicted, others").removesuffix(" all other tokens; without a threshold all are")

    before = look(evicted(1_000), at=100.0)
    assert told(look(evicted(1_500), at=110.0), before) == "1,500 (50/s)"
    assert told(look(evicted(700), at=110.0), before) == "700 (0/s)", "the server was started again"
    assert told(look(evicted(1_500), at=100.0), before) == "1,500"
    assert told(look(evicted(1_500), at=110.0), None) == "1,500"
    # With a second rank the first has another name.
    both = look(evicted(1_500), evicted(900, rank=1), at=110.0)
    assert told(both, before) == "1,500 900"
    assert told(replace(both, at=130.0), both) == "1,500 (0/s) 900 (0/s)"


# ---- shadow caches, returns, victims ----


def with_shadows(text: str, **by_policy: tuple[int, int, int]) -> str:
    """With TEL, requests beyond ξ and uncached tokens of each policy, of 10 requests with 1,000 tokens."""
    for policy, figures in by_policy.items():
        for name, value in zip(("excess_tokens", "violations", "uncached_tokens"), figures, strict=True):
            text = with_figure(text, f"shadow_{name}_total", value, policy=policy.replace("_", " "))
    return with_figure(with_figure(text, "shadow_requests_total", 10), "shadow_prompt_tokens_total", 1_000)


def test_policies_are_held_against_lru_and_one_that_was_worse_is_told_with_the_figure(tlru: str) -> None:
    text = with_shadows(tlru, lru=(200, 8, 500), tlru=(150, 6, 400), in_force=(220, 7, 450))

    def told(name: str, code: int) -> str:
        return row(shown(look(with_figure(text, "refused", code, policy="tlru"))), name)

    assert [told("tlru ◂ in force", code) for code in range(len(REASONS) + 1)] == [
        *("150 -25.0 % 6 60.0 %", *(f"150 -25.0 % 6 60.0 % {reason}" for reason in REASONS))
    ]
    assert told("as was in force", 1) == "220 +10.0 % 7 55.0 %"
    assert told("lru ", 1) == "200 – 8 50.0 %"


def test_before_a_request_was_sampled_the_shadow_caches_say_nothing() -> None:
    text = shown(look(Watched("tlru").text()))
    assert "nothing sampled yet" in text
    assert [line.split() for line in text.splitlines() if line.startswith(" lru ")] == [["lru", "0", "–", "0", "–"]]


def test_a_dry_run_tells_shares_of_what_lru_had_beyond_and_cached() -> None:
    text = with_shadows(Watched("tlru", dry_run=True).text(), lru=(200, 8, 500), in_force=(100, 10, 400))
    told = " ".join(shown(look(text)).split())
    assert "TEL -50.0 %, requests beyond ξ +25.0 %, 60.0 % instead of 50.0 % of prompt tokens cached." in told
    assert "So say shadow caches, of 10 requests." in told
    assert row(shown(look(text)), "policy in force") == "tlru if this were no dry run"


@pytest.mark.parametrize(
    ("predicted", "came", "ratio", "is_trusted"),
    [
        (30, 20, "0.67", True),
        (31, 20, "0.65", False),
        (20, 30, "1.50", True),
        (20, 31, "1.55", False),
        (19.9, 1, "0.05", True),
        (0, 19, "–", True),
        (0, 20, "–", False),
        (20, 0, "0.00", False),
    ],
)
def test_returns_that_are_not_as_predicted_are_yellow_once_there_were_twenty(
    tlru: str, predicted: float, came: int, ratio: str, is_trusted: bool
) -> None:
    text = with_figure(tlru, "watched_seconds_total", 7_200, silent="22-128s")
    text = with_figure(text, "expected_returns_total", predicted, silent="22-128s")
    text = with_figure(text, "returns_total", came, silent="22-128s")
    text = with_figure(text, "watched_seconds_total", 0, silent="8000+s")
    table = returns_table(look(text).ranks[0])
    cells = [[cell.plain if isinstance(cell, Text) else cell for cell in column.cells] for column in table.columns]
    assert [column[1] for column in cells] == [
        *("22 to 128 s", f"{predicted:.1f}", f"{came}", ratio, f"{predicted / 2:.2f}", f"{came / 2:.2f}")
    ]
    assert [column[4] for column in cells] == ["8000+ s", "0.0", "0", "–", "–", "–"]
    (judged,) = (cell.style for number, cell in enumerate(table.columns[3].cells) if number == 1)
    assert judged == ("" if is_trusted else "bold yellow")


@pytest.mark.parametrize(
    ("rate", "exceed", "why", "style"),
    [
        (0.0, 0.5, "no later prompt is expected to use it", "green"),
        (0.1, 0.0, "TEL-safe: with what stays the next turn is within ξ", "green"),
        (0.1, 0.19, "few next prompts are long enough to miss it", "green"),
        (0.1, 0.2, None, "yellow"),
        (0.1, math.nan, None, "yellow"),
    ],
)
@pytest.mark.parametrize(
    ("policy", "otherwise"), [("tlru", "the longest unused"), ("etlru", "not likely to return soon")]
)
def test_why_a_leaf_goes_next(
    policy: PolicyName, otherwise: str, rate: float, exceed: float, why: str | None, style: str, tlru: str
) -> None:
    for name in ("tlru", "lru"):
        tlru = with_figure(tlru, "policy", 0, policy=name)
    text = re.sub(r'policy="tlru"', f'policy="{policy}"', with_figure(tlru, "policy", 1, policy="tlru"))
    text = with_figure(text, "next_victim_return_rate", rate, position="1")
    text = with_figure(text, "next_victim_exceed_probability", exceed, position="1")
    first = next(iter(victim_table(look(text).ranks[0]).columns[-1].cells))
    assert (first.plain, first.style) == (why or otherwise, style)


def test_where_nothing_can_be_evicted_it_is_said() -> None:
    assert "nothing can be evicted now" in shown(Watched("tlru").serve(0))


# ---- what no request asked for ----


@pytest.mark.parametrize(("count", "more"), [(10, ""), (12, "; and 2 more")])
def test_of_many_warm_prompts_ten_are_listed(count: int, more: str, tlru: str) -> None:
    warm = "".join(f'sglang:tlru_warm_tokens{{prompt="warm {number}"}} 7.0\n' for number in range(count))
    told = shown(look(tlru, warm))
    assert " ".join(told.split()).endswith(f" tokens; as found when they were asked for last{more}")
    assert len(re.findall(r"warm \d+ +7 +0", told)) == 10


def test_prefills_ahead_that_failed_are_told_and_nothing_of_none(tlru: str) -> None:
    tokens = "sglang:tlru_ahead_prefilled_tokens_total {}\n"
    outcomes = "".join(f'sglang:tlru_ahead_answers_total{{outcome="{name}"}} 2.0\n' for name in ("done", "failed"))
    assert "Prefilled ahead: after 2 answers, 50 tokens, 2 failed\n" in re.sub(
        " +\n", "\n", shown(look(tlru, tokens.format(50), outcomes))
    )
    assert "Prefilled ahead" not in shown(look(tlru, tokens.format(0))), "of no answer so far"


@pytest.mark.parametrize(("width", "are_beside"), [(129, False), (130, True)])
def test_two_tables_are_beside_each_other_where_there_is_room(width: int, are_beside: bool, tlru: str) -> None:
    lines = shown(look(tlru), width=width).splitlines()
    (shadows,) = (line for line in lines if "TEL in shadow caches" in line)
    assert ("Returns of conversations" in shadows) == are_beside
    assert max(map(len, lines)) <= width


# ---- one look after the other ----


def test_a_terminal_that_cannot_draw_gets_one_frame(tlru: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(seconds: float) -> None:
        assert not seconds, "there is no second look; the server has 0 s"

    monkeypatch.setattr(time, "sleep", wait)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=60, _environ={"TERM": "dumb"})
    with answering({"/metrics": (200, tlru)}) as url:
        assert watch(url, 7.0, console=console) == 0
    assert "Next to go" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["a metric is missing", "a reason is new"])
def test_a_server_of_another_release_is_told_as_such(how: str, tlru: str, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "".join(line for line in tlru.splitlines(keepends=True) if "sglang:tlru_returns_total" not in line)
    new = with_figure(tlru, "refused", len(REASONS) + 1, policy="tlru")
    with answering({"/metrics": (200, {"a metric is missing": missing, "a reason is new": new}[how])}) as url:
        assert main(["top", url, "--once"]) == 2
    printed = capsys.readouterr()
    told = (
        f"radix-tlru: error: {url}/metrics: has other metrics than radix-tlru {__version__}; give the server and this "
    )
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert printed.err.startswith(told)


def test_who_reads_the_screen_may_have_seen_enough(tlru: str) -> None:
    """As with other commands: the status is that of one that a closed pipe has ended, and nothing is said."""
    with answering({"/metrics": (200, tlru)}) as url:
        command = [sys.executable, "-m", "radix_tlru.cli", "top", url, "--once"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as top:
            assert top.stdout is not None
            assert top.stderr is not None
            top.stdout.close()
            said = top.stderr.read()
    assert (top.returncode, said) == (128 + signal.SIGPIPE, b"")


def test_each_look_is_held_against_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched("tlru")
    watched.serve(80)
    server, thread = start_http_server(0, "127.0.0.1", registry=watched.registry)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            watched.serve(40)  # evicts between the first look and the second, and no more from there to the third
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=60)
    try:
        assert watch(f"127.0.0.1:{server.server_port}", 7.0, console=console) == 0
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    rates = [rate != "0" for rate in re.findall(r"\(([\d,]+)/s\)", console.file.getvalue())]  # type: ignore[attr-defined]
    assert rates == [True, True, False, False], "of either phase, at the second look and at the third"
