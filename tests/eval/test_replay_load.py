"""What a replay sends, and in which order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.live.replay.client import RequestResult
from eval.live.replay.load import first_conversations, gathered, load_from
from eval.live.replay.prompts import Prompts
from eval.live.replay.shrink import shrunk
from eval.live.replay.turns import Conversation, Load, Segment, Turn, TurnId
from eval.traces import open_trace
from eval.traces.reading.times import TOKEN_S
from eval.traces.request import Path as Units
from eval.traces.request import Request


def block_request(arrival_s: float, ids: Sequence[int], tokens: int, output: int = 5) -> Request:
    prompt = Units(tuple(ids), range(512, 512 * len(ids) + 1, 512))
    return Request(arrival_s, None, prompt, prompt, tokens, output)


def test_turns_add_what_the_trace_adds_and_wait_as_long_after_the_answer() -> None:
    requests = open_trace("chat-mix:conversations=20,seed=4").requests
    load = load_from(requests)
    assert load.requests == len(requests)
    for conversation in load.conversations:
        turns = [request for request in requests if request.conversation == requests_of_index(requests, conversation)]
        length, before = 0, None
        for turn, request in zip(conversation.turns, turns, strict=True):
            length += sum(segment.tokens for segment in turn.segments)
            assert length == request.prompt_tokens
            length += turn.output_tokens
            silent_s = request.arrival_s - before.arrival_s if before else 0.0
            answer_s = before.output_tokens * TOKEN_S if before else 0.0
            assert turn.wait_s == pytest.approx(max(silent_s - answer_s, 0.0))
            assert not turn.whole
            before = request


def requests_of_index(requests: Sequence[Request], conversation: Conversation) -> str | None:
    names = list(dict.fromkeys(request.conversation for request in requests))
    return names[conversation.index]


def test_a_block_trace_is_played_with_its_own_tokens_and_equal_blocks_are_equal_tokens() -> None:
    load = load_from(
        [
            block_request(0.0, [1, 2], 1100),  # two whole blocks and 76 tokens of its own
            block_request(1.0, [7], 600),
            block_request(2.0, [1, 2, 3, 4], 2048),  # goes on with the first
            block_request(3.0, [1, 2, 9], 1600),  # branches off it: a conversation of its own
            block_request(4.0, [1, 2, 3, 4, 5], 2600),  # goes on with the third
        ]
    )
    # Answers of 5 tokens take 5 · 20 ms, so that they end 1.9 s before the next turn, which comes 2 s after the last.
    waits = [[round(turn.wait_s, 6) for turn in c.turns] for c in load.conversations]
    assert waits == [[0.0, 1.9, 1.9], [0.0], [0.0]]
    assert [conversation.start_s for conversation in load.conversations] == [0.0, 1.0, 3.0]
    first, second, third = (load.ids(turn) for turn in load.conversations[0].turns)
    branch = load.ids(load.conversations[2].turns[0])
    assert [len(ids) for ids in (first, second, third, branch)] == [1100, 2048, 2600, 1600]
    assert first[:1024] == second[:1024] == third[:1024] == branch[:1024]
    assert second == third[:2048]
    assert branch[1024:1536] != second[1024:1536]
    assert first[1024:] != second[1024:1100], "a partial block is nobody else's"


def test_the_same_seed_draws_the_same_tokens() -> None:
    turn = Turn((Segment(3, 40), Segment(4, 2)), False, 8, 0.0)
    one, again, other = Load((), 1), Load((), 1), Load((), 2)
    assert one.ids(turn) == again.ids(turn) != other.ids(turn)
    assert all(0 <= token < 256 for token in one.ids(turn))
    assert set(Load((), 1, vocabulary=2).ids(turn)) == {0, 1}


def test_chat_sends_the_texts_of_the_trace_and_otherwise_as_many_letters_as_tokens(tmp_path: Path) -> None:
    said = [{"from": "human", "value": "What is a radix tree?"}, {"from": "gpt", "value": "A trie."}]
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([{"id": "a", "conversations": [*said, {"from": "human", "value": "Why?"}]}]))
    load = load_from(open_trace(str(file), texts=True).requests)
    assert [load.messages(turn) for turn in load.conversations[0].turns] == [
        (("user", "What is a radix tree?"),),
        (("user", "Why?"),),
    ]
    ((role, text),) = Load(()).messages(Turn((Segment(3, 40),), False, 8, 0.0))
    assert role == "user"
    assert len(text) == 40
    assert text.isprintable()


def test_chat_mix_is_set_by_its_seed_and_a_larger_one_begins_with_the_smaller() -> None:
    def lengths(source: str) -> dict[str | None, list[tuple[float, int, int]]]:
        found: dict[str | None, list[tuple[float, int, int]]] = {}
        for request in open_trace(source).requests:
            turn = (request.arrival_s, request.prompt_tokens, request.output_tokens)
            found.setdefault(request.conversation, []).append(turn)
        return found

    mix = lengths("chat-mix:conversations=50,seed=7")
    assert mix == lengths("chat-mix:conversations=50,seed=7") != lengths("chat-mix:conversations=50,seed=8")
    larger = lengths("chat-mix:conversations=60,seed=7")
    assert {name: larger[name] for name in mix} == mix
    assert {len(turns) for turns in mix.values()} == set(range(1, 7))
    assert all(200 <= turns[0][1] <= 3000 for turns in mix.values())
    assert all(8 <= output <= 48 for turns in mix.values() for _, _, output in turns)


# ---- agents ----

SESSION = ("subagents:sessions=1,seed=3", "parallel-tools:sessions=1,seed=3")


def call(arrival_s: float, agent: int, tokens: int, session: str = "a", answer_s: float | None = None) -> Request:
    ids = range(1000 * agent, 1000 * agent + tokens // 16)
    prompt = Units(ids, range(16, 16 * len(ids) + 1, 16))
    return Request(
        arrival_s,
        f"{session}/{agent}",
        prompt,
        prompt,
        tokens,
        7,
        session=session,
        parent=f"{session}/0" if agent else None,
        answer_s=answer_s,
    )


# The main agent, 2 s; two subagents from 3 s on, until 9 and 7 s; the main agent 1.5 s after both. Another session.
CALLS = [
    call(0.0, 0, 160, answer_s=2.0),
    call(1.0, 0, 80, "b", answer_s=1.0),
    call(3.0, 1, 320, answer_s=6.0),
    call(3.5, 2, 320, answer_s=3.5),
    call(10.5, 0, 400, answer_s=1.0),
]


def test_a_call_waits_for_all_subagents_and_a_subagent_for_the_call_that_started_it() -> None:
    load = load_from(CALLS)
    main, other, first, second = load.conversations
    assert [c.session_index for c in load.conversations] == [0, 1, 0, 0]
    assert load.names_sessions
    assert (first.turns[0].after, second.turns[0].after) == ((TurnId(0, 0),), (TurnId(0, 0),))
    assert (first.turns[0].wait_s, second.turns[0].wait_s) == (1.0, 1.5)
    assert main.turns[1].after == (TurnId(2, 0), TurnId(3, 0))
    assert main.turns[1].wait_s == 1.5
    assert (other.start_s, other.turns[0].after) == (1.0, ())
    assert [turn.output_tokens for c in load.conversations for turn in c.turns] == [7] * 5


@pytest.mark.parametrize(("count", "kept"), [(1, [0, 2, 3, 4]), (2, [0, 1, 2, 3, 4]), (9, [0, 1, 2, 3, 4])])
def test_the_first_conversations_have_their_subagents_with_them(count: int, kept: list[int]) -> None:
    assert first_conversations(CALLS, count) == [CALLS[number] for number in kept]


def test_the_first_conversations_of_a_trace_without_names_are_those_that_blocks_tell() -> None:
    requests = [block_request(0.0, [1], 512), block_request(1.0, [7], 600), block_request(2.0, [1, 2], 1024)]
    assert first_conversations(requests, 1) == [requests[0], requests[2]]


@pytest.mark.parametrize("seed", range(8))
def test_sessions_that_are_moved_closer_together_stay_those_that_blocks_told_before(seed: int) -> None:
    requests = [
        block_request(0.0, [1, 2], 1024),
        block_request(60.0, [1, 2, 3], 1536),  # goes on with the first
        block_request(61.0, [1, 2, 9], 1536),  # a conversation of its own, which may be moved between these two
    ]
    load = load_from(gathered(requests, 300.0, seed))
    told = [[[segment.unit for segment in turn.segments] for turn in each.turns] for each in load.conversations]
    assert sorted(told) == [[[1, 2], [1, 2, 3]], [[1, 2, 9]]]
    assert all(turn.whole for each in load.conversations for turn in each.turns)


@pytest.mark.parametrize("by", [1, 16, 200])
@pytest.mark.parametrize("source", SESSION)
def test_a_prompt_holds_what_the_server_answered_wherever_the_trace_has_that_answer(source: str, by: int) -> None:
    """Played with answers of one token each, which no drawn token is: as many are in a prompt as the trace says."""
    requests = shrunk(open_trace(source, limit=40).requests, by)
    load = load_from(requests)
    ids = [
        TurnId(conversation.index, number)
        for conversation in load.conversations
        for number, _ in enumerate(conversation.turns)
    ]
    places = {load.conversations[one.conversation].turns[one.turn].place: one for one in ids}
    prompts, answered = Prompts(load, "generate"), dict[int, int]()  # tokens of answers by the unit that ends a context
    seen = 0
    for place, request in enumerate(requests):
        asked = prompts.ask(places[place])
        assert len(asked.input_ids) == request.prompt_tokens
        expected = sum(answered.get(unit, 0) for unit in request.prompt.ids)
        assert sum(token >= 1000 for token in asked.input_ids) == expected
        seen += expected
        answer = (1000 + place,) * max(request.output_tokens, 1)  # SGLang answers with a token at least
        taken = RequestResult(*places[place], request.prompt_tokens, 0, 1.0, 1.0, len(answer), output_ids=answer)
        prompts.take(places[place], taken)
        if request.output_tokens:
            answered[request.context.ids[-1]] = request.output_tokens
    assert seen > 0
