"""Hints over HTTP: what is wrong is answered as the client's error, and what is said moves what is evicted."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import openai
import pytest
import requests

from eval.live.server import Server
from radix_tlru.tools.demo_model import VOCABULARY
from tests.helpers.paths import REPOSITORY
from tests.helpers.servers import POOL, PRIORITY

pytestmark = pytest.mark.live

ANSWER = 4
MESSAGE = {"role": "user", "content": "a"}


def generate(
    server: Server, prompt: Sequence[int], custom_params: Any = None, headers: Any = None, **top: Any
) -> requests.Response:
    params = {"max_new_tokens": ANSWER, "ignore_eos": True, "temperature": 0}
    if custom_params is not None:
        params["custom_params"] = custom_params
    body = {"input_ids": list(prompt), "sampling_params": params, **top}
    return requests.post(f"{server.base_url}/generate", json=body, headers=headers, timeout=120)


SEEDS = itertools.count(10_000)  # other files ask with those below


def new_prompts(*lengths: int) -> list[list[int]]:
    """Prompts of these lengths that no test has sent before: hints say nothing of what conversations share."""
    rng = random.Random(next(SEEDS))
    return [[rng.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def cached(response: requests.Response) -> int:
    assert response.ok, response.text
    tokens: int = response.json()["meta_info"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"tlru": {"returns_in_s": -3}}, "tlru.returns_in_s -3"),
        ({"tlru": {"forever": True}}, "tlru.forever"),
        ({"tlru": "yes"}, 'tlru "yes"'),
        ({"retention_seconds": "long"}, 'retention_seconds "long"'),
        ({"retention": [{"priority": 101}]}, "retention[0].priority 101"),
        (
            {"kv_cache_retention_config": {"decode_retention_priority": -1}},
            "kv_cache_retention_config.decode_retention_priority -1",
        ),
        ({"nvext": {"agent_hints": {"osl": -1}}}, "nvext.agent_hints.osl -1"),
    ],
)
def test_a_wrong_hint_is_a_bad_request_that_names_the_field(our_server: Server, said: Any, named: str) -> None:
    for native in (generate(our_server, [1, 2, 3], said), generate(our_server, [1, 2, 3], **said)):
        assert native.status_code == 400
        assert named in native.text.replace('\\"', '"')
    client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
    for body in (said, {"custom_params": said}):
        with pytest.raises(openai.BadRequestError) as error:
            client.completions.create(model="default", prompt=[1, 2, 3], max_tokens=ANSWER, extra_body=body)
        assert named in str(error.value).replace('\\"', '"')


DEEP = 1_000
"""Lists or objects in each other: SGLang reads so many, and Python's ``json`` does not."""


@pytest.mark.parametrize("said", ["[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP], ids=["list", "object"])
@pytest.mark.parametrize("field", ["tlru", "retention", "kv_cache_retention_config", "nvext"])
def test_a_hint_that_is_nested_deeply_is_a_bad_request_or_not_looked_at(
    our_server: Server, field: str, said: str
) -> None:
    hint = f'"{field}": {said}'
    for path, body in (
        ("generate", f'{{"input_ids": [1], "sampling_params": {{"max_new_tokens": 1, "custom_params": {{{hint}}}}}}}'),
        ("generate", f'{{"input_ids": [1], "sampling_params": {{"max_new_tokens": 1}}, {hint}}}'),
        ("v1/completions", f'{{"model": "default", "prompt": [1], "max_tokens": 1, {hint}}}'),
    ):
        headers = {"Content-Type": "application/json"}
        reply = requests.post(f"{our_server.base_url}/{path}", data=body, headers=headers, timeout=60)
        if field == "nvext" and said.startswith("{"):  # what a client says to Dynamo's router
            assert reply.status_code == 200
        else:
            assert reply.status_code == 400
            assert f'"{field}' in reply.text
            assert "must be" in reply.text


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("forever", 'header x-tlru: text "forever"'),
        ('{"forever": true}', "header x-tlru: forever true"),
        ('{"retention_seconds": -1}', "header x-tlru: retention_seconds -1"),
    ],
)
def test_a_wrong_header_is_a_bad_request_that_names_the_field(our_server: Server, text: str, named: str) -> None:
    wrong = {"X-TLRU": text}
    native = generate(our_server, [1, 2, 3], headers=wrong)
    assert native.status_code == 400
    assert named in native.text.replace('\\"', '"')
    client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(
                model="default",
                messages=[{"role": "user", "content": "a"}],
                max_tokens=ANSWER,
                stream=stream,
                extra_headers=wrong,
            )
        assert named in str(error.value).replace('\\"', '"')


@pytest.mark.parametrize("in_header", [False, True], ids=["body", "header"])
@pytest.mark.parametrize(("endpoint", "said"), [("chat", {"messages": [MESSAGE]}), ("generate", {"prompt": "a"})])
def test_a_wrong_hint_is_a_bad_request_to_an_ollama_client(
    our_server: Server, endpoint: str, said: Any, in_header: bool
) -> None:
    wrong = {"retention_seconds": "long"}
    headers = {"X-TLRU": json.dumps(wrong)} if in_header else None
    for stream in (False, True):
        body = {"model": "default", "stream": stream, **said, **({} if in_header else wrong)}
        reply = requests.post(f"{our_server.base_url}/api/{endpoint}", json=body, headers=headers, timeout=60)
        assert reply.status_code == 400
        assert 'retention_seconds "long": must be' in reply.text.replace('\\"', '"')


def without_custom_parameters(server: Server, endpoint: str, text: str, **said: Any) -> requests.Response:
    """A request to an endpoint whose requests have none; a character is a token."""
    model = requests.get(f"{server.base_url}/v1/models", timeout=60).json()["data"][0]["id"]
    body: dict[str, Any] = {
        "responses": {"input": text, "max_output_tokens": ANSWER},
        "messages": {"messages": [{"role": "user", "content": text}], "max_tokens": ANSWER},
    }[endpoint]
    headers = said.pop("headers", None)
    return requests.post(
        f"{server.base_url}/v1/{endpoint}", json={"model": model, **body, **said}, headers=headers, timeout=120
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_a_wrong_hint_is_a_bad_request_where_there_are_no_custom_parameters(
    our_server: Server, endpoint: str, stream: bool
) -> None:
    wrong = {"retention_seconds": "long"}
    for said, named in (
        (wrong, 'retention_seconds "long"'),
        ({"headers": {"X-TLRU": json.dumps(wrong)}}, 'header x-tlru: retention_seconds "long"'),
    ):
        reply = without_custom_parameters(our_server, endpoint, "a", stream=stream, **said)
        assert reply.status_code == 400
        assert named in reply.text.replace('\\"', '"')


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["responses", "messages"])
def test_a_conversation_that_has_ended_gives_way_where_there_are_no_custom_parameters(
    our_server: Server, endpoint: str, stream: bool
) -> None:
    requests.post(f"{our_server.base_url}/flush_cache", timeout=60).raise_for_status()
    older, newer = new_prompts(*[POOL * 2 // 5] * 2)
    ended = "".join(random.Random(next(SEEDS)).choices("abcdefgh", k=POOL * 2 // 5))
    generate(our_server, older)
    ends = {"tlru": {"conversation_ends": True}}
    assert without_custom_parameters(our_server, endpoint, ended, stream=stream, **ends).ok
    generate(our_server, newer)
    assert cached(generate(our_server, older)) >= len(older) - 1


@pytest.mark.parametrize("in_header", [False, True], ids=["body", "header"])
@pytest.mark.parametrize("openai_client", [False, True], ids=["requests", "openai"])
def test_a_conversation_that_has_ended_gives_way_to_an_older_one(
    our_server: Server, openai_client: bool, in_header: bool
) -> None:
    requests.post(f"{our_server.base_url}/flush_cache", timeout=60).raise_for_status()
    older, ended, newer = new_prompts(*[POOL * 2 // 5] * 3)
    generate(our_server, older)
    hints = {"tlru": {"conversation_ends": True}}
    headers = {"X-TLRU": json.dumps(hints)} if in_header else None
    if openai_client:
        client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
        said = {"extra_headers": headers} if in_header else {"extra_body": hints}
        client.completions.create(model="default", prompt=ended, max_tokens=ANSWER, **said)
    else:
        generate(our_server, ended, None if in_header else hints, headers)
    generate(our_server, newer)
    assert cached(generate(our_server, older)) >= len(older) - 1
    assert cached(generate(our_server, ended)) < len(ended) * 3 // 4


LEAST = {"token_start": 0, "token_end": None, "priority": 0}
GOES_FIRST = {
    "priority": {"priority": -PRIORITY},
    "retention": {"retention": [LEAST]},
    "kv_cache_retention_config": {
        "kv_cache_retention_config": {"token_range_retention_configs": [LEAST], "decode_retention_priority": 0}
    },
    "nvext": {"nvext": {"agent_hints": {"priority": -PRIORITY, "osl": ANSWER, "speculative_prefill": True}}},
}


@pytest.mark.parametrize("field", GOES_FIRST)
@pytest.mark.parametrize("openai_client", [False, True], ids=["requests", "openai"])
def test_what_a_field_of_another_system_calls_least_gives_way_to_an_older_one(
    our_server: Server, field: str, openai_client: bool
) -> None:
    requests.post(f"{our_server.base_url}/flush_cache", timeout=60).raise_for_status()
    older, least, newer = new_prompts(*[POOL * 2 // 5] * 3)
    generate(our_server, older)
    if openai_client:
        client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="default", prompt=least, max_tokens=ANSWER, extra_body=GOES_FIRST[field])
    else:
        assert generate(our_server, least, **GOES_FIRST[field]).ok
    generate(our_server, newer)
    assert cached(generate(our_server, older)) >= len(older) - 1
    assert cached(generate(our_server, least)) < len(least) * 3 // 4


def test_seconds_of_retention_keep_an_old_one_while_younger_ones_go(our_server: Server) -> None:
    """5 · 304 + 1,104 + 1,604 tokens are over 4,000, trimmed as they are: of the oldest prompt some 220 would go.

    They go of the next one, which is hardly younger: how often a busy server looks up what waits makes no difference.
    """
    found = []
    for hints in ({}, {"retention_seconds": 600}, {"priority": PRIORITY, "retention_seconds": 600}):
        requests.post(f"{our_server.base_url}/flush_cache", timeout=60).raise_for_status()
        oldest, *younger = new_prompts(*[POOL // 5] * 5, *[POOL * 2 // 5] * 2)
        client = openai.OpenAI(base_url=f"{our_server.base_url}/v1", api_key="none", max_retries=0)
        client.completions.create(model="default", prompt=oldest, max_tokens=ANSWER, extra_body=hints)
        for prompt in younger:
            assert generate(our_server, prompt).ok
        found.append(cached(generate(our_server, oldest)))
    without, alone, beside_a_priority = found
    assert without < alone
    assert beside_a_priority == alone


def test_the_examples_of_the_readme_run(our_server: Server) -> None:
    text = (REPOSITORY / "radix_tlru" / "sglang" / "README.md").read_text()
    section = text.partition("## Hints")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert [block.split()[:2] for block in blocks] == [["import", "openai"], ["import", "requests"], ["said", "="]]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace("http://127.0.0.1:30000", our_server.base_url), names)  # each raises what a server refuses


def test_the_stock_server_takes_what_ours_takes(stock_server: Server) -> None:
    assert generate(stock_server, [1, 2, 3], {"tlru": {"conversation_ends": True}}).ok
    client = openai.OpenAI(base_url=f"{stock_server.base_url}/v1", api_key="none", max_retries=0)
    for hints in GOES_FIRST.values():
        client.completions.create(model="default", prompt=[1, 2, 3], max_tokens=ANSWER, extra_body=hints)


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
