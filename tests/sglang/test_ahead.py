"""After which answers the next prompt is prefilled, and as which request: with a stand-in for SGLang's chats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from sglang.srt.managers.io_struct import GenerateReqInput

from radix_tlru.sglang.requests import ahead

HINT = {"nvext": {"agent_hints": {"speculative_prefill": True}}}
PRIORITIES = {"enable_priority_scheduling": False, "schedule_low_priority_values_first": False}


class Chats:
    """Renders a chat as the characters of its messages, and notes what it is asked to prefill."""

    def __init__(self, *, of_text: bool = True, **server_args: bool) -> None:
        self.asked: list[GenerateReqInput] = []
        self.rendered: list[ChatCompletionRequest] = []
        self._of_text = of_text
        self.tokenizer_manager = SimpleNamespace(
            rid_to_state={},
            server_args=SimpleNamespace(**{**PRIORITIES, **server_args}),
            generate_request=self._generate,
        )

    def _convert_to_internal_request(self, asked: ChatCompletionRequest) -> tuple[GenerateReqInput, Any]:
        self.rendered.append(asked)
        text = "".join(f"<{message.role}>{message.content}" for message in asked.messages)
        given = {"input_ids": [*map(ord, text)]} if self._of_text else {"text": text}
        return GenerateReqInput(**given, rid=asked.rid, priority=asked.priority, stream=asked.stream), asked

    async def _generate(self, wanted: GenerateReqInput, _request: None) -> AsyncIterator[Any]:
        self.asked.append(wanted)
        yield {"meta_info": {"prompt_tokens": len(wanted.input_ids or ()), "cached_tokens": 3}}


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What became of answers whose next prompt was to be prefilled."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ahead, "_count", lambda _serving, *outcome: found.append(outcome))
    return found


def chat(**said: Any) -> ChatCompletionRequest:
    messages = [{"role": "user", "content": "Hello"}]
    return ChatCompletionRequest(**{"model": "m", "messages": messages, "custom_params": HINT, **said})


def answered(chats: Chats, request: ChatCompletionRequest, finish: str = "stop", *, times: int = 1) -> None:
    """The chat is answered with "Hi", in one piece or as a stream, and what comes of it is waited for."""

    async def reply(*_: Any) -> Any:
        if request.stream:
            return SimpleNamespace(body_iterator=chunks(finish))
        choice = SimpleNamespace(finish_reason=finish, message=SimpleNamespace(content="Hi"))
        return SimpleNamespace(choices=[choice])

    async def serve() -> None:
        for _ in range(times):
            if request.stream:
                streamed = await ahead.after_stream(reply, chats, None, request, None)
                assert [chunk async for chunk in streamed.body_iterator] == [chunk async for chunk in chunks(finish)]
            else:
                await ahead.after_answer(reply, chats, None, request, None)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(serve())


async def chunks(finish: str) -> AsyncIterator[str]:
    """As SGLang streams it: the role, two pieces, the end, what may be told after that, the usage."""
    deltas = [{"role": "assistant", "content": ""}, {"content": "H"}, {"content": "i"}, {"content": None}, {}]
    for number, delta in enumerate(deltas):
        choice = {"index": 0, "delta": delta, "finish_reason": finish if number == 3 else None}
        yield f"data: {json.dumps({'choices': [choice]})}\n\n"
    yield f"data: {json.dumps({'choices': [], 'usage': {}})}\n\n"
    yield "data: [DONE]\n\n"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "abort"])
def test_what_two_next_prompts_begin_with_is_asked_for_where_the_user_speaks_next(
    finish: str, stream: bool, counted: list[Any]
) -> None:
    chats = Chats()
    answered(
        chats, chat(stream=stream, logprobs=True, response_format={"type": "json_object"}, rid="a", priority=5), finish
    )
    if finish not in ("stop", "length"):
        assert (chats.asked, counted) == ([], [])
        return
    (wanted,) = chats.asked
    known = "<user>Hello<assistant>Hi<user>"
    assert "".join(map(chr, wanted.input_ids)) == known
    assert wanted.sampling_params == {"max_new_tokens": 0, "temperature": 0.0}
    assert (wanted.rid, wanted.priority, wanted.stream) == (None, None, False)
    assert counted == [("done", len(known) - 3)]
    for asked in chats.rendered:
        assert (asked.custom_params, asked.response_format, asked.session_id, asked.logprobs) == (
            None,
            None,
            None,
            False,
        )


@pytest.mark.parametrize("said", [{"n": 2}, {"custom_params": None}, {"custom_params": {"nvext": {"agent_hints": {}}}}])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_for_several_answers_or_without_the_hint_has_nothing_prefilled(said: Any, stream: bool) -> None:
    chats = Chats()
    answered(chats, chat(stream=stream, **said))
    assert chats.asked == []


@pytest.mark.parametrize("hook", [ahead.after_answer, ahead.after_stream])
def test_an_error_is_passed_on(hook: Any) -> None:
    async def refused(*_: Any) -> str:
        return "HTTP 400"

    chats = Chats()
    assert asyncio.run(hook(refused, chats, None, chat(), None)) == "HTTP 400"
    assert chats.asked == []


@pytest.mark.parametrize(("low_first", "lowest"), [(False, -(1 << 30)), (True, 1 << 30)])
def test_where_requests_have_priorities_it_is_of_the_lowest(low_first: bool, lowest: int) -> None:
    chats = Chats(enable_priority_scheduling=True, schedule_low_priority_values_first=low_first)
    answered(chats, chat(priority=5))
    assert [wanted.priority for wanted in chats.asked] == [lowest]


def test_of_many_answers_at_once_some_have_nothing_prefilled(
    counted: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_MOST_WAITING", 2)
    answered(Chats(), chat(), times=3)
    assert sorted(outcome for outcome, *_ in counted) == ["done", "done", "dropped"]


def test_a_prompt_that_is_not_known_as_tokens_is_logged_and_not_asked_for(
    counted: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    chats = Chats(of_text=False)
    answered(chats, chat())
    assert (chats.asked, counted) == ([], [("failed",)])
    assert "nothing is prefilled ahead: prompts that are not of text alone" in caplog.text
