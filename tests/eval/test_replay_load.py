"""What a replay sends, and in which order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from eval.live.replay.load import Conversation, Load, Segment, Turn, load_from
from eval.traces import open_trace
from eval.traces.request import Path as Units
from eval.traces.request import Request


def block_request(arrival_s: float, ids: Sequence[int], tokens: int, output: int = 5) -> Request:
    prompt = Units(tuple(ids), range(512, 512 * len(ids) + 1, 512))
    return Request(arrival_s, None, prompt, prompt, tokens, output)


def test_turns_add_what_the_trace_adds_and_wait_as_long() -> None:
    requests = open_trace("chat-mix:conversations=20,seed=4").requests
    load = load_from(requests)
    assert load.requests == len(requests)
    for conversation in load.conversations:
        turns = [request for request in requests if request.conversation == requests_of_index(requests, conversation)]
        length, before = 0, None
        for turn, request in zip(conversation.turns, turns, strict=True):
            length += turn.new_tokens
            assert length == request.prompt_tokens
            length += turn.output_tokens
            assert turn.wait_s == pytest.approx(request.arrival_s - before.arrival_s if before else 0.0)
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
    assert [[turn.wait_s for turn in c.turns] for c in load.conversations] == [[0.0, 2.0, 2.0], [0.0], [0.0]]
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


def test_chat_mix_is_the_same_for_the_same_seed_and_a_larger_one_begins_with_the_smaller() -> None:
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
