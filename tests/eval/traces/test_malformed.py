"""Whatever is wrong with a file of any format: a trace, or one line that says what."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eval.traces import READERS, Trace, TraceError, open_trace
from tests.helpers.examples import examples
from tests.helpers.trace_files import lines

TEXT = {"role": "user", "content": "12345678"}
SAID = {"role": "assistant", "content": "said"}
LENGTHS = {"input_length": 33, "output_length": 4}
OUT = {"meta_info": {"prompt_tokens": 3, "e2e_latency": 0.5}}
FINISHED = {"timestamp": "2026-11-25T12:00:00.5", "event": "request.finished", "obj": {"rid": "a"}, "out": OUT}
LOG = f"[2026-11-25 12:00:00] Finish: obj=GenerateReqInput(rid='r', input_ids=[1, 2]), out={OUT}"
COME = {"rid": ["a", "b"], "input_ids": [[1], [2]], "text": None, "sampling_params": [{"n": 1}, {}]}
BATCH = {"event": "request.received", "timestamp": "2026-11-25T12:00:00", "obj": COME}
DELTA = {"content": "x", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
EVENTS = [
    {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 5}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
]
USAGE = {"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 7}
CALL = {"t": 0.0, "type": "n", "in": 130, "out": 5, "hash_ids": [1, 2], "stop": "tool_use", "input_types": ["text"]}

# By format, the rows of a sound file.
SOUND: dict[str, list[Any]] = {
    "mooncake": [{"timestamp": 0, **LENGTHS, "hash_ids": [1, 2, 3], "session": 1, "agent": 0, "stop": "tool_use"}],
    "bailian": [
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, **LENGTHS, "hash_ids": [1, 2, 3], "type": "text"}
    ],
    "agent-sessions": [
        {
            "id": "a",
            "block_size": 64,
            "hash_id_scope": "local",
            "tool_tokens": 1,
            "requests": [CALL, {"t": 9.0, "type": "subagent", "duration_ms": 5000, "requests": [CALL]}],
        }
    ],
    "aiperf": [
        {"session_id": "a", "timestamp": 0, **LENGTHS, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "delay": 5, **LENGTHS},
    ],
    "lmcache": [{"timestamp": 1_760_428_258_635_837, "input": "12345678", "output": "said", "session_id": "a"}],
    "burstgpt": [{"Timestamp": 5, "Session ID": 1, "Request tokens": 4, "Response tokens": 2, "Model": "m"}],
    "azure": [{"TIMESTAMP": "2023-11-16 18:15:46.6805900", "ContextTokens": 4, "GeneratedTokens": 2}],
    "wildchat": [
        {"conversation_hash": "a", "timestamp": "2023-04-09T00:02:53", "conversation": [TEXT, SAID | {"timestamp": 5}]}
    ],
    "sharegpt": [{"id": "a", "conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yes"}]}],
    "lmsys": [{"conversation_id": "a", "model": "m", "conversation": [TEXT, SAID]}],
    "openai": [
        {"request": {"model": "m", "messages": [TEXT]}, "response": {"choices": [{"message": SAID}], "usage": {}}},
        {"id": 1, "messages": [TEXT, SAID, TEXT, SAID]},
        {"body": {"model": "m", "messages": [TEXT]}, "response": [{"choices": [{"delta": DELTA}], "usage": {}}]},
        {"body": {"model": "m", "messages": [TEXT]}, "response": EVENTS},
        {"body": {"model": "m", "prompt": [[1, 2], [3]]}, "response": {"choices": [{"text": "a"}, {"text": "b"}]}},
        {"history": [TEXT, SAID], "trajectory": [{"query": [TEXT], "response": "x", "execution_time": 0.5}] * 2},
        {"instance_id": "a", "trajectory": [TEXT | {"text": None}, SAID, TEXT]},
    ],
    "claude-code": [
        {"type": "user", "sessionId": "s", "uuid": "1", "timestamp": "2026-02-19T02:00:00Z", "message": TEXT},
        {"type": "assistant", "sessionId": "s", "uuid": "2", "parentUuid": "1", "timestamp": "2026-02-19T02:00:03Z"}
        | {"message": SAID | {"id": "m", "usage": USAGE, "stop_reason": "end_turn"}},
    ],
    "codex": [
        {"timestamp": "2026-02-19T02:00:00Z", "type": "session_meta", "payload": {"id": "a"}},
        {"timestamp": "2026-02-19T02:00:01Z", "type": "response_item", "payload": {"type": "message"} | TEXT},
        {"timestamp": "2026-02-19T02:00:04Z", "type": "response_item", "payload": {"type": "message"} | SAID},
        {
            "timestamp": "2026-02-19T02:00:05Z",
            "type": "event_msg",
            "payload": {"type": "token_count", "info": {"last_token_usage": USAGE, "total_token_usage": USAGE}},
        },
        {"type": "event_msg", "payload": {"type": "user_message", "message": "hi"}},
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
    ],
    "aiperf-artifacts": [
        {
            "metadata": {"request_start_ns": 5, "request_end_ns": 9, "conversation_id": "a", "turn_index": 0},
            "metrics": {"input_sequence_length": {"value": 5}, "output_sequence_length": {"value": 2}},
        },
        {"data": [{"session_id": "a", "payloads": [{"model": "m", "messages": [TEXT]}]}]},
    ],
    "aiperf-raw": [
        {
            "metadata": {"request_start_ns": 5, "request_end_ns": 9, "conversation_id": "a", "turn_index": 0},
            "payload": {"model": "m", "messages": [TEXT]},
            "responses": [{"packets": [{"name": "data", "value": '{"choices": [{"delta": {"content": "x"}}]}'}]}],
        }
    ],
    "sglang-log": [LOG, FINISHED, BATCH],
    "dynamo": [
        {
            "schema": "dynamo.request.trace.v1",
            "event_type": "request_end",
            "event_time_unix_ms": 1_777_312_801_000,
            "request": {"request_received_ms": 1_777_312_800_000, "output_tokens": 4, "total_time_ms": 1000.0}
            | {"replay": {"trace_block_size": 16, "input_length": 33, "input_sequence_hashes": [1, 2, 3]}},
            "agent_context": {"session_id": "a", "parent_session_id": "b", "session_final": True},
        }
    ],
    "dynamo-agentic": [
        {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64, "hash_id_scope": "local"},
        {"request_id": "a", "play_id": "p", "session_id": "s", "model": "m", "input_length": 130, "output_length": 4}
        | {"hash_ids": [1, 2, 3], "not_before_ms": 0.0},
        {"request_id": "b", "play_id": "p", "session_id": "t", "input_length": 64, "hash_ids": [1], "not_before_ms": 9}
        | {"dependencies": [{"request_id": "a", "trigger": "completion", "delay_ms": 5.0, "relation": "spawn"}]},
    ],
    "aiperf-turns": [
        {"session_id": "a", "turns": [{"text": "12345678"}, {"texts": ["x", {"contents": ["y"]}], "delay": 5}]},
        {"text": "12345678", "images": ["data:"], "output_length": 5},
    ],
    "bench-serving": [{"duration": 5.0, "input_lens": [4, 5], "output_lens": [1, 2], "start_times": [0.0, 1.0]}],
}

JUNK = st.sampled_from(
    [None, True, -1, 0, 3, 2**70, 1e300, 0.5, "", "x", "7", "\ud83d", [], [[]], [None], [1, "a"], {}, {"a": {}}, "{}"]
)


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something lies within a row: the keys that lead there."""
    if here:
        yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*here, key))


def changed(rows: list[Any], place: tuple[Any, ...], new: Any, drop: bool) -> list[Any]:
    """The rows with another value at a place, or nothing there."""
    copy = json.loads(json.dumps(rows))
    holder = copy
    for key in place[:-1]:
        holder = holder[key]
    if drop:
        del holder[place[-1]]
    else:
        holder[place[-1]] = new
    return copy


def outcome(path: Path, name: str | None, skip_bad: bool) -> Trace | None:
    """The trace, or none if it is refused as it must be."""
    refused = ""
    try:
        return open_trace(str(path), format=name, skip_bad=skip_bad)
    except TraceError as error:
        refused = str(error)
    assert refused.strip()
    assert "\n" not in refused
    assert "Traceback" not in refused
    return None


def test_there_is_a_sound_file_of_every_format(tmp_path: Path) -> None:
    assert set(SOUND) == set(READERS)
    for name, rows in SOUND.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(lines(rows))
        trace = open_trace(str(path))
        assert (trace.format, trace.skipped) == (name, 0)
        assert trace.notes


@pytest.mark.parametrize("name", SOUND)
@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_in_any_place_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = SOUND[name]
    for _ in range(data.draw(st.integers(1, 2))):
        found = list(places(rows))
        if not found:
            return
        rows = changed(rows, data.draw(st.sampled_from(found)), data.draw(JUNK), data.draw(st.booleans()))
    path = tmp_path_factory.getbasetemp() / f"{name}.jsonl"
    path.write_bytes(lines([*rows, *SOUND[name]]))
    for skip_bad in (False, True):
        trace = outcome(path, name, skip_bad)
        if trace is None:
            continue
        assert all(before.arrival_s <= after.arrival_s for before, after in pairwise(trace.requests))
        for request in trace.requests:
            assert request.prompt_tokens >= len(request.prompt) >= 0
            assert len(request.context) >= len(request.prompt)
            assert len(request.prompt.ids) == len(request.prompt.ends)
            assert request.output_tokens >= 0


@given(
    name=st.sampled_from(sorted(SOUND)),
    cut=st.integers(0, 400),
    noise=st.binary(max_size=6),
    packed=st.booleans(),
    known=st.booleans(),
)
@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_bytes_within_a_file_are_read_or_refused(
    name: str, cut: int, noise: bytes, packed: bool, known: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    raw = lines(SOUND[name])
    raw = gzip.compress(raw) if packed else raw
    cut = min(cut, len(raw))
    path = tmp_path_factory.getbasetemp() / "bytes.jsonl"
    path.write_bytes(raw[:cut] + noise + raw[cut + len(noise) :])
    for skip_bad in (False, True):
        outcome(path, name if known else None, skip_bad)


@given(name=st.sampled_from(sorted(SOUND)), other=st.sampled_from(sorted(SOUND)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_file_read_as_another_format_is_read_or_refused(
    name: str, other: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "other.jsonl"
    path.write_bytes(lines(SOUND[name]))
    outcome(path, other, skip_bad=False)
