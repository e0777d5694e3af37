"""Small traces for tests, as the readers of the evaluation would give them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any, NamedTuple

from eval.traces.request import Path, Request


class Turn(NamedTuple):
    conversation: int
    prompt: int  # tokens that are new in it
    answer: int


def random_turns(random: Random, longest: int = 24) -> list[Turn]:
    """Turns of two to five conversations in any order; one adds up to 5 tokens and hears up to 4."""
    conversations = random.randint(2, 5)
    return [
        Turn(random.randrange(conversations), random.randint(1, 5), random.randint(0, 4))
        for _ in range(random.randint(5, longest))
    ]


def conversations_in_line(turns: Sequence[Turn]) -> list[Request]:
    """A turn looks up all that its conversation has said so far; nothing is shared between conversations.

    A unit is a message. Turns come a second apart.
    """
    messages: dict[int, list[tuple[int, int]]] = {}  # (id, tokens)
    requests = []
    for number, turn in enumerate(turns):
        said = messages.setdefault(turn.conversation, [])
        said.append((2 * number, turn.prompt))
        prompt = _path(said)
        if turn.answer:
            said.append((2 * number + 1, turn.answer))
        requests.append(Request(float(number), str(turn.conversation), prompt, _path(said), len(prompt), turn.answer))
    return requests


def _path(messages: Iterable[tuple[int, int]]) -> Path:
    ids, tokens = zip(*messages, strict=True)
    return Path(ids, tuple(accumulate(tokens)))


def branching(contexts: Sequence[Sequence[int | str]], prompts: Sequence[int], whole_messages: bool) -> list[Request]:
    """Requests for contexts given as tokens, of which the first ``prompts[i]`` are looked up and the rest is answer.

    Ids are chained: a unit has the id that stands for all tokens up to its end. A unit is a token; or, with
    ``whole_messages``, as many as always come together, and page boundaries then fall anywhere in them.
    """
    chain: dict[tuple[int, int | str], int] = {}
    ids = []
    for context in contexts:
        ids.append([])
        for token in context:
            ids[-1].append(chain.setdefault((ids[-1][-1] if ids[-1] else -1, token), len(chain)))
    branches = Counter(before for before, _ in chain)
    ends = {before for before, after in branches.items() if after > 1}
    ends.update(path[length - 1] for path, prompt in zip(ids, prompts, strict=True) for length in (prompt, len(path)))

    def path(tokens: list[int]) -> Path:
        if not whole_messages:
            return Path(tokens, range(1, len(tokens) + 1))
        cuts = [index for index, token in enumerate(tokens) if token in ends]
        return Path([tokens[index] for index in cuts], [index + 1 for index in cuts])

    return [
        Request(float(number), None, path(tokens[:prompt]), path(tokens), prompt, len(tokens) - prompt)
        for number, (tokens, prompt) in enumerate(zip(ids, prompts, strict=True))
    ]


def asked(said: list[tuple[str, dict[str, Any]]]) -> list[Request]:
    """Requests a second apart, a letter a token, without answers, each with what else is known of it."""
    requests = branching([text for text, _ in said], [len(text) for text, _ in said], whole_messages=False)
    return [replace(request, **known) for request, (_, known) in zip(requests, said, strict=True)]


def random_tree(
    random: Random, longest: int = 14, page: int = 1, whole_messages: bool = False, answers: str | None = None
) -> list[Request]:
    """PrefixIndex that go on from some prefix of some context before them, by up to 4 pages and an answer of up to 2.

    Prompts say a and b. An answer is like no other; or it is made of the letters of ``answers``.
    """
    said, prompts = [""], []
    for number in range(random.randint(5, longest)):
        before = random.choice(said)
        new = "".join(random.choices("ab", k=random.randint(1, 4 * page)))
        prompt = before[: random.randint(0, len(before))] + new
        said.append(prompt + "".join(random.choices(answers or chr(1000 + number), k=random.randint(0, 2 * page))))
        prompts.append(len(prompt))
    return branching(said[1:], prompts, whole_messages)


def single_blocks(ids: Iterable[int]) -> list[Request]:
    """A trace without prefixes: each request is one block of one token, found whole or not at all."""
    blocks = [Path((block,), (1,)) for block in ids]
    return [Request(float(number), None, block, block, 1, 0) for number, block in enumerate(blocks)]


def tel(requests: Sequence[Request], cached: Sequence[int], threshold: int) -> int:
    """Tokens beyond ξ that were not cached, summed over the requests."""
    return sum(
        max(request.prompt_tokens - found - threshold, 0) for request, found in zip(requests, cached, strict=True)
    )
