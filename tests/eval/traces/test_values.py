"""Values as tables, pandas and Python write them, where the format has others."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.traces import open_trace
from tests.helpers.trace_files import refusal, write_lines

MOONCAKE: list[dict[str, Any]] = [
    {"timestamp": 10 * n, "input_length": 100, "output_length": 5, "hash_ids": [*range(6), 9 + n]} for n in range(3)
]
CHATS: list[dict[str, Any]] = [
    {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 33, "output_length": 4, "type": "text"},
    {"chat_id": 2, "parent_chat_id": 1, "timestamp": 9.5, "input_length": 50, "output_length": 4, "type": "text"},
]
BAILIAN = [row | {"turn": n, "hash_ids": list(range(3 + n))} for n, row in enumerate(CHATS)]
AIPERF: list[dict[str, Any]] = [
    {"session_id": "a", "delay": None, "input_length": 100, "output_length": 5, "hash_ids": [1]},
    {"session_id": "a", "delay": 500, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
]


def as_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> str:
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        table = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        table.writeheader()
        table.writerows(rows)
    return str(path)


@pytest.mark.parametrize("rows", [MOONCAKE, BAILIAN, AIPERF])
def test_a_trace_of_blocks_is_the_same_from_a_table(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    wanted = open_trace(write_lines(tmp_path / "t.jsonl", *rows))
    texts = [row | {"hash_ids": json.dumps(row["hash_ids"])} for row in rows]
    for name, each in (("lists", rows), ("texts", texts)):
        schema = pa.Table.from_pylist([{**each[0], "delay": 0}]).schema if rows is AIPERF else None
        pq.write_table(pa.Table.from_pylist(each, schema), tmp_path / f"{name}.parquet")
    tables = [as_csv(tmp_path / f"{n}.csv", rows, delimiter) for n, delimiter in enumerate(",;\t")]
    for source in (*tables, *(str(tmp_path / f"{name}.parquet") for name in ("lists", "texts"))):
        trace = open_trace(source)
        assert (trace.format, trace.requests) == (wanted.format, wanted.requests)


def test_a_value_of_a_table_that_is_no_number_is_named(tmp_path: Path) -> None:
    rows = [MOONCAKE[0], MOONCAKE[1] | {"input_length": "long"}, MOONCAKE[2] | {"output_length": ""}]
    source = as_csv(tmp_path / "t.csv", rows)
    assert refusal(source) == "t.csv:3: input_length: Expected `int`, got `str` 'long'"
    reasons = open_trace(source, skip_bad=True).skip_reasons
    assert reasons[1] == "t.csv:4: output_length: Expected `int`, got `null`"
    table = Path(source).read_text("utf-8-sig")
    Path(source).write_text(f"\n\n{table}")
    assert refusal(source) == "t.csv:5: input_length: Expected `int`, got `str` 'long'"


def test_whole_numbers_may_have_a_point_and_fields_that_may_be_missing_may_be_null(tmp_path: Path) -> None:
    wanted = open_trace(write_lines(tmp_path / "t.jsonl", *BAILIAN))
    floats = [row | {"chat_id": float(row["chat_id"]), "input_length": float(row["input_length"])} for row in BAILIAN]
    assert open_trace(write_lines(tmp_path / "f.jsonl", *floats)).requests == wanted.requests
    call = {"t": 0.0, "in": 130, "out": 5}
    session = {"id": "a", "hash_id_scope": "local", "requests": [call]}
    wanted = open_trace(write_lines(tmp_path / "s.jsonl", session))
    nulls = {"block_size": None, "requests": [call | {"type": None, "hash_ids": None, "stop": None}]}
    assert open_trace(write_lines(tmp_path / "n.jsonl", session | nulls)).requests == wanted.requests
    half = write_lines(tmp_path / "h.jsonl", MOONCAKE[0] | {"input_length": 100.5})
    assert refusal(half) == "h.jsonl:1: input_length: Expected `int`, got `float` 100.5"


def test_a_rate_of_infinity_that_bench_serving_writes_is_not_looked_at(tmp_path: Path) -> None:
    run: dict[str, Any] = {
        "request_rate": float("inf"),
        "duration": 5.0,
        "total_input_tokens": 9,
        "accept_length": float("nan"),
    }
    run |= {"input_lens": [4, 5], "output_lens": [1, 2]}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", run))
    assert (trace.format, [request.prompt_tokens for request in trace.requests]) == ("bench-serving", [4, 5])
    bad = write_lines(tmp_path / "b.jsonl", run | {"duration": float("inf")})
    assert refusal(bad) == "b.jsonl:1: request_rate: Infinity, must be a number, or null where it may be missing"


def test_an_answer_of_wildchat_may_be_null(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "12345678"}, {"role": "assistant", "content": None, "timestamp": 5}]
    row = {"conversation_hash": "a", "timestamp": "2023-04-09T00:02:53", "conversation": said}
    (request,) = open_trace(write_lines(tmp_path / "t.jsonl", row)).requests
    assert (request.prompt_tokens, request.output_tokens) == (2, 1)
