"""`radix-tlru top` and the metrics it reads: of a real cache, over HTTP, from a registry of its own."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path

import pytest
from prometheus_client import start_http_server
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from radix_tlru.cli import main
from radix_tlru.policy.preview import preview
from radix_tlru.sglang.support import METRIC_LABELS
from radix_tlru.tools.http import OF_ROUTER, ServerError
from radix_tlru.tools.scrape import Rank, Snapshot, read, scrape
from radix_tlru.tools.top import watch
from tests.helpers.watched import PAGE, THRESHOLD, Watched, row, shown


@pytest.fixture(scope="module")
def snapshots() -> tuple[Watched, Snapshot, Snapshot]:
    """A cache that learns, and two looks at it."""
    watched = Watched("etlru")
    return watched, watched.serve(300), watched.serve(300)


def test_the_metrics_say_what_the_cache_did_and_the_learner_believes(
    snapshots: tuple[Watched, Snapshot, Snapshot],
) -> None:
    watched, _, snapshot = snapshots
    (rank,) = snapshot.ranks
    tail, learner = watched.tail, watched.tail.learner
    assert learner is not None
    assert learner.selector is not None
    assert rank.policy == learner.in_force
    assert rank.value("threshold_tokens") == THRESHOLD
    assert rank.by("evicted_tokens_total", "phase") == {phase: tail.counts[phase] for phase in ("tel_safe", "lru")}
    served = [rank.value(f"{name}_total") for name in ("requests", "violations", "excess_tokens")]
    assert served == [learner.served.requests, learner.served.violations, learner.served.excess]
    assert watched.served == served[0] > (served[1] or 0) > 0
    for name, field in (("excess_tokens", "excess"), ("violations", "violations"), ("uncached_tokens", "uncached")):
        told = {policy: getattr(tally, field) for policy, tally in learner.selector.served.items()}
        assert rank.by(f"shadow_{name}_total", "policy") == told
    assert rank.value("shadow_prompt_tokens_total") == learner.selector.prompt_tokens
    assert sum(rank.by("returns_total", "silent").values()) > 100
    assert rank.by("continued_total", "answer") == {"as_cached": learner.answers[True], "otherwise": 0.0}
    assert learner.answers[True] > 100
    told = [rank.by(f"{name}_total", "silent") for name in ("watched_seconds", "expected_returns", "returns")]
    assert [*zip(*(each.values() for each in told), strict=True)] == learner.returns_by_age
    assert [*told[0]] == ["0-22s", "22-128s", "128-1024s", "1024-8000s", "8000+s"]


def test_labels_that_an_operator_may_not_add_are_those_of_our_metrics(
    snapshots: tuple[Watched, Snapshot, Snapshot],
) -> None:
    watched, _, _ = snapshots
    samples = [each for family in text_string_to_metric_families(watched.text()) for each in family.samples]
    assert {label for each in samples for label in each.labels} == {*watched.labels, *METRIC_LABELS}


def test_after_a_fault_lru_is_told_to_be_in_force_and_what_was_counted_stays() -> None:
    """At w = 0.05 etlru is in force in the end, which no later report would otherwise take back."""
    watched = Watched("etlru", median_weight=0.05)
    (before,) = watched.serve(300).ranks
    assert (before.policy, before.value("fallen_back")) == ("etlru", 0.0)
    watched.tail.breaker.is_armed = True
    watched.tail.breaker.trip("to choose what goes", RuntimeError("a fault of the policy"))
    snapshot = watched.serve(0)
    (after,) = snapshot.ranks
    assert (after.policy, after.value("fallen_back"), after.value("median_weight")) == ("lru", 1.0, 1.0)
    for name in ("requests_total", "excess_tokens_total", "shadow_requests_total"):
        assert after.value(name) == before.value(name)
    assert row(shown(snapshot), "policy in force") == "lru AFTER A FAULT, which the server's log tells"


def test_the_next_victims_are_those_that_the_order_takes_next(snapshots: tuple[Watched, Snapshot, Snapshot]) -> None:
    watched, _, snapshot = snapshots
    (rank,) = snapshot.ranks
    upcoming = preview((watched.tail.order,), 5)
    for position, (victim, price) in enumerate(upcoming, start=1):
        told = {
            name: rank.by(f"next_victim_{name}", "position")[str(position)]
            for name in ("cached_tokens", "keep_tokens", "history_tokens", "cost", "return_rate", "exceed_probability")
        }
        assert list(told.values()) == [victim.leaf.end, victim.keep, victim.leaf.history, *price[:3]]
    assert len(upcoming) == 5


def test_a_frame_shows_what_is_in_force_spent_predicted_and_next(
    snapshots: tuple[Watched, Snapshot, Snapshot],
) -> None:
    _, before, now = snapshots
    text = shown(now, before)
    (rank,) = now.ranks
    assert row(text, "policy in force").startswith(f"{rank.policy} ")
    assert f"{rank.value('excess_tokens_total'):,.0f} tokens" in text
    assert f"{rank.policy} ◂ in force" in text
    assert "1024 to 8000 s" in text
    assert f"100.0% of {sum(rank.by('continued_total', 'answer').values()):,.0f}" in text
    assert text.count("/s)") == 2  # evicted, in either phase
    assert "/s)" not in shown(now)
    assert max(map(len, text.splitlines())) <= 120


def test_a_narrow_screen_shows_the_same(snapshots: tuple[Watched, Snapshot, Snapshot]) -> None:
    text = shown(snapshots[2], width=80)
    assert max(map(len, text.splitlines())) <= 80
    for title in ("TEL in shadow caches", "Returns of conversations", "Next to go"):
        assert title in text


@pytest.mark.parametrize(("ranks", "width"), [(1, 40), (4, 80)])
def test_a_row_is_one_line_where_there_is_no_room_beside_it(ranks: int, width: int) -> None:
    watched = [Watched("tlru", rank=rank) for rank in range(ranks)]
    text = shown(read("".join(each.text() for each in watched), "http://server"), width=width)
    state = text.partition("TEL in shadow caches")[0].splitlines()
    assert all(line.startswith("  ") and line[2] != " " for line in state[2:] if line.strip() and "tp 0" not in line)
    assert max(map(len, state)) <= width
    assert "600 tokens" in text


def test_ranks_stand_side_by_side_and_what_must_be_alike_is_held_against_each_other() -> None:
    first, second = Watched("tlru"), Watched("tlru", rank=1)
    differs = Watched("tlru", rank=1, threshold=2 * THRESHOLD)

    def together(other: Watched) -> str:
        return shown(read(first.text() + other.text(), "http://server"))

    assert "tp 0" in together(second)
    assert "tp 1" in together(second)
    assert "RANKS DIFFER" not in together(second)
    assert "RANKS DIFFER" in together(differs)


def test_replicas_differ_and_the_ranks_of_each_do_not() -> None:
    """Each replica of --dp-size learns its own ξ, and chooses its own policy."""
    first, second = Watched("tlru"), Watched("tlru", rank=1)
    others = [Watched("tlru", rank=rank, threshold=2 * THRESHOLD) for rank in range(2)]
    replicas = [each.text().replace('dp_rank="0"', 'dp_rank="1"') for each in others]
    texts = [first.text(), second.text(), *replicas]
    alike = shown(read("".join(texts), "http://server"))
    assert all(f"dp {replica}, tp {rank}" in alike for replica in range(2) for rank in range(2))
    assert "RANKS DIFFER" not in alike
    wrong = first.text().replace('dp_rank="0"', 'dp_rank="1"').replace('tp_rank="0"', 'tp_rank="2"')
    assert "RANKS DIFFER" in shown(read("".join([*texts, wrong]), "http://server"))


def test_a_victim_that_was_used_a_moment_ago_is_silent_for_no_time() -> None:
    """A prompt that others continue is nobody's last turn, so the newest stamp is from before it."""
    watched = Watched("etlru")
    context = watched.fresh(2 * PAGE * 100)
    for tokens, stamp in ((context, 1.0), (context[: len(context) // 2], 41.0)):
        watched.request(tokens, len(tokens), stamp)
    watched.cache.evict(EvictParams(num_tokens=len(context) // 2))  # what continues it
    (rank,) = watched.serve(0).ranks
    assert rank.by("next_victim_cached_tokens", "position")["1"] == len(context) // 2
    assert rank.by("next_victim_silent_seconds", "position")["1"] == 0.0


def test_victims_that_a_server_never_had_are_not_asked_about() -> None:
    """Metrics of several processes leave out a gauge that was never set."""
    watched = Watched("etlru")
    watched.request(watched.fresh(100), 100, 1.0)
    watched._metrics.victims.look()
    unset = re.compile(r'sglang:tlru_next_victim_(?!cached_tokens).*position="[2-5]"')
    text = "".join(line + "\n" for line in watched.text().splitlines() if not unset.match(line))
    snapshot = read(text, "http://server")
    counts = [len(snapshot.ranks[0].by(f"next_victim_{name}", "position")) for name in ("cached_tokens", "cost")]
    assert counts == [5, 1]
    assert "lowest cost goes first" in shown(snapshot), "the caption of a table with a row"


WARM = """
# TYPE sglang:tlru_warm_tokens gauge
sglang:tlru_warm_tokens{{prompt="support"}} 1200.0
sglang:tlru_warm_tokens{{prompt="[bold]"}} {more}
# TYPE sglang:tlru_warm_cached_tokens gauge
sglang:tlru_warm_cached_tokens{{prompt="support"}} 1199.0
# TYPE sglang:tlru_warm_prefilled_tokens counter
sglang:tlru_warm_prefilled_tokens_total 1201.0
"""


def test_prompts_that_are_kept_warm_are_listed_and_are_no_ranks(
    snapshots: tuple[Watched, Snapshot, Snapshot],
) -> None:
    watched, _, without = snapshots
    snapshot = read(watched.text() + WARM.format(more=7.0), "http://server")
    assert len(snapshot.ranks) == 1
    assert snapshot.warm == (("support", 1_200, 1_199), ("[bold]", 7, 0))
    told = [line.split() for line in shown(snapshot).splitlines()]
    assert ["support", "1,200", "1,199"] in told
    assert ["[bold]", "7", "0"] in told
    assert "Warm prompts" not in shown(without)


AHEAD = """
# TYPE sglang:tlru_ahead_answers counter
sglang:tlru_ahead_answers_total{outcome="done"} 3.0
sglang:tlru_ahead_answers_total{outcome="dropped"} 2.0
# TYPE sglang:tlru_ahead_prefilled_tokens counter
sglang:tlru_ahead_prefilled_tokens_total 1200.0
"""


def test_what_is_prefilled_ahead_is_told_and_is_no_rank(snapshots: tuple[Watched, Snapshot, Snapshot]) -> None:
    watched, _, without = snapshots
    snapshot = read(watched.text() + AHEAD, "http://server")
    assert len(snapshot.ranks) == 1
    told = "Prefilled ahead: after 3 answers, 1,200 tokens, 2 dropped, as requests were always in flight"
    assert told in shown(snapshot)
    assert "Prefilled ahead" not in shown(without)


def test_tlru_predicts_nothing_and_says_so() -> None:
    watched = Watched("tlru")
    text = shown(watched.serve(100))
    assert "nothing is predicted" in text


def test_a_dry_run_says_in_words_what_would_have_been_saved() -> None:
    watched = Watched("tlru", dry_run=True)
    early = shown(watched.serve(10))
    assert "stock lru evicts; tlru would be in force now. So far nothing in the shadow caches went beyond ξ" in early
    snapshot = watched.serve(300)
    text = shown(snapshot, width=200)
    (rank,) = snapshot.ranks
    excess = rank.by("shadow_excess_tokens_total", "policy")
    saved = f"TEL {100 * (excess['tlru'] / excess['lru'] - 1):+.1f} %"
    assert rank.policy == "tlru"
    assert excess["in force"] == excess["tlru"] < excess["lru"]
    assert f"With what would have been in force so far: {saved}, requests beyond ξ " in text
    assert "Next to go" not in text, "stock does not tell what goes next"
    assert "support" in shown(read(watched.text() + WARM.format(more=7.0), "http://server")), "it warms prompts as well"
    assert "evictable leaves" not in text
    assert rank.value("requests_total") == watched.served


# ---- over HTTP ----


@pytest.fixture
def served(snapshots: tuple[Watched, Snapshot, Snapshot]) -> Iterator[str]:
    """The URL of a metrics endpoint."""
    server, thread = start_http_server(0, "127.0.0.1", registry=snapshots[0].registry)
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("url", ["{}", "http://{}", "http://{}/", "http://{}/metrics", "http://me:secret@{}"])
def test_a_server_is_asked_by_any_way_to_write_its_url(served: str, url: str) -> None:
    snapshot = scrape(url.format(served))
    assert snapshot.url == f"http://{served}"
    assert isinstance(snapshot.ranks[0], Rank)


@pytest.mark.parametrize("how", [["--once"], []], ids=["once", "no terminal"])
def test_once_prints_one_frame(
    how: list[str], served: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", None)  # there is no second look
    assert main(["top", served, *how]) == 0
    printed = capsys.readouterr()
    assert "radix-tlru top" in printed.out
    assert "Next to go" in printed.out
    assert printed.err == ""


def test_nobody_at_the_url_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "http://127.0.0.1:9", "--once"]) == 2
    assert capsys.readouterr().err == "radix-tlru: error: no server answers at http://127.0.0.1:9\n"


def test_a_url_without_a_name_of_a_host_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "http://a..b", "--once"]) == 2
    assert capsys.readouterr().err.startswith("radix-tlru: error: http://a..b/metrics: Failed to parse")


def test_a_server_without_metrics_is_told_which_flag_it_lacks(tmp_path: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(
                ServerError, match=f"/metrics: not found; start the server with --enable-metrics{OF_ROUTER}$"
            ):
                scrape(f"127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()


class _WantsKey(SimpleHTTPRequestHandler):
    """Of a server whose metrics are behind a key."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer sesame":
            self.send_error(401)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(Watched("tlru").text().encode())


def test_a_server_that_wants_a_key_is_given_one(capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _WantsKey) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            assert main(["top", url, "--once", "--api-key", "sesame"]) == 0
            for wrong in ([], ["--api-key", "mellon"]):
                assert main(["top", url, "--once", *wrong]) == 2
            assert main(["top", url, "--once", "--api-key", "сезам"]) == 2
        finally:
            server.shutdown()
    printed = capsys.readouterr()
    assert "Next to go" in printed.out
    refused = [line for line in printed.err.splitlines() if line.startswith("radix-tlru: error: ")]
    assert refused[:2] == [f"radix-tlru: error: {url}/metrics: wants a key; give --api-key"] * 2
    assert refused[2:] == [
        "radix-tlru: error: --api-key: must be printable characters of latin-1, as it is sent in a header"
    ]


def test_a_screen_outlives_the_server_and_ends_when_interrupted(
    snapshots: tuple[Watched, Snapshot, Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, thread = start_http_server(0, "127.0.0.1", registry=snapshots[0].registry)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            server.shutdown()
            server.server_close()
            thread.join()
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", wait)
    console = Console(file=StringIO(), force_terminal=True, width=120, height=60)
    url = f"http://127.0.0.1:{server.server_port}"
    assert watch(url, 7.0, console=console) == 0
    assert waits == [7.0] * 3
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "/s)" in drawn  # rates, from the second look on
    assert f"no server answers at {url}; as of" in drawn


@pytest.mark.parametrize(("height", "last"), [(24, "--once prints all"), (60, "lowest cost goes first")])
def test_a_screen_that_is_too_low_says_so(served: str, monkeypatch: pytest.MonkeyPatch, height: int, last: str) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    console = Console(file=StringIO(), force_terminal=True, width=100, height=height)
    assert watch(served, 7.0, console=console) == 0
    drawn = re.sub(r"\x1b\[[\d;?]*\w", "", console.file.getvalue())  # type: ignore[attr-defined]
    lines = [line.strip() for line in drawn.splitlines() if line.strip()]
    assert lines[-1].endswith(last)
    assert len(drawn.splitlines()) <= height


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sglang:num_running_reqs 1.0\n", "stock eviction; start one with --radix-eviction etlru --enable-metrics"),
        ("process_cpu_seconds_total 1.0\n", "no SGLang server; start one with --radix-eviction etlru --enable-metrics"),
        ("<html>not metrics</html>\n", "is not in the format of Prometheus"),
        ('{, =H"\\\n', "is not in the format of Prometheus"),  # an IndexError of its parser
    ],
)
def test_a_server_that_is_none_of_ours_is_told_what_it_lacks(text: str, said: str) -> None:
    with pytest.raises(ServerError, match=r"^http://server/metrics: ") as caught:
        read(text, "http://server")
    assert str(caught.value).endswith(said)


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "inf", "86401", "soon"])
def test_an_interval_is_a_number_of_seconds(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["top", "127.0.0.1:9", "--interval", interval])
    said = f"{interval}: must be a number of seconds above 0, a day (86400) at most"
    assert said in " ".join(capsys.readouterr().err.split())
