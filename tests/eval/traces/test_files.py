"""How files open: packed or not, with or without a mark, one document or lines, a table, a folder."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eval.traces import open_trace
from eval.traces.reading.files import Source
from tests.helpers.trace_files import lines, refusal, said, write_lines

ROWS = [
    {"timestamp": 0, "input_length": 1200, "output_length": 30, "hash_ids": [7, 8, 9]},
    {"timestamp": 1500, "input_length": 1100, "output_length": 40, "hash_ids": [7, 8, 10]},
]
RAW = lines(ROWS)


def zst(raw: bytes) -> bytes:
    return bytes(pa.compress(raw, codec="zstd", asbytes=True))


ZST = zst(RAW)


def tar(raw: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        inside = tarfile.TarInfo("t.jsonl")
        inside.size = len(raw)
        archive.addfile(inside, io.BytesIO(raw))
    return packed.getvalue()


def parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


def arrow(path: Path, opened: Callable[..., Any]) -> None:
    table = pa.Table.from_pylist(ROWS)
    with opened(str(path), table.schema) as writer:
        for batch in table.to_batches(max_chunksize=1):
            writer.write_batch(batch)


def pretty(path: Path) -> None:
    path.write_text("\n\n".join(json.dumps(row, indent=2) for row in ROWS))


GZ = gzip.compress(RAW, mtime=0)  # names of tests have it, and every process of xdist must find the same ones

FORMS: dict[str, Callable[[Path], Any]] = {
    "t.jsonl": lambda path: path.write_bytes(RAW),
    "t.jsonl.gz": lambda path: path.write_bytes(GZ),
    "packed.jsonl": lambda path: path.write_bytes(GZ),  # the name does not say so
    "t.jsonl.zst": lambda path: path.write_bytes(ZST),
    "t.jsonl.bz2": lambda path: path.write_bytes(bz2.compress(RAW)),
    "t.jsonl.xz": lambda path: path.write_bytes(lzma.compress(RAW)),
    "T.JSONL.GZ": lambda path: path.write_bytes(GZ),
    "two-frames.jsonl.zst": lambda path: path.write_bytes(b"".join(zst(lines([row])) for row in ROWS)),
    "mark.jsonl": lambda path: path.write_bytes(b"\xef\xbb\xbf" + RAW),
    "mark.jsonl.gz": lambda path: path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + RAW)),
    "utf16.jsonl": lambda path: path.write_bytes(RAW.decode().encode("utf-16")),
    "windows.jsonl": lambda path: path.write_bytes(RAW.replace(b"\n", b"\r\n")),
    "blank.jsonl": lambda path: path.write_bytes(b"\n  \n" + RAW.replace(b"\n", b"\n\n")),
    "array.json": lambda path: path.write_text(json.dumps(ROWS)),
    "pretty-array.json": lambda path: path.write_text("\n " + json.dumps(ROWS, indent=4)),
    "pretty.json": pretty,
    "no-suffix": lambda path: path.write_bytes(RAW),
    "t.parquet": parquet,
    "stream.arrow": lambda path: arrow(path, pa.ipc.new_stream),  # as datasets saves to disk
    "file.arrow": lambda path: arrow(path, pa.ipc.new_file),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_file_gives_the_same_requests(tmp_path: Path, name: str) -> None:
    plain = open_trace(write_lines(tmp_path / "plain.jsonl", *ROWS)).requests
    FORMS[name](tmp_path / name)
    trace = open_trace(str(tmp_path / name))
    assert trace.requests == plain
    assert trace.name == name.split(".")[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl.gz", RAW, "ends in .gz, and is not compressed so"),
        ("t.jsonl.zst", RAW, "ends in .zst, and is not compressed so"),
        ("t.jsonl.gz", GZ[:40], "Compressed file ended before the end-of-stream marker was reached"),
        ("t.jsonl.gz", GZ[:20] + b"garbage", "trace t.jsonl.gz: "),
        ("t.jsonl.zst", zst(RAW)[:-9], "trace t.jsonl.zst: Truncated compressed stream"),
        ("t.jsonl.bz2", RAW, "ends in .bz2, and is not compressed so"),
        ("t.jsonl.bz2", bz2.compress(RAW)[:60], "Compressed file ended before the end-of-stream marker was reached"),
        ("t.jsonl.xz", lzma.compress(RAW)[:60], "Compressed file ended before the end-of-stream marker was reached"),
        ("t.jsonl.xz", lzma.compress(RAW)[:8] + b"garbage", "trace t.jsonl.xz: "),
        ("t.json", b"\xff\xfe\x00", "not UTF-16"),
        ("t.jsonl", b'{"conversations": "caf\xe9"}\n', "t.jsonl:1: not UTF-8: "),
        ("t.pkl", b"\x80\x04\x95", "is a pickle, which can run code: write JSON instead"),
        ("t.zip", b"PK\x03\x04rest", "is an archive: unpack it"),
        ("t.tar", tar(RAW), "trace t.tar: is an archive: unpack it"),
        ("t.jsonl.tgz", gzip.compress(tar(RAW)), "trace t.jsonl.tgz: is an archive: unpack it"),
        ("t.tar.bz2", bz2.compress(tar(RAW)), "trace t.tar.bz2: is an archive: unpack it"),
        ("t.tar.xz", lzma.compress(tar(RAW)), "trace t.tar.xz: is an archive: unpack it"),
        ("t.tar.zst", zst(tar(RAW)), "trace t.tar.zst: is an archive: unpack it"),
        ("t.jsonl", b"{}\n", "t.jsonl:1: of no known format: it has no fields; known are bailian, "),
        ("t.parquet", b"PAR1 and then nothing", "not a Parquet file that can be read (ArrowInvalid: "),
        ("t.arrow", RAW, "not an Arrow file that can be read (ArrowInvalid: "),
        ("t.arrow", b"ARROW1\0\0and then nothing", "not an Arrow file that can be read (ArrowInvalid: "),
        ("t.arrow", b"", "not an Arrow file that can be read (ArrowInvalid: "),
        ("t.jsonl", b"", "trace t.jsonl: empty"),
        ("t.json", b"[]", "trace t.json: empty"),
        ("t.json", b"[{}", "t.json: not JSON: Expecting ',' delimiter: line 1 column 4 (char 3)"),
        ("t.jsonl", b'{"a": 1, "b": 2}\n', "t.jsonl:1: of no known format: its fields are a, b; known are bailian, "),
        ("t.json", b'{\n"a": 1\n}\n{"timest', "t.json: record 1: of no known format"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert message in refusal(name)


@pytest.mark.parametrize("separator", [",", ",\n"])
def test_a_json_array_is_held_once_while_it_is_read(separator: str, tmp_path: Path) -> None:
    items = [json.dumps({"text": "x" * 100_000})] * 80
    path = tmp_path / "t.json"
    path.write_text(f"[{separator.join(items)}]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in Source.of(str(path)).records()) == len(items)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A line that is all of the file is joined from parts while it is looked at.
    assert most < (2.5 if separator == "," else 1.5) * path.stat().st_size


def test_a_broken_document_behind_sound_ones_is_a_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(ROWS[0], indent=1) + "\n{broken")
    assert refusal(str(path)).startswith("t.json: record 2: not JSON")
    assert open_trace(str(path), skip_bad=True).skipped == 1


def test_a_format_is_told_by_the_first_record_that_can_be_read(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "t.jsonl", "broken", ROWS[0])
    assert open_trace(source, skip_bad=True).skipped == 1
    assert refusal(source).startswith("t.jsonl:1: not JSON")


def test_a_folder_is_one_trace(tmp_path: Path) -> None:
    write_lines(tmp_path / "day" / "b.jsonl", ROWS[1])
    write_lines(tmp_path / "day" / "deeper" / "a.jsonl", ROWS[0])
    (tmp_path / "day" / "notes.txt").write_text("of another day")
    (tmp_path / "day" / ".hidden.jsonl").write_text("not looked at")
    (tmp_path / "day" / "picture.png").write_bytes(b"\x89PNG")
    trace = open_trace(str(tmp_path / "day"))
    assert (trace.name, len(trace.requests)) == ("day", 2)
    assert [request.arrival_s for request in trace.requests] == [0.0, 1.5]
    assert said(trace, "left out") == (
        "1 files of the folder, by their names no traces: picture.png; "
        "1 of 3 files of the folder, which is read as mooncake: notes.txt:1: not JSON: "
        "JSON is malformed: invalid character (byte 0)"
    )


def test_a_folder_is_read_in_all_forms_of_files_and_the_others_are_named(tmp_path: Path) -> None:
    (tmp_path / "day1.JSONL").write_bytes(RAW)
    (tmp_path / "day2.jsonl.BZ2").write_bytes(bz2.compress(RAW))
    (tmp_path / "day3.jsonl.xz").write_bytes(lzma.compress(RAW))
    for name in ("day4", "day5.tsv", "day6.jsonl.zip", "day7.old"):
        (tmp_path / name).write_bytes(RAW)
    trace = open_trace(str(tmp_path))
    assert len(trace.requests) == 3 * len(ROWS)
    assert said(trace, "left out") == (
        "4 files of the folder, by their names no traces: day4, day5.tsv, day6.jsonl.zip, 1 more"
    )


@pytest.mark.parametrize("name", ["s.log.1", "s.log.2.gz", "s.log-20251125", "s.log.2025-11-25_10"])
def test_a_log_that_was_rotated_is_a_file_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(RAW, mtime=0) if name.endswith(".gz") else RAW)
    assert len(open_trace(str(tmp_path)).requests) == 2


def test_a_pipe_is_refused_with_what_to_do(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for source in (str(pipe), "-"):
        assert f"trace {source}: is a pipe, and a trace is read more than once: write it to a file" in refusal(source)


def test_broken_files_and_those_of_other_formats_are_named_with_the_reason(tmp_path: Path) -> None:
    write_lines(tmp_path / "day1.jsonl", *ROWS)
    write_lines(tmp_path / "day2.jsonl", *ROWS)
    write_lines(tmp_path / "chats.jsonl", {"conversations": [{"from": "human", "value": "hi"}]})
    write_lines(tmp_path / "cut.jsonl", '{"timestamp": 0, "input_le')
    write_lines(tmp_path / "other.jsonl", {"a": 1})
    (tmp_path / "void.jsonl").write_text("")
    note = said(open_trace(str(tmp_path)), "left out")
    assert note.startswith("4 of 6 files of the folder, which is read as mooncake: ")
    assert "cut.jsonl:1: not JSON: Input data was truncated" in note
    assert "other.jsonl:1: of no known format: its fields are a;" in note
    assert note.endswith("; 1 more")


def test_a_format_is_told_however_many_other_lines_come_first(tmp_path: Path) -> None:
    # A session of Claude Code may begin with as many summaries; a server logs as much before its first request.
    summary = {"type": "summary", "summary": "x", "leafUuid": "y"}
    trace = open_trace(write_lines(tmp_path / "t.jsonl", *[summary] * 3_000, *ROWS), skip_bad=True)
    assert (trace.format, len(trace.requests), trace.skipped) == ("mooncake", 2, 3_000)


def test_an_unknown_format_is_refused_with_the_flag_that_names_one(tmp_path: Path) -> None:
    message = refusal(write_lines(tmp_path / "t.jsonl", {"a": 1}))
    assert message.startswith("t.jsonl:1: of no known format: its fields are a; known are bailian, mooncake, ")
    assert message.endswith(": --format NAME if it is one of them, else see 'A trace of one's own' in eval/README.md")
    # A log of another engine, whose lines are no records at all.
    (tmp_path / "t.log").write_text("INFO 10:00:00 logger.py: Received request cmpl-1: prompt: 'hi'\n")
    assert "t.log:1: not JSON: JSON is malformed: invalid character (byte 0); known are bailian, " in refusal(
        str(tmp_path / "t.log")
    )


def test_an_error_in_a_folder_names_the_file_within_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "day" / "a.jsonl", ROWS[0])
    write_lines(tmp_path / "day" / "deeper" / "b.jsonl", ROWS[1], "broken")
    assert refusal(str(tmp_path / "day")).startswith("deeper/b.jsonl:2: not JSON")


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert refusal(str(tmp_path)).endswith(
        "the folder holds no file that ends in .json, .jsonl, .ndjson, .parquet, .arrow, .csv, .log, .txt, .traj"
    )
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert "a.json:1: of no known format" in refusal(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("", {}, "trace '': must be the name of a file, a folder, a data set or a generated workload"),
        ("none.jsonl", {}, "trace none.jsonl: no such file"),
        ("agent", {}, "trace agent: no such file, and none is generated by that name: see `eval trace --list`"),
        ("folder/none.jsonl.gz", {}, "trace folder/none.jsonl.gz: no such file"),
        ("synthetic", {"limit": 0}, "limit: 0 requests, must be 1 or more"),
        ("synthetic", {"block_size": 0}, "block_size: 0 tokens, must be 1 or more"),
        ("synthetic", {"characters_per_token": 0.0}, "characters_per_token: 0.0, must be a number above 0"),
        ("synthetic", {"format": "csv"}, "format csv: not one of bailian, mooncake, wildchat, sharegpt, "),
        ("x.jsonl", {"format": "figure1"}, "trace x.jsonl: is not made by figure1, whose source is 'figure1'"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_with_what_can(
    source: str, arguments: dict[str, Any], message: str
) -> None:
    assert message in refusal(source, **arguments)
