"""What `radix-tlru warm` asks a server for, and what it makes of the answers."""

from __future__ import annotations

import json
import time
from collections import UserDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from radix_tlru.cli import main
from radix_tlru.tools.http import ServerError
from radix_tlru.tools.prompts import Prompt
from radix_tlru.tools.warm import Warmed, Warmer
from tests.helpers.answering import INFO, SERVED, TOKENS, answering

ANSWERS = {"/server_info": (200, json.dumps(INFO)), "/v1/tokenize": TOKENS, "/generate": SERVED}
ONCE = Prompt("row 1", "once", text="Once")


class InTurn(UserDict[str, tuple[int, str]]):
    """Of the prompts that are asked for, so many tokens were cached; None: that one is answered by an error."""

    def __init__(self, *cached: int | None, **info: int) -> None:
        super().__init__({**ANSWERS, "/server_info": (200, json.dumps({**INFO, **info}))})
        self._cached = list(cached)

    def get(self, path: str, default: Any = None) -> Any:
        if path != "/generate":
            return super().get(path, default)
        tokens = self._cached.pop(0)
        return (503, "busy") if tokens is None else (200, json.dumps({"meta_info": {"cached_tokens": tokens}}))


def asked(heard: Sequence[tuple[str, bytes]], path: str) -> list[Any]:
    return [json.loads(body) for at, body in heard if at == path]


def ids(count: int, **fields: Any) -> Prompt:
    return Prompt("row 1", f"{count} ids", input_ids=[7] * count, **fields)


@pytest.mark.parametrize(
    ("prompt", "body"),
    [
        (ONCE, {"prompt": "Once"}),
        (
            Prompt("row 1", "chat", messages=[{"role": "user"}]),
            {"messages": [{"role": "user"}], "add_generation_prompt": False},
        ),
        (
            Prompt("row 1", "tools", messages=[{"role": "user"}], tools=[{"type": "function"}]),
            {"messages": [{"role": "user"}], "add_generation_prompt": False, "tools": [{"type": "function"}]},
        ),
    ],
    ids=["text", "chat", "chat with tools"],
)
def test_a_server_makes_the_tokens_of_a_prompt_of_all_that_begins_it(prompt: Prompt, body: Any) -> None:
    heard: list[tuple[str, bytes]] = []
    with answering(ANSWERS, heard=heard) as url:
        Warmer(url, [prompt]).warm()
    assert asked(heard, "/v1/tokenize") == [body]
    once = {"max_new_tokens": 1, "temperature": 0.0}
    assert asked(heard, "/generate") == [{"input_ids": [1, 2], "sampling_params": once}]


def test_of_ids_the_greatest_is_asked_about_before_they_are_asked_for() -> None:
    heard: list[tuple[str, bytes]] = []
    with answering(ANSWERS, heard=heard) as url:
        Warmer(url, [Prompt("row 1", "ids", input_ids=[5, 9, 7], cache_salt="a")]).warm()
    check, prompt = asked(heard, "/generate")
    assert (check["input_ids"], check["sampling_params"], check["token_ids_logprob"]) == (
        [5],
        {"max_new_tokens": 0},
        [9],
    )
    assert (prompt["input_ids"], prompt["cache_salt"]) == ([5, 9, 7], "a")


def test_prompts_may_be_as_long_as_the_server_takes_and_fill_a_quarter_of_its_pool() -> None:
    """Requests of 600 tokens, and a pool of 4,000."""
    with answering({**ANSWERS, "/server_info": (200, json.dumps({**INFO, "max_req_input_len": 600}))}) as url:
        assert Warmer(url, [ids(600), ids(400)]).tokens == 1_000
        for prompts, said in (
            ([ids(601)], r"^row 1: 601 tokens: must be at most 600$"),
            (
                [ids(600), ids(401)],
                r"^row 1: 1,001 tokens of prompts up to here: must be at most 1,000, 25% of the pool$",
            ),
        ):
            with pytest.raises(ServerError, match=said):
                Warmer(url, prompts)


def test_an_adapter_is_one_that_the_server_has() -> None:
    models = {"data": [{"id": "base"}, {"id": "poet", "parent": "base"}]}
    heard: list[tuple[str, bytes]] = []
    with answering({**ANSWERS, "/v1/models": (200, json.dumps(models))}, heard=heard) as url:
        Warmer(url, [ids(2, lora_path="poet")]).warm()
        assert asked(heard, "/generate")[-1]["lora_path"] == "poet"
        with pytest.raises(ServerError, match=r"^row 1: lora_path base: must be one of poet$"):
            Warmer(url, [ONCE, ids(2, lora_path="base")])


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"data": [{"id": "base"}]}, r"^row 1: lora_path base: must be left out: the server has no adapters$"),
        ({"data": []}, r"^row 1: lora_path base: must be left out: the server has no adapters$"),
        ({"data": [1]}, r"/v1/models: is no SGLang server"),
    ],
)
def test_where_a_server_names_no_adapter_none_is_asked_for(models: Any, said: str) -> None:
    answers = {**ANSWERS, "/v1/models": (200, json.dumps(models))}
    with answering(answers) as url, pytest.raises(ServerError, match=said):
        Warmer(url, [ids(2, lora_path="base")])


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (404, '{"error": {"message": "no such model"}}', "no such model"),
        (400, '["no"]', '["no"]'),
        (400, '{"error": "no"}', '{"error": "no"}'),
        (503, "", "Service Unavailable"),
    ],
)
def test_whatever_a_server_refuses_a_prompt_with_is_told(status: int, text: str, said: str) -> None:
    with answering({**ANSWERS, "/v1/tokenize": (status, text)}) as url, pytest.raises(ServerError) as refused:
        Warmer(url, [ONCE])
    assert str(refused.value) == f"row 1: text: {url}/v1/tokenize: HTTP {status}: {said}"


def test_a_prompt_was_cached_as_far_as_on_the_replica_that_had_least_of_it() -> None:
    with answering(InTurn(2, 0, 1, dp_size=3)) as url:
        assert Warmer(url, [ONCE]).warm() == [Warmed("once", 2, 0)]


def test_once_it_is_over_no_further_prompt_is_asked_for() -> None:
    heard: list[tuple[str, bytes]] = []
    with answering(ANSWERS, heard=heard) as url:
        warmer = Warmer(url, [ONCE, ONCE, ONCE])
        found = warmer.warm(lambda: bool(asked(heard, "/generate")))
    assert found == [Warmed("once", 2, 0)]
    assert len(asked(heard, "/generate")) == 1


def test_of_a_prompt_that_is_warm_the_last_page_at_most_is_prefilled_again() -> None:
    with answering(InTurn(page_size=16)) as url:
        warmer = Warmer(url, [ONCE])
    assert warmer.gone([Warmed("a", 100, 84), Warmed("b", 100, 83), Warmed("c", 50, 0)]) == 17 + 50


def test_rounds_go_on_though_one_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"name": "once", "text": "Once"}\n')
    waits: list[float] = []

    def wait(seconds: float) -> None:
        if len(waits) == 2:
            raise KeyboardInterrupt
        waits.append(seconds)

    with answering(InTurn(0, 0, None, 2)) as url:
        assert main(["warm", url, str(file)]) == 0
        table = capsys.readouterr().out
        assert [line.split() for line in table.splitlines()] == [
            ["prompt", "tokens", "cached", "before"],
            ["once", "2", "0"],
            ["2", "tokens,", "0.1%", "of", "the", "pool"],
        ]
        monkeypatch.setattr(time, "sleep", lambda seconds: wait(seconds) if seconds else None)  # the server has 0 s
        assert main(["warm", url, str(file), "--every", "7"]) == 0
    assert waits == [7.0, 7.0]
    assert capsys.readouterr().out.removeprefix(table).splitlines() == [
        f"radix-tlru: error: {url}/generate: HTTP 503: busy",
        "0 of 2 tokens were gone and are prefilled again",
    ]


@pytest.mark.parametrize("change", [{"model_path": "b"}, {"startup_time": {"load_weight": 2.0}}, {"dp_size": 2}])
def test_a_server_that_was_started_again_is_asked_what_it_makes_of_the_prompts(
    change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another model the tokens are others, and one that knows fewer ids refuses the check of them."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    began = {**INFO, "model_path": "a", "startup_time": {"load_weight": 1.0}}
    answers, heard = {**ANSWERS, "/server_info": (200, json.dumps(began))}, list[tuple[str, bytes]]()
    later = [
        {"/server_info": (200, json.dumps({**began, **change})), "/v1/tokenize": (200, '{"tokens": [3, 4, 5]}')},
        {},
        {"/server_info": (200, json.dumps({**INFO, "max_req_input_len": 2}))},
    ]

    def wait(seconds: float) -> None:
        if not seconds:  # the server has 0 s
            return
        if not later:
            raise KeyboardInterrupt
        answers.update(later.pop(0))

    monkeypatch.setattr(time, "sleep", wait)
    with answering(answers, heard=heard) as url:
        assert main(["warm", url, str(file), "--every", "7"]) == 0
    prompts = [each["input_ids"] for each in asked(heard, "/generate")]
    assert prompts == [[1, 2]] + [[3, 4, 5]] * (2 * change.get("dp_size", 1))
    assert len(asked(heard, "/v1/tokenize")) == 3
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "3 of 3 tokens were gone and are prefilled again",
        f"radix-tlru: error: {file}, row 1: 3 tokens: must be at most 2",
    ]


def test_a_server_with_a_key_is_given_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Once"}\n')
    with answering(ANSWERS, key="sesame") as url:
        assert main(["warm", url, str(file), "--api-key", "sesame"]) == 0
        assert capsys.readouterr().err == ""
        for wrong in ([], ["--api-key", "mellon"]):
            assert main(["warm", url, str(file), *wrong]) == 2
            said = f"radix-tlru: error: {url}/server_info: the server wants its key; give --api-key\n"
            assert capsys.readouterr().err == said
