"""A model of windowed and full attention, served: its answers are its own, and its turns go whole, in our order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY, write_demo_model
from tests.helpers.servers import NEXT_PROMPT, OURS, POOL, THRESHOLD, UNCHECKED, assert_unharmed, evicted, serve
from tests.helpers.talk import ANSWER, Conversation, ask, body, cached, crowd, histories

pytestmark = pytest.mark.live

WINDOW, LAYERS = 64, 4


def write_windowed_model(directory: Path) -> Any:
    """A tiny Mellum of random weights, whose every other layer sees 64 tokens; returns it as transformers has it."""
    write_demo_model(directory)
    config = AutoConfig.for_model(
        "mellum",
        vocab_size=VOCABULARY,
        num_hidden_layers=LAYERS,
        layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
        mlp_layer_types=["dense"] * LAYERS,
        sliding_window=WINDOW,
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=32_768,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    save_file(model.state_dict(), directory / "model.safetensors", {"format": "pt"})
    served = {**config.to_dict(), "architectures": ["MellumForCausalLM"], "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(served))
    return model


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    directory = tmp_path_factory.mktemp("models") / "windowed"
    return directory, write_windowed_model(directory)


@pytest.fixture(scope="module")
def ours(windowed: tuple[Path, Any]) -> Iterator[Server]:
    with serve(windowed[0], "windowed-ours", *OURS) as server:
        yield server


@pytest.fixture(scope="module")
def stock(windowed: tuple[Path, Any]) -> Iterator[Server]:
    with serve(windowed[0], "windowed-stock", **UNCHECKED) as server:
        yield server


def test_it_answers_as_transformers_does(ours: Server, windowed: tuple[Path, Any]) -> None:
    said = Conversation(1)
    for tokens in (5 * WINDOW, WINDOW // 2):  # a prompt, and one that finds it cached
        prompt = said.ask(tokens)
        [reply] = ask(ours, [body(prompt)])
        given = torch.tensor([prompt])
        expected = windowed[1].generate(given, max_new_tokens=ANSWER, do_sample=False, pad_token_id=0)[0, len(prompt) :]
        assert reply["output_ids"] == expected.tolist()
        said.history += tuple(reply["output_ids"])
    assert cached(reply) == 5 * WINDOW + ANSWER - 1


OLDER, EARLIER, LATER, PRESSURE = 1_500, 1_500, 400, 900


def found_after_pressure(server: Server) -> tuple[int, int]:
    """What the next turns of two conversations find, the older of one turn and the newer of two, after a third came."""
    found = []
    for which in (0, 1):
        server.flush_cache()
        older, newer, other = map(Conversation, range(3))
        for conversation, tokens in ((older, OLDER), (newer, EARLIER), (newer, LATER), (other, PRESSURE)):
            conversation.turn(server, tokens)
        found.append((older, newer)[which].turn(server, 50))
    return found[0], found[1]


def test_a_turn_that_can_be_spared_goes_before_an_older_conversation(ours: Server, stock: Server) -> None:
    end_of_older, end_of_earlier = OLDER + ANSWER - 1, EARLIER + ANSWER - 1
    end_of_later = EARLIER + ANSWER + LATER + ANSWER - 1
    missing = end_of_older + end_of_later + PRESSURE - POOL
    assert end_of_later + NEXT_PROMPT - THRESHOLD <= end_of_earlier  # what is left of the newer is all it needs
    # Enough for the third, with the answer to the older: a leaf of its own, that can be spared as well.
    assert ANSWER - 1 < missing <= end_of_later - end_of_earlier
    assert found_after_pressure(ours) == (OLDER, end_of_earlier)
    assert found_after_pressure(stock) == (0, end_of_later)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_crowd_is_answered_as_by_stock_and_nothing_is_lost(ours: Server, stock: Server, seed: int) -> None:
    before = evicted(ours)
    named: list[dict[str, Any]] = [{}] * 12
    said = [histories(crowd(server, named, seed)) for server in (ours, stock)]
    assert said[0] == said[1]
    assert evicted(ours) - before > POOL
    for server in (ours, stock):
        assert_unharmed(server, POOL)
