"""Hints over HTTP: what is wrong is answered as the client's error, and what is said moves what is evicted."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import openai
import pytest
import requests

from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.servers import POOL

pytestmark = pytest.mark.live

ANSWER = 4


def generate(server: Server, prompt: Sequence[int], custom_params: Any = None) -> requests.Response:
    params = {"max_new_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
    if custom_params is not None:
        params["custom_params"] = custom_params
    return requests.post(
        f"{server.base_url}/generate", json={"input_ids": list(prompt), "sampling_params": params}, timeout=120
    )


def cached(response: requests.Response) -> int:
    assert response.ok, response.text
    tokens: int = response.json()["meta_info"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize(
    ("said", "named"),
    [({"returns_in_s": -3}, "tlru.returns_in_s -3"), ({"forever": True}, "tlru.forever"), ("yes", 'tlru "yes"')],
)
def test_a_wrong_hint_is_a_bad_request_that_names_the_field(our_server: Server, said: Any, named: str) -> None:
    native = generate(our_server, [1, 2, 3], {"tlru": said})
    assert native.status_code == 400
    assert named in native.text.replace('\\"', '"')
    client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
    for body in ({"tlru": said}, {"custom_params": {"tlru": said}}):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model="default", prompt=[1, 2, 3], max_tokens=ANSWER, extra_body=body)
        assert named in str(error.value).replace('\\"', '"')


@pytest.mark.parametrize("openai_client", [False, True])
def test_a_conversation_that_has_ended_gives_way_to_an_older_one(our_server: Server, openai_client: bool) -> None:
    requests.post(f"{our_server.base_url}/flush_cache", timeout=60).raise_for_status()
    rng = random.Random(5 + openai_client)  # prompts that nobody else has sent
    older, ended, newer = ([rng.randrange(VOCABULARY) for _ in range(POOL * 2 // 5)] for _ in range(3))
    generate(our_server, older)
    hints = {"tlru": {"conversation_ends": True}}
    if openai_client:
        client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="default", prompt=ended, max_tokens=ANSWER, extra_body=hints)
    else:
        generate(our_server, ended, hints)
    generate(our_server, newer)
    assert cached(generate(our_server, older)) >= len(older) - 1
    assert cached(generate(our_server, ended)) < len(ended) * 3 // 4


def test_the_stock_server_takes_what_ours_takes(stock_server: Server) -> None:
    assert generate(stock_server, [1, 2, 3], {"tlru": {"conversation_ends": True}}).ok


def test_several_answers_to_one_prompt_are_so_many_requests(our_server: Server) -> None:
    """SGLang asks for none at first, to have the prompt cached for them: nobody's turn."""
    served = "sglang:tlru_requests_total"
    before = our_server.get_metrics()[served]
    client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
    reply = client.completions.create(model="default", prompt=[1, 2, 3] * 100, max_tokens=ANSWER, n=3)
    assert len(reply.choices) == 3
    deadline = time.monotonic() + 60
    while our_server.get_metrics()[served] < before + 3 and time.monotonic() < deadline:
        time.sleep(0.2)  # gauges follow a step behind
    assert our_server.get_metrics()[served] == before + 3
