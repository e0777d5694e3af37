"""The example that reads: fitted to half of a chat trace with texts, it keeps what goes on of the other half."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from eval.examples.fit_goes_on import auc, examples, fit, main
from eval.examples.goes_on import WEIGHTS, Classifier
from eval.traces import open_trace
from eval.traces.reading.tokenizer import load_tokenizer
from eval.traces.request import Request
from radix_tlru import Config, ConfigError, EvictionOrder, Leaf
from radix_tlru.learning.custom_model import custom_model
from radix_tlru.learning.learner import Learner
from radix_tlru.learning.model_check import check_custom_model
from radix_tlru.learning.records import Turn
from radix_tlru.tools.demo_model import write_demo_model
from tests.helpers.chat_files import START, message, milliseconds, row, write_jsonl

NAME = "eval.examples.goes_on:GoesOn"
CONVERSATIONS, TURNS = 240, 4
WORDS = (
    *("how", "why", "what", "can", "you", "write", "explain", "the", "code", "list", "table", "of", "in", "python"),
    *("recipe", "city", "train", "plan", "more", "again"),
)
CLOSINGS = ("thanks", "that is all", "great, bye", "perfect")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of the demo model: a token is a byte."""
    directory = tmp_path_factory.mktemp("model") / "demo"
    write_demo_model(directory)
    return directory


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of 1 to 4 turns. Of last messages 8 in 10 have a closing word, of others 1 in 10."""
    random, rows = Random(5), []
    for number in range(CONVERSATIONS):
        turns, said = random.randint(1, TURNS), []
        for turn in range(turns):
            words = random.choices(WORDS, k=random.randint(4, 12))
            if random.random() < (0.8 if turn == turns - 1 else 0.1):
                words.insert(random.randrange(len(words)), random.choice(CLOSINGS))
            time = START + timedelta(seconds=60 * number + 20 * turn)
            said += [message("user", " ".join(words)), message("assistant", "an answer", time)]
        rows.append(row(f"chat-{number}", START + timedelta(seconds=60 * number + 20 * turns), *said))
    return Path(write_jsonl(tmp_path_factory.mktemp("chats") / "chats.jsonl", rows, milliseconds))


@pytest.fixture(scope="module")
def weights(chats: Path, tokenizer: Path) -> Path:
    file = chats.with_name("goes_on.npz")
    assert main(["--trace", str(chats), "--tokenizer", str(tokenizer), "--out", str(file)]) == 0
    return file


def test_it_tells_apart_what_goes_on_among_conversations_that_it_has_not_seen(chats: Path, tokenizer: Path) -> None:
    requests = open_trace(str(chats), texts=True).requests
    seen, unseen = examples(requests, load_tokenizer(str(tokenizer)))
    assert len(seen) + len(unseen) == len(requests)
    assert sum(not example.went_on for example in seen) == CONVERSATIONS // 2  # each has one last turn
    # At best: closing words in 0.8 and 0.1 give 0.8 · 0.9 + (0.8 · 0.1 + 0.2 · 0.9) / 2 = 0.85.
    assert 0.75 < auc(fit(seen), unseen) < 0.92


def served(requests: list[Request], tokenizer: Path) -> tuple[Learner, list[tuple[Request, Leaf]]]:
    """A learner with the model by its name, which was told of these requests; and its leaves, the oldest first."""
    tokenize = load_tokenizer(str(tokenizer))
    learner = Learner(Config("etlru", median_weight=1.0, return_model=NAME), capacity=1 << 20, page_size=1)
    histories: dict[str | None, list[int]] = {}
    leaves: dict[str | None, tuple[Request, Leaf]] = {}
    for number, request in enumerate(requests):
        prompt = [*histories.get(request.conversation, ()), *tokenize(f"{number} {request.messages[-1][1]}")]
        answer = list(tokenize("an answer"))
        ids = histories[request.conversation] = [*prompt, *answer]
        turn = Turn(
            *(request.arrival_s, len(prompt), len(answer), len(ids), 0),
            lambda start, end, above, ids=ids: hash((*ids[:end],)),
            prompt_ids=prompt,
            answer_ids=answer,
        )
        conversation = learner.record_turn(turn)
        leaf = Leaf(0, len(ids), len(ids), float(number), conversation)
        leaves.pop(request.conversation, None)
        leaves[request.conversation] = request, leaf
    return learner, list(leaves.values())


def test_by_its_name_it_evicts_conversations_that_are_over_before_those_that_go_on(
    chats: Path, tokenizer: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEIGHTS, str(weights))
    requests = open_trace(str(chats), texts=True).requests
    last = {request.conversation: request for request in requests}
    names = list(last)[CONVERSATIONS // 2 :]  # which it has not seen
    stops = Random(1)
    part = [  # of half of them we see all, of the others all but the last turn
        request
        for name in names
        for request in [each for each in requests if each.conversation == name][: None if stops.random() < 0.5 else -1]
    ]
    learner, leaves = served(sorted(part, key=lambda request: request.arrival_s), tokenizer)
    by_id = {number: leaf for number, (_, leaf) in enumerate(leaves)}
    order = EvictionOrder(learner.candidates["etlru"], 1, by_id.get)
    for number in by_id:
        order.add_leaf(number)
    evicted = []
    for _ in range(len(by_id) // 2):
        victim = order.choose_victim(1 << 20)
        assert victim is not None
        order.remove_leaf(victim.leaf_id)
        evicted.append(victim.leaf_id)

    def over(numbers: list[int]) -> float:
        return sum(last[leaves[number][0].conversation] is leaves[number][0] for number in numbers) / len(numbers)

    oldest = list(range(len(by_id) // 2))
    assert over(evicted) > over(oldest) + 0.1, "more of what goes is over than of what lru would have taken"


def test_a_server_accepts_it_and_without_weights_says_what_is_missing(
    weights: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(WEIGHTS, str(weights))
    check_custom_model(NAME)
    monkeypatch.setenv(WEIGHTS, str(tmp_path / "nothing.npz"))
    with pytest.raises(ConfigError, match=r"GoesOn: cannot be made, FileNotFoundError: .*nothing\.npz"):
        custom_model(NAME)
    monkeypatch.delenv(WEIGHTS)
    with pytest.raises(ConfigError, match=f"GoesOn: cannot be made, KeyError: '{WEIGHTS}'"):
        custom_model(NAME)


def test_weights_are_read_as_they_were_written(weights: Path, tmp_path: Path) -> None:
    first = Classifier.load(weights)
    first.save(tmp_path / "again.npz")
    again = Classifier.load(tmp_path / "again.npz")
    assert first.probability([1, 2, 3]) == again.probability([1, 2, 3])
    assert 0.0 < first.probability([]) < 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--trace", "synthetic:conversations=5"), "fit_goes_on: --tokenizer: is required"),
        (("--trace", "nothing.jsonl", "--tokenizer", "DEMO"), "fit_goes_on: trace nothing.jsonl"),
        (("--trace", "synthetic:conversations=5", "--tokenizer", "DEMO"), "is generated, not read"),
        (("--trace", "MOONCAKE", "--tokenizer", "DEMO"), "has no messages"),
    ],
)
def test_what_cannot_be_fitted_to_is_said_in_one_line(
    given: tuple[str, ...], said: str, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = {"timestamp": 0, "input_length": 512, "output_length": 4, "hash_ids": [1]}
    files = {"DEMO": str(tokenizer), "MOONCAKE": write_jsonl(tmp_path / "lengths.jsonl", [lengths])}
    words = [files.get(word, word) for word in given]
    assert main([*words, "--out", str(tmp_path / "weights.npz")]) == 2
    (error,) = (line for line in capsys.readouterr().err.splitlines() if "ignored: --tokenizer" not in line)
    assert said in error
    assert not (tmp_path / "weights.npz").exists()
