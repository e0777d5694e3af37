"""What is sent to a server, when, and what comes of it: loads are played against a scripted one."""

from __future__ import annotations

import contextlib
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from eval.live.calibrate import REPEATS, calibrate
from eval.live.replay.client import RETRY_AFTER_S
from eval.live.replay.play import NOT_SENT, Manner, ReplayError, Sent, Target, play, play_in_turn
from eval.live.replay.schedule import Loop, Pace
from eval.live.replay.turns import Conversation, Load, Segment, Turn
from eval.live.server import Server
from eval.simulate.timing import TimingError
from tests.helpers.stand_ins import SCRIPTED, stand_in

pytestmark = pytest.mark.usefixtures("logs_in_tmp")


def conversation(index: int, start_s: float, *turns: tuple[int, float]) -> Conversation:
    """Each turn adds (tokens, seconds after the turn before) and asks for an answer of 3 tokens."""
    added = [Turn((Segment(100 * index + n, tokens),), False, 3, wait_s) for n, (tokens, wait_s) in enumerate(turns)]
    return Conversation(index, start_s, tuple(added))


def prompts(server: Server) -> list[int]:
    """Lengths of the prompts that a scripted server was sent."""
    return [int(line.split()[1]) for line in server.log_tail(1000).splitlines() if line.startswith("prompt")]


def sessions(server: Server) -> list[str]:
    """The sessions that the requests to a scripted server named."""
    return [line.split(" of ")[1] for line in server.log_tail(1000).splitlines() if line.startswith("prompt")]


def test_an_ordered_loop_keeps_its_order_on_a_slow_server_and_sends_real_answers() -> None:
    # Due at 0.00 (10 tokens), 0.01 (20) and 0.02 s, but each takes 0.1 s: the third is 10 + 3 of the answer + 4 new.
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.02)), conversation(1, 0.01, (20, 0.0))))
    seen: list[Sent] = []
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("ordered", users=1), on_sent=seen.append)
        assert prompts(server) == [10, 20, 10 + 3 + 4]
    results = [one.result for one in sent]
    assert [one.number for one in sent] == [0, 1, 2]
    assert [(result.conversation, result.turn) for result in results] == [(0, 0), (1, 0), (0, 1)]
    assert [result.uncached_tokens for result in results] == [5, 10, 17 - 8]
    assert all(result.output_ids == (900, 901, 902) and result.error is None for result in results)
    assert all(100 <= (result.ttft_ms or 0) <= result.e2e_ms for result in results)
    assert all(len(result.itl_ms) == 2 for result in results)
    assert seen == sent


def test_an_open_loop_waits_for_its_own_answer_and_think_time_alone() -> None:
    load = Load((conversation(0, 0.0, (300, 0.0), (4, 0.4)), conversation(1, 0.02, (400, 0.0))))
    with stand_in(SCRIPTED) as server:
        sent = {(one.result.conversation, one.result.turn): one for one in play(server.base_url, load, Pace("open"))}
        begun, ended = play(
            server.base_url, Load((conversation(0, 0.0, (10, 0.0), (4, 400.0)),)), Pace("open", speed=4e3)
        )
    first, second, other = sent[0, 0], sent[0, 1], sent[1, 0]
    assert other.sent_s < first.sent_s + first.result.e2e_ms / 1000, "sent while the first was being answered"
    assert second.sent_s >= first.sent_s + first.result.e2e_ms / 1000 + 0.4 - 0.01
    gap = ended.sent_s - begun.sent_s - begun.result.e2e_ms / 1000
    assert 0.1 - 0.01 <= gap < 400.0, "at 4,000 times the speed people think so much less"


def test_in_a_closed_loop_each_user_has_one_conversation_at_a_time() -> None:
    load = Load(tuple(conversation(n, 100.0 * n, (20 + n, 0.0), (4, 0.01)) for n in range(4)))
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("closed", users=2))
    assert [one.result.error for one in sent] == [None] * 8
    started = [one.result.conversation for one in sorted(sent, key=lambda one: one.number) if one.result.turn == 0]
    assert started == [0, 1, 2, 3]
    for one in sent:
        during = [x for x in sent if x.sent_s <= one.sent_s < x.sent_s + x.result.e2e_ms / 1000]
        assert len(during) <= 2


def test_failed_requests_are_results_with_their_reason_and_end_their_conversation() -> None:
    load = Load(
        (
            conversation(0, 0.0, (13, 0.0), (1, 0.1), (1, 0.1)),
            conversation(1, 0.0, (14, 0.0)),
            conversation(2, 0.0, (15, 0.0), (1, 0.1)),
        )
    )
    with stand_in(SCRIPTED) as server:
        for loop in ("ordered", "open"):
            sent = play(server.base_url, load, Pace(loop))
            errors = {(one.result.conversation, one.result.turn): one.result.error for one in sent}
            assert errors == {
                (0, 0): "HTTP 400: thirteen",
                (0, 1): NOT_SENT,
                (0, 2): NOT_SENT,
                (1, 0): "aborted: fourteen",
                (2, 0): None,
                (2, 1): None,
            }


def test_a_subagent_names_the_session_of_the_agent_that_started_it() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0)), replace(conversation(1, 0.0, (20, 0.0)), session=0)))
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace(users=1), sessions=True)
        play(server.base_url, load, Pace(users=1))
        assert sessions(server) == ["conversation 0", "conversation 0", "None", "None"]
    assert [one.session for one in sent] == [0, 0]


def test_servers_that_are_asked_in_turn_get_each_request_one_after_the_other() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.0), (5, 0.0)), conversation(1, 0.0, (20, 0.0), (6, 0.0))))
    order: list[tuple[int, Sent]] = []
    with ExitStack() as stack:
        servers = [stack.enter_context(stand_in(SCRIPTED, name=f"server-{number}")) for number in range(3)]
        targets = [
            Target(server.base_url, partial(lambda number, sent: order.append((number, sent)), number))
            for number, server in enumerate(servers)
        ]
        played = play_in_turn(targets, load, Manner(Pace("ordered", users=1)))
        assert [each.error for each in played] == [None] * 3
        asked = [prompts(server) for server in servers]
    assert asked[0] == asked[1] == asked[2]
    assert len(asked[0]) == load.requests
    assert [sent.number for _, sent in order] == [number for number in range(load.requests) for _ in targets]
    firsts = [order[number][0] for number in range(0, len(order), 3)]
    assert len(set(firsts)) > 1, "another one is asked first"
    ends = [sent.sent_s + sent.result.e2e_ms / 1000 for _, sent in order]
    starts = [sent.sent_s for _, sent in order]
    assert all(start > end - 0.01 for end, start in zip(ends, starts[1:], strict=False)), "one request at a time"


def test_servers_take_turns_of_some_time_in_which_calls_wait_for_each_other() -> None:
    load = Load(tuple(conversation(n, 0.01 * n, *[(20 + n, 0.02)] * 8) for n in range(3)))
    spans: list[tuple[float, float, int]] = []  # (s, s, server) of each request

    def note(number: int, sent: Sent) -> None:
        now_s = time.perf_counter()
        spans.append((now_s - sent.result.e2e_ms / 1000, now_s, number))

    with ExitStack() as stack:
        servers = [stack.enter_context(stand_in(SCRIPTED, name=f"server-{number}")) for number in range(2)]
        targets = [Target(server.base_url, partial(note, number)) for number, server in enumerate(servers)]
        played = play_in_turn(targets, load, Manner(Pace("open")), turn_s=0.1)
        asked = [sorted(prompts(server)) for server in servers]
    assert [each.error for each in played] == [None, None]
    assert len(asked[0]) == load.requests
    assert asked[0] == asked[1]
    spans.sort()
    changes = 0
    for (_, end, one), (start, _, other) in pairwise(spans):
        changes += one != other
        assert one == other or start > end - 0.01, "a server is asked when the other one has answered all"
    assert changes > 2, "each has several turns"
    for number, each in enumerate(played):
        of_one = [(start, end) for start, end, server in spans if server == number]
        assert any(start < end for (_, end), (start, _) in pairwise(of_one)), "calls overlap"
        assert 0 < each.busy_s < sum(end - start for start, end in of_one)
        before = [sent.busy_s for sent in sorted(each.sent, key=lambda sent: sent.number)]
        assert before == sorted(before)
        assert 0 <= before[0] < before[-1] < each.busy_s
        assert max(sent.sent_s for sent in each.sent) < spans[-1][1] - spans[0][0], "clocks stand still between turns"


def test_servers_that_are_asked_in_turn_go_on_without_one_that_failed() -> None:
    load = Load((conversation(0, 0.0, (10, 0.0), (4, 0.0), (5, 0.0)),))
    seen: dict[int, list[Sent]] = {0: [], 1: [], 2: []}

    def keep(number: int, sent: Sent) -> None:
        if number == 1 and sent.number == 1:
            raise OSError("No space left on device")
        seen[number].append(sent)

    with stand_in(SCRIPTED) as server:
        targets = [Target(server.base_url, partial(keep, number)) for number in range(3)]
        errors = [each.error for each in play_in_turn(targets, load, Manner(Pace("ordered", users=1)))]
    assert list(map(str, errors)) == ["None", "No space left on device", "None"]
    assert [len(each) for each in seen.values()] == [3, 1, 3]


def test_tokens_that_come_at_once_share_the_time_since_the_one_before() -> None:
    load = Load((conversation(0, 0.0, (17, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (sent,) = play(server.base_url, load, Pace())
    result = sent.result
    assert result.output_tokens == 3
    first, second = result.itl_ms
    assert first == second > 0
    assert first + second <= result.e2e_ms - (result.ttft_ms or 0.0)
    assert result.tokens_per_s == pytest.approx(3000 / result.e2e_ms)


def test_a_server_that_is_busy_is_asked_again_and_the_clock_goes_on() -> None:
    load = Load((conversation(0, 0.0, (16, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (given_up,) = play(server.base_url, load, Pace())
        (answered,) = play(server.base_url, load, Pace(), retries=2)
    assert given_up.result.error == "HTTP 503: sixteen"
    assert (answered.result.error, answered.result.retries) == (None, 1)
    assert (answered.result.ttft_ms or 0) > 1000 * RETRY_AFTER_S


def test_a_server_that_ends_ends_the_replay_and_what_came_before_is_kept() -> None:
    load = Load(tuple(conversation(n, 0.2 * n, (10 if n < 2 else 99, 0.0)) for n in range(5)))
    seen: list[Sent] = []
    with (
        stand_in(SCRIPTED) as server,
        pytest.raises(ReplayError, match="the server ended while it served"),
    ):
        play(server.base_url, load, Pace(users=1), on_sent=seen.append, alive=server.alive)
    assert [one.result.error for one in seen[:2]] == [None, None]
    assert len(seen) == 3


def test_a_server_that_refuses_a_request_is_not_asked_whether_it_runs() -> None:
    load = Load((conversation(0, 0.0, (13, 0.0)), conversation(1, 0.0, (14, 0.0))))
    asked_after: list[Sent] = []
    seen: list[Sent] = []

    def alive() -> bool:
        asked_after.append(seen[-1])
        return True

    with stand_in(SCRIPTED) as server:
        play(server.base_url, load, Pace("ordered", users=1), on_sent=seen.append, alive=alive)
    assert [one.result.error for one in seen] == ["HTTP 400: thirteen", "aborted: fourteen"]
    assert [one.result.error for one in asked_after] == ["aborted: fourteen"]


def test_while_a_server_is_asked_whether_it_runs_other_answers_come_in() -> None:
    load = Load((conversation(0, 0.0, (14, 0.0)), conversation(1, 0.5, (10, 0.0))))
    answered = threading.Event()

    def seen(one: Sent) -> None:
        if one.result.error is None:
            answered.set()

    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("open"), on_sent=seen, alive=lambda: answered.wait(10.0))
    assert [one.result.error for one in sent] == ["aborted: fourteen", None]


def test_a_server_that_refuses_many_requests_in_a_row_was_reached() -> None:
    load = Load(tuple(conversation(n, 0.0, (14, 0.0)) for n in range(7)))
    with stand_in(SCRIPTED) as server:
        sent = play(server.base_url, load, Pace("ordered", users=1))
    assert [one.result.error for one in sent] == ["aborted: fourteen"] * 7


def test_where_no_server_is_reached_the_replay_ends_after_five_requests() -> None:
    load = Load(tuple(conversation(n, 0.0, (10, 0.0)) for n in range(7)))
    with stand_in(SCRIPTED) as server:
        url = server.base_url
    with pytest.raises(ReplayError, match="5 requests in a row reached no server; the last: ClientConnectorError"):
        play(url, load, Pace("ordered", users=1))


def test_lengths_are_measured_from_the_shortest_up_to_one_that_is_refused() -> None:
    with stand_in(SCRIPTED) as server:
        with contextlib.suppress(TimingError):  # all of them take as long there
            calibrate(server.base_url, (16, 12, 10))
        assert prompts(server) == [*[10] * (1 + REPEATS), *[12] * (1 + REPEATS), 16]


@pytest.mark.parametrize("loop", ["ordered", "open", "closed"])
def test_a_disk_that_is_full_ends_the_replay_with_its_own_error(loop: Loop) -> None:
    load = Load(tuple(conversation(n, 0.0, (10, 0.0), (4, 0.01)) for n in range(3)))
    with (
        stand_in(SCRIPTED) as server,
        open("/dev/full", "ab", buffering=0) as full,
        pytest.raises(OSError, match="No space left on device"),
    ):
        play(server.base_url, load, Pace(loop), on_sent=lambda _: full.write(b"row") and None)


def test_a_server_that_says_nothing_more_is_given_up_after_the_timeout() -> None:
    load = Load((conversation(0, 0.0, (18, 0.0)),))
    with stand_in(SCRIPTED) as server:
        (sent,) = play(server.base_url, load, Pace(), timeout_s=0.5)
    assert "Timeout" in (sent.result.error or "")
