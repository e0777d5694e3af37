"""When each turn of a replay is sent: after the answers that it waits for, its subagents beside each other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest

from eval.live.replay.schedule import Loop, Pace, Schedule
from eval.live.replay.turns import Conversation, Load, Segment, Turn, TurnId

LOOPS: tuple[Loop, ...] = ("ordered", "open", "closed")
TOOL_S = 0.05
FIRST, LAST = TurnId(0, 0), TurnId(0, 1)
SUBAGENTS = TurnId(1, 0), TurnId(2, 0)


def turn(place: int, wait_s: float = 0.0, after: tuple[TurnId, ...] = ()) -> Turn:
    return Turn((Segment(place, 10),), False, 4, wait_s, after=after, arrival_s=0.0, place=place)


def session(first: int = 0) -> list[Conversation]:
    """An agent that starts two subagents with its first call, and makes another once both have answered."""
    start, ends = TurnId(first, 0), (TurnId(first + 1, 0), TurnId(first + 2, 0))
    place = 4 * first
    return [
        Conversation(first, 0.0, (turn(place), turn(place + 3, TOOL_S, ends)), first),
        Conversation(first + 1, 0.0, (turn(place + 1, TOOL_S, (start,)),), first),
        Conversation(first + 2, 0.0, (turn(place + 2, TOOL_S, (start,)),), first),
    ]


@dataclass
class Server:
    """Notes when turns begin and end."""

    fails: Collection[TurnId] = ()
    meet: Collection[TurnId] = ()  # none of these ends before all of them have begun
    begun: dict[TurnId, float] = field(default_factory=dict)
    ended: dict[TurnId, float] = field(default_factory=dict)
    skipped: list[TurnId] = field(default_factory=list)

    async def send(self, one: TurnId) -> bool:
        self.begun[one] = time.perf_counter()
        while one in self.meet and not set(self.meet) <= set(self.begun):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.02 * (1 + one.conversation % 3))
        self.ended[one] = time.perf_counter()
        return one not in self.fails

    def play(self, load: Load, pace: Pace) -> None:
        asyncio.run(asyncio.wait_for(Schedule(load, pace, self.send, self.skipped.append).run(), timeout=60))


@pytest.mark.parametrize("loop", LOOPS)
def test_subagents_run_beside_each_other_and_their_agent_waits_for_the_last_of_them(loop: Loop) -> None:
    server = Server(meet=SUBAGENTS)
    server.play(Load(tuple(session())), Pace(loop, users=2))
    assert server.skipped == []
    assert len(server.begun) == 4
    waited = 0.0 if loop == "ordered" else TOOL_S  # in order, the trace's clock says when, not the tool
    for subagent in SUBAGENTS:
        assert server.begun[subagent] >= server.ended[FIRST] + waited
        assert server.begun[LAST] >= server.ended[subagent] + waited


def test_at_twice_the_speed_tools_take_half_as_long_and_not_less() -> None:
    load = Load((Conversation(0, 0.0, (turn(0), turn(1, 0.2), turn(2, 0.2))),))
    server = Server()
    server.play(load, Pace("open", speed=2.0))
    for number in (1, 2):
        assert server.begun[TurnId(0, number)] >= server.ended[TurnId(0, number - 1)] + 0.1


def test_a_user_of_a_closed_loop_begins_a_session_when_all_of_the_last_one_has_ended() -> None:
    server = Server(meet=SUBAGENTS)
    server.play(Load((*session(0), *session(3))), Pace("closed", users=1))
    assert len(server.ended) == 8
    assert server.begun[TurnId(3, 0)] >= max(at for one, at in server.ended.items() if one.conversation < 3)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_subagent_that_fails_holds_nobody_back(loop: Loop) -> None:
    server = Server(fails={SUBAGENTS[1]})
    server.play(Load(tuple(session())), Pace(loop))
    assert server.skipped == []
    assert server.begun[LAST] >= server.ended[SUBAGENTS[1]]


@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_failed_call_would_have_started_is_not_sent_nor_what_follows(loop: Loop) -> None:
    server = Server(fails={FIRST})
    server.play(Load(tuple(session())), Pace(loop))
    assert set(server.begun) == {FIRST}
    assert sorted(server.skipped) == sorted([LAST, *SUBAGENTS])


def test_turns_that_arrive_at_once_are_sent_in_the_order_of_the_trace() -> None:
    later = Conversation(0, 0.0, (turn(5),))
    earlier = Conversation(1, 0.0, (turn(4),))
    server = Server()
    server.play(Load((later, earlier)), Pace("ordered", users=1))
    assert list(server.begun) == [TurnId(1, 0), TurnId(0, 0)]
