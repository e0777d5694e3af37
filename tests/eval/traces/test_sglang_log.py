"""Logs of a SGLang server, written by SGLang's own logger and exporter."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.observability.request_metrics_exporter import FileRequestMetricsExporter
from sglang.srt.server_args import ServerArgs
from sglang.srt.utils.request_logger import RequestLogger

from eval.traces import Trace, open_trace
from tests.helpers.trace_files import refusal, said

# Two turns: 40 tokens and 8 of an answer, then 30 more.
FIRST = list(range(100, 140))
ANSWER = list(range(200, 208))
SECOND = [*FIRST, *ANSWER, *range(300, 330)]
TRICKY = "it's (5, 'x'), out={'meta_info': \"\\n"


def request(number: int, **fields: Any) -> GenerateReqInput:
    stops = {"max_new_tokens": 8, "stop": ["a'b", 'x"y, z=(']}
    return GenerateReqInput(rid=f"r{number}", sampling_params=stops, **fields)


def answer(number: int, prompt: int, received: float | None = None, finish: str = "stop", **out: Any) -> dict[str, Any]:
    told = {"id": f"r{number}", "finish_reason": {"type": finish}, "prompt_tokens": prompt, "completion_tokens": 8}
    meta = told | {"cached_tokens": 0, "e2e_latency": 0.5}
    if received is not None:
        meta["request_received_ts"] = received
    return {"text": TRICKY, "output_ids": ANSWER, "meta_info": meta} | out


def logged(
    folder: Path, form: str, level: int, *served: tuple[GenerateReqInput, dict[str, Any]], ended: bool = True
) -> Trace:
    """What SGLang's logger writes of these, read."""
    logger = RequestLogger(True, level, form, [str(folder)])
    for asked, out in served:
        logger.log_received_request(asked)
        if ended:
            logger.log_finished_request(asked, out)
    for target in logger.targets:
        for handler in target.handlers:
            handler.flush()
    (path,) = folder.glob("*.log")
    # Other lines of a server.
    path.write_text(
        "[2026-11-25 12:00:00] server_args=ServerArgs(model='m')\n" + path.read_text() + "INFO: GET /health\n"
    )
    return open_trace(str(path))


TURNS = (
    (request(1, input_ids=FIRST, text=TRICKY, session_id="s"), answer(1, 40, 1_000.0)),
    (request(2, input_ids=SECOND, session_id="s"), answer(2, 78, 1_010.0, "length")),
    (request(3, input_ids=FIRST), answer(3, 40, 1_011.0)),
)


@pytest.mark.parametrize("form", ["text", "json"])
def test_at_level_three_all_is_real(tmp_path: Path, form: str) -> None:
    trace = logged(tmp_path, form, 3, *TURNS)
    first, second, other = trace.requests
    assert trace.format == "sglang-log"
    assert [request.arrival_s for request in trace.requests] == [0.0, 10.0, 11.0]
    assert [request.prompt_tokens for request in trace.requests] == [40, 78, 40]
    # Blocks of 16 tokens: the context of 48 tokens is three, and the next prompt begins with them.
    assert second.prompt.common(first.context) == 48
    assert other.prompt.common(first.prompt) == len(first.prompt) == 32
    assert (first.stop, second.stop, first.session, other.session) == ("stop", "length", "s", None)
    assert (first.answer_s, first.output_tokens) == (0.5, 8)
    assert "prompts, answers, lengths of 3 requests" in said(trace, "real")


@pytest.mark.parametrize("form", ["text", "json"])
def test_below_level_three_lengths_are_real_and_contexts_rebuilt(tmp_path: Path, form: str) -> None:
    trace = logged(tmp_path, form, 0, *TURNS)
    first, second, other = trace.requests
    assert [request.prompt_tokens for request in trace.requests] == [40, 78, 40]
    assert second.continues(first)
    assert other.prompt.common(first.prompt) == 0
    assert "1 requests have neither a prompt nor a session" in said(trace, "rebuilt")
    assert "--log-requests-level 3 logs the prompts" in said(trace, "rebuilt")


@pytest.mark.parametrize("form", ["text", "json"])
def test_prompts_that_level_two_cuts_are_not_taken_for_whole(tmp_path: Path, form: str) -> None:
    long = list(range(3_000))
    trace = logged(tmp_path, form, 2, (request(1, input_ids=long), answer(1, 3_000)))
    assert [request.prompt_tokens for request in trace.requests] == [3_000]
    assert "1 requests have neither a prompt nor a session" in said(trace, "rebuilt")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("wrong", [1 << 63, -(1 << 70)])
def test_numbers_that_are_no_ids_of_tokens_are_no_prompt(tmp_path: Path, form: str, wrong: int) -> None:
    trace = logged(tmp_path, form, 3, (request(1, input_ids=[1, wrong]), answer(1, 5)))
    assert [request.prompt_tokens for request in trace.requests] == [5]
    assert "1 requests have neither a prompt nor a session" in said(trace, "rebuilt")


def test_texts_are_prompts_too(tmp_path: Path) -> None:
    shared = "x" * 640
    served = [(request(n, text=shared + TRICKY * 3 + str(n)), answer(n, 190, 1_000.0 + n)) for n in (1, 2)]
    trace = logged(tmp_path, "text", 3, *served)
    one, other = trace.requests
    # 16 tokens have 64 characters.
    assert one.prompt.common(other.prompt) >= 160
    assert "counted by length" in said(trace, "real")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("sglang-1  | ", ""),
        ("2025-11-25T10:00:01.123456789Z ", ""),
        ("2025-11-25T10:00:01.123456789Z stdout F ", ""),
        ("Nov 25 10:00:01 host python[123]: ", ""),
        ("\x1b[32m", "\x1b[0m"),
    ],
    ids=["docker compose", "kubectl --timestamps", "containerd", "journald", "colours"],
)
def test_a_log_is_read_as_operators_collect_it(tmp_path: Path, before: str, after: str, form: str) -> None:
    trace = logged(tmp_path, form, 3, *TURNS)
    (path,) = tmp_path.glob("*.log")
    path.write_text("".join(f"{before}{line}{after}\n" for line in path.read_text().splitlines()))
    assert open_trace(str(path)).requests == trace.requests


PART = 16 << 10  # bytes, of Docker and containerd


def as_docker(line: str) -> list[str]:
    """Lines of the file of a container, by Docker's json-file driver."""
    parts = [line[start : start + PART] for start in range(0, len(line), PART)]
    return [json.dumps({"log": part, "stream": "stderr", "time": "2026-11-25T10:00:01Z"}) for part in parts]


def as_containerd(line: str) -> list[str]:
    parts = [line.rstrip()[start : start + PART] for start in range(0, len(line), PART)]
    marks = ["P"] * (len(parts) - 1) + ["F"]
    return [f"2026-11-25T10:00:01.1Z stderr {mark} {part}" for mark, part in zip(marks, parts, strict=True)]


def in_field(name: str) -> Callable[[str], list[str]]:
    return lambda line: [json.dumps({name: line.rstrip(), "host": "h"})]


COLLECTED = {
    "docker's files": as_docker,
    "fluent bit": in_field("log"),
    "containerd's files": as_containerd,
    "journald -o json": in_field("MESSAGE"),
    "vector": in_field("message"),
    "google cloud": in_field("textPayload"),
}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("collected", COLLECTED.values(), ids=COLLECTED)
def test_a_log_in_fields_of_json_and_in_parts_is_read_whole(
    tmp_path: Path, collected: Callable[[str], list[str]], form: str
) -> None:
    long = list(range(10_000))
    trace = logged(tmp_path, form, 3, *TURNS, (request(4, input_ids=long), answer(4, 10_000, 1_020.0)))
    (path,) = tmp_path.glob("*.log")
    lines = path.read_text().splitlines(keepends=True)
    assert max(map(len, lines)) > 2 * PART
    path.write_text("".join(f"{part}\n" for line in lines for part in collected(line)))
    again = open_trace(str(path))
    assert again.requests == trace.requests
    assert again.notes == trace.notes


def test_a_line_whose_last_part_is_missing_was_not_written_yet(tmp_path: Path) -> None:
    whole = logged(tmp_path, "text", 3, *TURNS, (request(4, input_ids=list(range(10_000))), answer(4, 10_000, 1_020.0)))
    (path,) = tmp_path.glob("*.log")
    parts = [part for line in path.read_text().splitlines(keepends=True) for part in as_docker(line)]
    path.write_text("".join(f"{part}\n" for part in parts[:-3]))  # the last line, INFO, and two parts of the answer
    trace = open_trace(str(path))
    assert trace.requests[:3] == whole.requests[:3]
    assert (trace.requests[3].prompt_tokens, trace.requests[3].output_tokens) == (10_000, 0)
    assert "1 requests have no end in the log" in said(trace, "assumed")


def test_a_log_of_vllm_is_refused_with_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(
        "(APIServer pid=1) INFO 11-25 10:00:00 [api_server.py:1] vLLM API server version 0.11.0\n"
        "(APIServer pid=1) INFO 11-25 10:00:01 [logger.py:40] Received request chatcmpl-a: prompt: 'hi'\n"
    )
    assert refusal(str(path)) == (
        "server.log:1: a log of vLLM, which is not read: give calls as a client or a proxy logs them "
        "(--format openai), or results of vllm bench serve --save-result --save-detailed (--format bench-serving)"
    )


def test_times_of_lines_serve_where_the_server_measures_none(tmp_path: Path) -> None:
    trace = logged(tmp_path, "json", 3, (TURNS[0][0], answer(1, 40)), (TURNS[1][0], answer(2, 78)))
    assert 0.0 <= trace.requests[1].arrival_s < 60.0


def test_requests_that_never_ended_are_said(tmp_path: Path) -> None:
    trace = logged(tmp_path, "json", 3, *TURNS, ended=False)
    assert [request.output_tokens for request in trace.requests] == [0, 0, 0]
    assert "3 requests have no end in the log" in said(trace, "assumed")


def test_a_last_line_that_is_cut_is_a_request_that_did_not_end(tmp_path: Path) -> None:
    trace = logged(tmp_path, "text", 3, *TURNS)
    (path,) = tmp_path.glob("*.log")
    lines = path.read_text().splitlines(keepends=True)[:-1]
    places = [
        lines[-1].index(part) for part in ("rid=", "input_ids=[100, 101", ", out={", "out={", "'meta_info'", "0.5")
    ]
    for place in (*places, len(lines[-1]) - 2):
        path.write_text("".join(lines[:-1]) + lines[-1][:place])
        cut = open_trace(str(path))
        assert cut.requests[:2] == trace.requests[:2]
        assert (cut.requests[2].prompt, cut.requests[2].output_tokens) == (trace.requests[2].prompt, 0)
        assert "1 requests have no end in the log" in said(cut, "assumed")


def test_health_checks_are_no_requests(tmp_path: Path) -> None:
    health = GenerateReqInput(rid="HEALTH_CHECK_1", input_ids=[0], sampling_params={"max_new_tokens": 1})
    trace = logged(tmp_path, "text", 3, (health, answer(9, 1, 999.0)), *TURNS)
    assert len(trace.requests) == 3


def test_exported_metrics_are_read(tmp_path: Path) -> None:
    server = ServerArgs(model_path="not read here", device="cpu", export_metrics_to_file_dir=str(tmp_path))
    exporter = FileRequestMetricsExporter(server, None, None)
    for asked, out in TURNS:
        asyncio.run(exporter.write_record(asked, out))
    exporter.close()
    trace = open_trace(str(tmp_path))
    assert (trace.format, [request.prompt_tokens for request in trace.requests]) == ("sglang-log", [40, 78, 40])
    assert [request.arrival_s for request in trace.requests] == [0.0, 10.0, 11.0]
    assert {request.session for request in trace.requests} == {"s", None}


def test_a_log_without_requests_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("[2026-11-25 12:00:00] server_args=ServerArgs(model='m')\nINFO: GET /health\n")
    assert "of no known format" in refusal(str(path))


def test_a_request_without_lengths_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text("[2026-11-25 12:00:00] Receive: obj=GenerateReqInput(rid='r1', stream=False)\n")
    assert refusal(str(path)) == (
        f"trace {path}: holds no request, 1 records skipped: server.log:1: the request did not end, "
        "and its prompt is not in the log: --log-requests-level 3 logs the prompts"
    )
    path.write_text("[2026-11-25 12:00:00] Finish: obj=GenerateReqInput(rid='r1'), out={'meta_info': {'id': 'r1'}}\n")
    assert refusal(str(path)) == (
        "server.log:1: prompt_tokens: missing, and so is the prompt: --log-requests-level 3 logs the prompts"
    )
    path.write_text('{"request_parameters": "{}", "prompt_tokens": 5}\n')  # as --export-metrics-to-file writes it
    reason = "missing: no line tells when the request came; --enable-metrics writes it"
    assert refusal(str(path)) == f"server.log:1: request_received_ts: {reason}"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("level", [0, 3])
def test_requests_of_a_batch_end_one_by_one(tmp_path: Path, form: str, level: int) -> None:
    batch = GenerateReqInput(rid=["r1", "r2"], input_ids=[FIRST, SECOND], sampling_params={"max_new_tokens": 8})
    batch.normalize_batch_and_arguments()
    logger = RequestLogger(True, level, form, [str(tmp_path)])
    logger.log_received_request(batch)
    logger.log_finished_request(batch[0], answer(1, 40, 1_000.0))
    logger.log_finished_request(batch[1], answer(2, 78, 1_000.0))
    trace = open_trace(str(tmp_path))
    assert ([request.prompt_tokens for request in trace.requests], trace.skipped) == ([40, 78], 0)


def test_a_batch_that_never_ended_has_its_prompts(tmp_path: Path) -> None:
    batch = GenerateReqInput(input_ids=[FIRST, SECOND], sampling_params={"max_new_tokens": 8})
    batch.normalize_batch_and_arguments()
    trace = logged(tmp_path, "text", 3, (batch, {}), ended=False)
    assert [request.prompt_tokens for request in trace.requests] == [40, 78]


def test_several_answers_to_a_prompt_end_under_other_names(tmp_path: Path) -> None:
    asked = GenerateReqInput(input_ids=FIRST, sampling_params={"n": 2})
    asked.normalize_batch_and_arguments()
    logger = RequestLogger(True, 3, "json", [str(tmp_path)])
    logger.log_received_request(asked)
    for number in (1, 2):
        logger.log_finished_request(request(number, input_ids=FIRST), answer(number, 40, 1_000.0))
    assert [request.output_tokens for request in open_trace(str(tmp_path)).requests] == [8, 8]


def test_what_was_running_or_given_up_is_left_out_where_nobody_counted_it(tmp_path: Path) -> None:
    """A client leaves while its request waits: SGLang tells no length then. Another one runs where the log ends."""
    logger = RequestLogger(True, 0, "json", [str(tmp_path)])
    for number in (7, 8):
        logger.log_received_request(request(number))
    gone = {"text": "", "meta_info": {"id": "r8", "finish_reason": {"type": "abort"}, "e2e_latency": 3.0}}
    logger.log_finished_request(request(8), gone)
    for asked, out in TURNS:
        logger.log_finished_request(asked, out)
    trace = open_trace(str(tmp_path))
    assert (len(trace.requests), trace.skipped) == (3, 2)
    assert "the request did not end, and its prompt is not in the log" in trace.skip_reasons[0]


def test_a_request_without_a_time_of_the_server_is_on_the_clock_of_the_others(tmp_path: Path) -> None:
    """Lines are in a zone of their own; the first request was given up before any that tells both times."""
    lines = [
        *('[2026-11-25 12:00:00] {"event": "request.received", "obj": {"rid": "r8", "input_ids": [1, 2, 3]}}',),
        '[2026-11-25 12:00:05] {"event": "request.finished", "obj": {"rid": "r8", "input_ids": [1, 2, 3]}, '
        '"out": {"meta_info": {"finish_reason": {"type": "abort"}, "e2e_latency": 5.0}}}',
        *('[2026-11-25 12:00:10] {"event": "request.received", "obj": {"rid": "r1", "input_ids": [1, 2, 4]}}',),
        '[2026-11-25 12:00:11] {"event": "request.finished", "obj": {"rid": "r1", "input_ids": [1, 2, 4]}, '
        '"out": {"meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "request_received_ts": 5000.0}}}',
    ]
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines) + "\n")
    assert [request.arrival_s for request in open_trace(str(path)).requests] == [0.0, 10.0]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_part_of_an_answer_is_not_taken_for_all_of_it(tmp_path: Path, form: str) -> None:
    """With --incremental-streaming-output a streamed answer ends with its last tokens, here 3 of 8."""
    trace = logged(tmp_path, form, 3, (request(1, input_ids=list(range(46))), answer(1, 46, output_ids=ANSWER[-3:])))
    # Blocks of 16 tokens: with the 3 there would be one more.
    assert [len(request.context) for request in trace.requests] == [32]
    assert "1 answers are not in the log, or only in part" in said(trace, "assumed")


def test_a_text_of_an_answer_that_level_two_cuts_is_not_taken_for_whole(tmp_path: Path) -> None:
    trace = logged(tmp_path, "json", 2, (request(1, text="x" * 640), answer(1, 160, text="y" * 4_000)))
    assert [(len(request.prompt), len(request.context)) for request in trace.requests] == [(160, 160)]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_request_of_a_session_of_the_server_goes_on_with_it(tmp_path: Path, form: str) -> None:
    """With session_params a request has what it adds: 30 tokens to the 40 of the first one and the 8 of its answer."""
    session = {"id": "s", "rid": None}
    first = request(1, input_ids=FIRST, session_params=session), answer(1, 40, 1_000.0)
    more = request(2, input_ids=SECOND[48:], session_params=session | {"rid": "r1"}), answer(2, 78, 1_010.0)
    one, other = logged(tmp_path, form, 3, first, more).requests
    assert (one.session, other.session, other.prompt_tokens) == ("s", "s", 78)
    assert other.prompt.common(one.context) == len(one.context) == 48


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_prompt_that_level_two_cuts_goes_on_with_its_session(tmp_path: Path, form: str) -> None:
    cut = request(2, input_ids=[*SECOND, *range(3_000)], session_id="s"), answer(2, 3_078, 1_010.0)
    one, other = logged(tmp_path, form, 2, TURNS[0], cut).requests
    assert other.prompt_tokens == len(other.prompt) == 3_078
    assert other.prompt.common(one.context) == len(one.context) == 48


@pytest.mark.parametrize("name", ["extra_key", "cache_salt", "lora_path"])
def test_equal_tokens_share_nothing_in_another_namespace_of_the_cache(tmp_path: Path, name: str) -> None:
    keys: list[dict[str, Any]] = [{}, {name: "a"}, {name: "b"}, {name: "a"}]
    asked = [(request(n, input_ids=FIRST, **key), answer(n, 40, 1_000.0 + n)) for n, key in enumerate(keys)]
    plain, one, other, again = logged(tmp_path, "json", 3, *asked).requests
    assert (plain.prompt.common(one.prompt), one.prompt.common(other.prompt)) == (0, 0)
    assert one.context.common(again.context) == len(one.context) == 48


def test_a_log_goes_on_where_it_was_rotated(tmp_path: Path) -> None:
    trace = logged(tmp_path, "text", 3, *TURNS)
    (path,) = tmp_path.glob("*.log")
    lines = [line.partition("] ")[2] for line in path.read_text().splitlines()[1:-1]]
    hours = {f"{path.name}.2026-11-25_11": ("11:59:59", lines[:3]), path.name: ("12:00:00", lines[3:])}
    for name, (time, part) in hours.items():
        (tmp_path / name).write_text("".join(f"[2026-11-25 {time}] {line}\n" for line in part))
    again = open_trace(str(tmp_path))
    assert (again.requests, again.skipped, said(again, "assumed")) == (trace.requests, 0, "")


def test_texts_that_are_far_longer_than_the_server_counted_are_noted(tmp_path: Path) -> None:
    served = [(request(n, text="x" * 4_000), answer(n, 100, 1_000.0 + n)) for n in (1, 2)]
    trace = logged(tmp_path, "text", 3, *served)
    assert "2 prompts have 2,000 tokens; their servers counted 200" in said(trace, "assumed")


@pytest.fixture(autouse=True)
def _no_handlers_left() -> Any:
    """Loggers of SGLang are named by their folder and live on."""
    yield
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith("sglang.srt.utils.request_logger"):
            logger = logging.getLogger(name)
            for handler in list(logger.handlers):
                logger.removeHandler(handler)
                handler.close()
