"""What is put with a request, however it comes: on SGLang's own records, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import HTTPException
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from sglang.srt.entrypoints.grpc_bridge import _GrpcRequest
from sglang.srt.entrypoints.http_server import ORJSONRequest
from sglang.srt.entrypoints.openai.protocol import ResponsesRequest
from sglang.srt.managers.io_struct import GenerateReqInput, TokenizedEmbeddingReqInput
from sglang.srt.managers.tokenizer_manager import ReqState, TokenizerManager
from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
from sglang.srt.sampling.sampling_params import SamplingParams

from radix_tlru import Config
from radix_tlru.hints.schema import HIGHEST, LONGEST_S, Hints, Range
from radix_tlru.objective.overhead import FirstToken
from radix_tlru.sglang.requests import metadata
from tests.helpers.runs import Run


def manager(mode: str = "null", config: Config | None = None) -> Any:
    given = {"tokenizer_worker_num": 1, "disaggregation_mode": mode, "dp_size": 1}
    record = SimpleNamespace(_radix_tlru_config=config or Config(), **given)
    return SimpleNamespace(server_args=record, rid_to_state={"r": SimpleNamespace()}, preferred_sampling_params=None)


def tokenized(custom_params: Any = None, **fields: Any) -> Any:
    params = SamplingParams(custom_params=custom_params)
    return SimpleNamespace(rid="r", sampling_params=params, **fields)


def test_a_request_for_an_embedding_is_stamped() -> None:
    assert "stream" not in TokenizedEmbeddingReqInput.__struct_fields__
    asked = tokenized()
    metadata.add_metadata(asked, manager())
    assert metadata.metadata_of(asked).stamp is not None


def test_a_request_of_a_server_without_our_flags_is_left_as_it_is() -> None:
    asked, stock = tokenized({"tlru": 5}), manager()
    stock.server_args._radix_tlru_config = None
    metadata.add_metadata(asked, stock)
    assert asked.sampling_params.custom_params == {"tlru": 5}


@pytest.mark.parametrize(
    ("config", "workers", "kind", "reports"),
    [
        (Config(), 1, {"stream": True}, True),
        (Config(), 2, {"stream": True}, False),
        (Config(threshold=600), 1, {"stream": True}, False),
        (Config(), 1, {"stream": False}, False),
        (Config(), 1, {}, False),
    ],
    ids=["learned", "several processes", "pinned", "not streamed", "an embedding"],
)
def test_first_tokens_are_reported_where_they_are_learned_from_and_one_process_sees_all(
    config: Config, workers: int, kind: dict[str, bool], reports: bool
) -> None:
    taking, told = manager(config=config), []
    taking.server_args.tokenizer_worker_num = workers
    for number, rid in enumerate("ab", start=1):
        times = APIServerReqTimeStats()
        times.set_created_time(float(number))
        taking.rid_to_state[rid] = ReqState([], False, asyncio.Event(), GenerateReqInput(rid=rid), times)
        asked = tokenized(**kind)
        asked.rid = rid
        metadata.add_metadata(asked, taking)
        told.append(metadata.first_tokens_of(asked))
        times.set_first_token_time(number + 0.25)
        times.set_response_sent_to_client_time(number + 0.25)
    assert told == [(), (FirstToken("a", 250.0),) if reports else ()]


def test_a_report_of_a_first_token_waits_for_a_request_that_no_scheduler_drops_as_it_does_health_checks() -> None:
    """Where SGLang is asked for its health more often than for answers, none would arrive."""
    taking, told, check = manager(config=Config()), [], HEALTH_CHECK_RID_PREFIX
    for number, rid in enumerate(["a", f"{check}_1", "b", f"{check}_2", "c"], start=1):
        times = APIServerReqTimeStats()
        times.set_created_time(float(number))
        taking.rid_to_state[rid] = ReqState([], False, asyncio.Event(), GenerateReqInput(rid=rid), times)
        asked = tokenized(stream=not rid.startswith(check))
        asked.rid = rid
        metadata.add_metadata(asked, taking)
        told.append(metadata.first_tokens_of(asked))
        if asked.stream:  # a check that is dropped gets no token, and is in flight for a second
            times.set_first_token_time(number + 0.25)
            times.set_response_sent_to_client_time(number + 0.25)
    assert told == [(), (), (FirstToken("a", 250.0),), (), (FirstToken("b", 250.0),)]


def test_of_what_is_prefilled_ahead_nothing_is_said_not_even_what_an_operator_prefers() -> None:
    asked = tokenized({"tlru": {"conversation_ends": True}, "mine": 1}, stream=True)

    def make() -> None:
        metadata.made_ahead.set(True)
        metadata.add_metadata(asked, manager())

    copy_context().run(make)
    assert set(asked.sampling_params.custom_params) == {metadata.KEY}
    told = metadata.metadata_of(asked)
    assert (told.hints, told.is_made_ahead) == (None, True)
    assert told.stamp is not None


def test_parameters_that_are_no_object_are_refused_where_a_client_can_be_told() -> None:
    with pytest.raises(ValueError, match=r"^custom_params 5: must be an object$"):
        metadata.add_metadata(tokenized(5, stream=True), manager())
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    with pytest.raises(ValueError, match=r"^custom_params \[{77}\.\.\.: must be an object$"):
        metadata.add_metadata(tokenized(deep, stream=True), manager())
    asked = tokenized(5, stream=True)
    metadata.add_metadata(asked, manager("prefill"))
    assert metadata.metadata_of(asked).stamp is not None


CONFIG = {
    "token_range_retention_configs": [{"token_start": 0, "token_end": None, "priority": 90, "duration_ms": 5_000}],
    "decode_retention_priority": 10,
}


def test_fields_of_other_systems_reach_the_scheduler_and_nothing_else_of_them_does() -> None:
    asked = tokenized({"kv_cache_retention_config": CONFIG, "mine": 1}, input_ids=[7] * 50, cache_salt="a", stream=True)
    metadata.add_metadata(asked, manager())
    hints = metadata.metadata_of(asked).hints
    assert hints is not None
    assert hints.retention == (Range(0, 50, 90, 5.0), Range(50, None, 10, LONGEST_S))
    assert set(asked.sampling_params.custom_params) == {"mine", metadata.KEY}
    assert asked.cache_salt == "a"


@pytest.mark.parametrize(("highest", "kept"), [(None, None), (10, (Range(0, None, HIGHEST, LONGEST_S),))])
def test_a_plain_priority_is_a_hint_where_the_server_says_so(highest: int | None, kept: Any) -> None:
    asked = tokenized(priority=10, input_ids=[7], stream=True)
    metadata.add_metadata(asked, manager(config=Config(highest_priority=highest)))
    hints = metadata.metadata_of(asked).hints
    assert (hints and hints.retention) == kept


async def retention_of(asked: GenerateReqInput) -> AsyncIterator[Any]:
    """What each request of a batch claims, as SGLang takes one in where a silent one has priority 5, and P is 10."""
    taking = manager(config=Config(threshold=600, highest_priority=10))
    taking.enable_priority_scheduling, taking.default_priority_value = True, 5
    asked.normalize_batch_and_arguments()
    metadata.note_priority(TokenizerManager._set_default_priority, taking, asked)
    for each in [asked] if asked.is_single else [asked[number] for number in range(asked.batch_size)]:
        assert each.priority is not None, "a scheduler is told one all the same"
        tokens = tokenized(**each.sampling_params, priority=each.priority, input_ids=each.input_ids, stream=True)
        metadata.add_metadata(tokens, taking)
        hints = metadata.metadata_of(tokens).hints
        yield hints and hints.retention


@pytest.mark.parametrize(("ids", "count"), [([7], 1), ([[7], [8], [9]], 3)], ids=["one request", "a batch"])
def test_a_priority_that_the_server_fills_in_is_not_the_clients(ids: Any, count: int) -> None:
    def claimed(priority: int | None = None, **said: Any) -> list[Any]:
        async def taken_in() -> list[Any]:
            params: Any = {"custom_params": said}
            asked = GenerateReqInput(input_ids=ids, sampling_params=params, priority=priority)
            return [each async for each in retention_of(asked)]

        return asyncio.run(taken_in())

    least = {"nvext": {"agent_hints": {"priority": -10}}}
    assert claimed() == [None] * count
    assert claimed(**least) == [(Range(0, None, 0, LONGEST_S),)] * count
    assert claimed(retention_seconds=60) == [(Range(0, None, HIGHEST, 60.0),)] * count
    assert claimed(5, retention_seconds=60) == [(Range(0, None, 68, 60.0),)] * count, "35 + 65 · 5 / 10, rounded"
    assert claimed(10, **least) == [(Range(0, None, HIGHEST, LONGEST_S),)] * count


def test_of_two_requests_that_were_made_before_either_was_taken_in_each_has_its_own_priority() -> None:
    """As a program may that streams from an Engine."""

    async def taken_in() -> list[Any]:
        said, silent = (retention_of(GenerateReqInput(input_ids=[7], priority=priority)) for priority in (10, None))
        return [await anext(said), await anext(silent)]

    assert asyncio.run(taken_in()) == [(Range(0, None, HIGHEST, LONGEST_S),), None]


def test_a_wrong_field_is_refused_by_name_where_a_client_can_be_told(caplog: pytest.LogCaptureFixture) -> None:
    said = {"nvext": {"agent_hints": {"osl": "long"}}}
    with pytest.raises(ValueError, match=r'^nvext\.agent_hints\.osl "long": must be a whole number'):
        metadata.add_metadata(tokenized(said, stream=True), manager())
    asked = tokenized(said, stream=True)
    metadata.add_metadata(asked, manager("prefill"))
    assert metadata.metadata_of(asked).hints is None
    (logged,) = caplog.messages
    assert logged.startswith('radix_tlru: a request is served without its hints: nvext.agent_hints.osl "long": must be')


def over_http(body: dict[str, Any], headers: dict[str, str] | None = None) -> ORJSONRequest:
    """A request with this body, which FastAPI has read."""

    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    sent = [(name.encode(), text.encode()) for name, text in (headers or {}).items()]
    request = ORJSONRequest({"type": "http", "headers": sent}, receive)
    asyncio.run(request.json())
    return request


def said_by(headers: dict[str, str], custom_params: Any = None, mode: str = "null", **top: Any) -> Any:
    """The hints that a scheduler is told of a request with these headers, custom parameters and fields beside them."""

    def tokenize(manager: Any, asked: Any, _request: Any) -> Any:
        metadata.add_metadata(asked, manager)
        return metadata.metadata_of(asked).hints

    raw = over_http(top, headers)
    return metadata.note_hints(tokenize, manager(mode), tokenized(custom_params, stream=True), raw)


def test_fields_at_the_top_of_a_body_are_read_with_those_among_custom_parameters() -> None:
    held = (Range(0, None, HIGHEST, 9.0),)
    assert said_by({}, retention_seconds=9).retention == held
    both = said_by({}, {"tlru": {"next_prompt_tokens": 5}, "mine": 1}, retention_seconds=9)
    assert (both.next_prompt_tokens, both.retention) == (5, held)
    assert said_by({}, user='"retention"', retention=None) is None, "a text that looks like a field is none"
    assert said_by({}, {"tlru": {}}, tlru=None) == Hints(), "nor is null"


def test_a_field_that_is_given_twice_is_refused_where_a_client_can_be_told() -> None:
    with pytest.raises(ValueError, match=r"^retention: must be given once, not in custom_params as well$"):
        said_by({}, {"retention": []}, retention=[])
    assert said_by({}, {"retention": []}, mode="prefill", retention=[]) is None


def test_what_an_operator_prefers_is_for_requests_that_say_nothing_themselves() -> None:
    """With ``--preferred-sampling-params`` SGLang fills in custom parameters, as if the client had given them."""
    preferred = {"retention_seconds": 60, "mine": 1}

    def kept_s(headers: dict[str, str], own: dict[str, Any] | None = None, **top: Any) -> list[float]:
        taking, asked = manager(), tokenized({**preferred, "thinking_budget": 7, **(own or {})}, stream=True)
        taking.preferred_sampling_params = {"custom_params": preferred}
        metadata.note_hints(lambda *_: metadata.add_metadata(asked, taking), taking, asked, over_http(top, headers))
        hints = metadata.metadata_of(asked).hints
        return [] if hints is None else [kept.duration_s for kept in hints.retention]

    assert kept_s({}) == [60.0]
    assert kept_s({}, retention_seconds=9) == [9.0], "and is not told that it gave that twice"
    assert kept_s({}, tlru={"conversation_ends": True}) == []
    assert kept_s({"x-tlru": '{"retention_seconds": 9}'}) == [9.0]
    assert kept_s({"x-tlru": "{}"}) == []
    assert kept_s({}, {"retention_seconds": 9}, tlru={}) == [9.0], "its own, in either place"


HELD = json.dumps({"retention_seconds": 60})


def test_a_header_says_what_a_body_without_hints_does_not() -> None:
    assert said_by({"x-tlru": HELD}, {"mine": 1}).retention == (Range(0, None, HIGHEST, 60.0),)
    assert said_by({"x-request-id-tlru": HELD}).retention == (Range(0, None, HIGHEST, 60.0),)
    assert said_by({"x-tlru": "{}"}) is None
    assert said_by({}) is None, "the header of the request before is not that of this one"


def test_of_a_body_and_a_header_the_body_is_believed() -> None:
    with pytest.raises(ValueError, match=r'^retention_seconds "long": must be'):
        said_by({"x-tlru": HELD}, {"retention_seconds": "long"})
    for text in (HELD, "not JSON"):
        assert said_by({"x-tlru": text}, {"tlru": {"conversation_ends": True}}).retention == ()
        assert said_by({"x-tlru": text}, tlru={"conversation_ends": True}).retention == ()


def kept(kind: str, hints: dict[str, Any], headers: dict[str, str] | None = None, mode: str = "null") -> Any:
    """The hints that a scheduler is told of a request to ``/v1/responses`` or ``/v1/messages``."""
    asked: Any
    if kind == "responses":
        body = {"model": "m", "input": "a", **hints}
        asked, serving = ResponsesRequest(**body), SimpleNamespace(tokenizer_manager=manager(mode))
    else:
        body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "a"}], **hints}
        chat = SimpleNamespace(tokenizer_manager=manager(mode))
        asked, serving = AnthropicMessagesRequest(**body), SimpleNamespace(openai_serving_chat=chat)

    def tokenize(manager: Any, tokens: Any, _raw: Any) -> Any:
        metadata.add_metadata(tokens, manager)
        return metadata.metadata_of(tokens).hints

    async def served(_serving: Any, _asked: Any, raw: Any) -> Any:
        return metadata.note_hints(tokenize, manager(mode), tokenized(stream=True), raw)

    return asyncio.run(metadata.check_hints(served, serving, asked, over_http(body, headers)))


@pytest.mark.parametrize("kind", ["responses", "messages"])
def test_a_request_without_custom_parameters_is_read_as_any_other(kind: str) -> None:
    assert kept(kind, {"retention_seconds": 60}).retention == (Range(0, None, HIGHEST, 60.0),)
    assert kept(kind, {}) is None
    assert kept(kind, {}, {"x-tlru": HELD}).retention == (Range(0, None, HIGHEST, 60.0),)
    assert kept(kind, {"tlru": {"conversation_ends": True}}, {"x-tlru": "not JSON"}).retention == ()


@pytest.mark.parametrize("kind", ["responses", "messages"])
@pytest.mark.parametrize("in_header", [False, True])
def test_wrong_hints_without_custom_parameters_are_refused_before_serving(kind: str, in_header: bool) -> None:
    wrong = {"retention_seconds": "long"}
    hints, headers = ({}, {"x-tlru": json.dumps(wrong)}) if in_header else (wrong, {})
    with pytest.raises(HTTPException) as refused:
        kept(kind, hints, headers)
    assert refused.value.status_code == 400
    named = "header x-tlru: retention_seconds" if in_header else "retention_seconds"
    assert refused.value.detail.startswith(f'{named} "long": must be a number of seconds')
    assert kept(kind, hints, headers, mode="prefill") is None


def test_a_server_without_our_flags_in_the_same_process_does_not_look_at_hints() -> None:
    stock = manager()
    stock.server_args._radix_tlru_config = None

    async def served(*_asked: Any) -> str:
        return "served"

    raw = over_http({"retention_seconds": "long"})
    serving = SimpleNamespace(tokenizer_manager=stock)
    assert asyncio.run(metadata.check_hints(served, serving, None, raw)) == "served"


def test_a_wrong_header_is_refused_by_name_where_a_client_can_be_told() -> None:
    wrong = {"x-tlru": json.dumps({"retention_seconds": "long"})}
    with pytest.raises(ValueError, match=r'^header x-tlru: retention_seconds "long": must be a number of seconds'):
        said_by(wrong)
    assert said_by(wrong, mode="prefill") is None


def test_what_comes_from_within_the_process_or_by_grpc_has_no_header() -> None:
    for raw in (None, _GrpcRequest()):
        asked = tokenized(stream=True)
        metadata.note_hints(lambda manager, obj, _request: metadata.add_metadata(obj, manager), manager(), asked, raw)
        assert metadata.metadata_of(asked).hints is None


BESIDE_ANOTHER = """
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from radix_tlru.sglang.requests import metadata
for target in metadata.HOOKED:
    HookRegistry.register(target, lambda *args, **kwargs: None, HookType.AFTER)
HookRegistry.apply_hooks()
from sglang.srt.managers.tokenizer_manager import TokenizerManager
found = []
for _ in range(3):
    found.append(TokenizerManager._create_tokenized_object)
    metadata.install()
print(found[1] is not found[0], found[2] is found[1])
"""


def test_another_plugin_at_the_same_function_does_not_keep_ours_out(tmp_path: Path) -> None:
    script = tmp_path / "beside_another.py"
    script.write_text(BESIDE_ANOTHER)
    status, said = Run(tmp_path, str(script)).wait()
    assert (status, said.split()[-2:]) == (0, ["True", "True"]), said
