"""Sessions over HTTP: a client names its session with each request, and closes it when it is done."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
import requests

from eval.__main__ import main
from eval.live.replay.load import load_from
from eval.live.replay.predict import fitted_line, measured_points, predict
from eval.live.replay.rows import Folder
from eval.live.server import Server
from eval.traces import open_trace
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.servers import NEXT_PROMPT, OURS, POOL, THRESHOLD, assert_all_is_given_back, complaints, serve
from tests.helpers.talk import answer_to

pytestmark = pytest.mark.live

ANSWER = 8

AGENTS = (
    "agents:runs={0},arrival_span_s={0},templates=3,template_median=200,first_prompt_median=150,first_prompt_sigma=0.7,"
    "next_prompt_median=100,answer_median=6,wait_median_s=4"
)


@pytest.fixture(scope="module")
def server(weighted_model: Path) -> Iterator[Server]:
    with serve(weighted_model, "radix-sessions", *OURS, "--enable-session-radix-cache") as server:
        yield server
        assert complaints(server) == []


def generate(server: Server, prompt: Sequence[int], session: str | None = None) -> Any:
    sampling = {"max_new_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
    body = {"input_ids": list(prompt), "session_id": session, "sampling_params": sampling, "return_logprob": True}
    reply = requests.post(f"{server.base_url}/generate", json=body, timeout=120)
    assert reply.ok, reply.text
    return reply.json()


def close(server: Server, session: str) -> None:
    reply = requests.post(f"{server.base_url}/close_session", json={"session_id": session}, timeout=60)
    assert reply.ok, reply.text


def cached(server: Server, prompt: Sequence[int]) -> int:
    tokens: int = generate(server, prompt)["meta_info"]["cached_tokens"]
    return tokens


def prompts(seed: int, *lengths: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def test_what_is_in_no_open_session_goes_first_and_a_closed_one_before_that(server: Server) -> None:
    server.flush_cache()
    first, plain, second, third = prompts(1, 1_300, 1_300, 1_300, 1_250)
    generate(server, first, "first")
    generate(server, plain)
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0)
    client.completions.create(model="default", prompt=second, max_tokens=ANSWER, extra_body={"session_id": "second"})
    generate(server, third, "third")  # for which there is no room but what the plain one has
    assert cached(server, first) == 1_299
    assert cached(server, second) == 1_299
    assert cached(server, third) == 1_249
    close(server, "first")
    (fourth,) = prompts(2, 1_200)
    generate(server, fourth, "fourth")
    assert cached(server, second) == 1_299
    assert cached(server, third) == 1_249
    assert cached(server, first) < 300
    for session in ("second", "third", "fourth", "nobody's"):
        close(server, session)
    assert_all_is_given_back(server, POOL)


def test_tails_go_first_and_answers_are_as_stocks(server: Server, stock_server: Server) -> None:
    server.flush_cache()
    before = server.get_metrics()["sglang:tlru_splits_total"]
    rng, histories = random.Random(3), {f"agent {number}": list[int]() for number in range(6)}
    for turn in range(24):
        name = f"agent {rng.randrange(6)}"
        histories[name] += prompts(turn, rng.randrange(50, 500))[0]
        reply = generate(server, histories[name], name)
        stock = answer_to(stock_server, tuple(histories[name]))
        ours = [value for value, *_ in reply["meta_info"]["output_token_logprobs"]]
        assert ours == pytest.approx(stock.log_probabilities[:ANSWER], abs=1e-4)
        histories[name] += reply["output_ids"]
        if turn % 5 == 4:
            close(server, name)
            histories[name] = []
    assert server.get_metrics()["sglang:tlru_splits_total"] > before
    for name in histories:
        close(server, name)
    assert_all_is_given_back(server, POOL)


@pytest.mark.long
@pytest.mark.parametrize("runs", [15, 40])
def test_a_replay_closes_what_the_trace_says_and_real_caches_foretell_it(
    server: Server, tmp_path: Path, runs: int
) -> None:
    trace = AGENTS.format(runs)
    arms = ("--url", f"ours={server.base_url}", "--sessions", "--users", "1", "--loop", "ordered", "--speed", "10")
    objective = ("--threshold", str(THRESHOLD), "--next-prompt-estimate", str(NEXT_PROMPT))
    assert main(["replay", "--trace", trace, *arms, *objective, "--out", str(tmp_path)]) == 0
    folder = Folder(tmp_path)
    assert all(row.error is None for row in folder.rows("ours", 0))
    assert "release_session conversation 0: " in server.log_path.read_text(errors="replace")
    timing = fitted_line(measured_points(folder))
    assert timing is not None
    [prediction], not_made = predict(folder, load_from(open_trace(trace).requests), timing)
    assert not not_made
    assert (prediction.same_tokens, prediction.predicted_uncached) == (1.0, prediction.uncached)
    assert "requests name their sessions" in (tmp_path / "replay.html").read_text()


def test_sessions_that_are_closed_while_they_run_lose_nothing(server: Server) -> None:
    """By another client that uses the same name, or one that guesses it."""
    server.flush_cache()

    def agent(number: int) -> None:
        rng, history = random.Random(number), list[int]()
        for turn in range(8):
            history += [rng.randrange(VOCABULARY) for _ in range(rng.randrange(50, 400))]
            history += generate(server, history, f"agent {number % 4}")["output_ids"]
            if turn % 3 == number % 3:
                close(server, f"agent {rng.randrange(5)}")
                history = history[: rng.randrange(len(history))]

    with ThreadPoolExecutor(8) as agents:
        list(agents.map(agent, range(8)))
    for number in range(5):
        close(server, f"agent {number}")
    assert_all_is_given_back(server, POOL)
    assert generate(server, [1, 2, 3], "agent 0")["meta_info"]["completion_tokens"] == ANSWER
