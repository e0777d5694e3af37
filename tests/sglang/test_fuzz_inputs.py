"""Whatever is written into flags, files of settings and traces: a result or an error that says what is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from eval.__main__ import main
from eval.traces import FORMATS, TraceError, open_trace
from radix_tlru import Config, ConfigError
from radix_tlru.config import FLAGS
from radix_tlru.tools.demo_model import write_demo_model
from tests.helpers.examples import examples

TEXTS = st.text(max_size=8)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
# As flags and files carry it: near to what is allowed, or anything.
WRITTEN = st.sampled_from(["tlru", "lru", "p95", "p50.0", "p101", "0", "200", "2048", "1e3", "0.2", "nan", "-0", "٣"])
FEW = settings(max_examples=25, suppress_health_check=list(HealthCheck))


def assert_one_line(text: str) -> None:
    assert text.strip()
    assert "\n" not in text.strip()
    assert "Traceback" not in text


@given(st.dictionaries(st.sampled_from(sorted(FLAGS)), ANYTHING | WRITTEN))
@settings(max_examples=examples(1_000))
def test_a_configuration_is_valid_or_refused_in_one_line(fields: dict[str, object]) -> None:
    try:
        config = Config(**fields)  # type: ignore[arg-type]
    except ConfigError as error:
        assert_one_line(str(error))
    else:
        assert_one_line(str(config))
        assert config.start_threshold > 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("model") / "demo"
    write_demo_model(directory)
    return str(directory)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins import load_plugins

    monkeypatch.setenv("SGLANG_PLATFORM", "torch_cpu")
    load_plugins()


def parse_or_refuse(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    from sglang.srt.server_args import prepare_server_args

    capfd.readouterr()  # by descriptor: a terminal prints half a surrogate pair as it can, and so does that
    status = 0
    try:
        prepare_server_args(arguments)
    except SystemExit as stopped:
        status = stopped.code
    assert status in (0, 2)
    if status:
        told = capfd.readouterr().err  # by argparse itself with the value as it is, line breaks and all
        assert re.search(r"^[^\n]*: error: \S", told, re.MULTILINE)


FLAG_VALUES = st.dictionaries(st.sampled_from(sorted(FLAGS.values())), WRITTEN | TEXTS, min_size=1)


@pytest.mark.usefixtures("on_the_cpu")
@given(FLAG_VALUES)
@FEW
def test_flags_start_a_server_or_end_with_status_2(
    model: str, capfd: pytest.CaptureFixture[str], flags: dict[str, str]
) -> None:
    parse_or_refuse(["--model-path", model, *(f"{flag}={value}" for flag, value in flags.items())], capfd)


@pytest.mark.usefixtures("on_the_cpu")
@given(st.dictionaries(st.sampled_from(sorted(FLAGS.values())), ANYTHING | WRITTEN, min_size=1))
@example({"--tlru-host-threshold": [None, "𐀀"]})  # two halves of a pair, as YAML reads what JSON writes
@FEW
def test_a_file_of_settings_starts_a_server_or_ends_with_status_2(
    model: str, tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str], flags: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("settings") / "server.yaml"
    file.write_text(json.dumps({flag.removeprefix("--"): value for flag, value in flags.items()}))  # JSON is YAML
    parse_or_refuse(["--model-path", model, "--config", str(file)], capfd)


RECORDS = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": st.integers() | st.floats() | ANYTHING,
        "input_length": st.integers(-1, 2_000) | ANYTHING,
        "output_length": st.integers(-1, 100) | ANYTHING,
        "hash_ids": st.lists(st.integers(-1, 9), max_size=5) | ANYTHING,
        "conversation": st.lists(
            st.fixed_dictionaries(
                {}, optional={"role": st.sampled_from(["user", "assistant"]), "content": st.text() | ANYTHING}
            ),
            max_size=4,
        )
        | ANYTHING,
        "conversation_hash": st.text(max_size=4) | ANYTHING,
        "conversations": st.lists(
            st.fixed_dictionaries(
                {}, optional={"from": st.sampled_from(["human", "gpt"]), "value": st.text() | ANYTHING}
            ),
            max_size=4,
        )
        | ANYTHING,
        "id": ANYTHING,
        "turn": ANYTHING,
    },
)
CONTENTS = st.binary(max_size=200) | st.lists(RECORDS | ANYTHING, max_size=4).map(
    lambda records: "\n".join(map(json.dumps, records)).encode()
)


@given(CONTENTS, st.sampled_from([".jsonl", ".json", ".parquet", ".txt"]), st.none() | st.sampled_from(FORMATS))
@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_file_is_a_trace_or_refused(
    tmp_path_factory: pytest.TempPathFactory, skip_bad: bool, contents: bytes, suffix: str, format: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / f"fuzz{suffix}"
    path.write_bytes(contents)
    try:
        trace = open_trace(str(path), format=format, skip_bad=skip_bad)
        assert trace.requests
    except TraceError as error:
        assert_one_line(str(error))


@given(
    st.sampled_from(["synthetic", "chat-mix", "figure1"]),
    st.text(alphabet="abcdeilnorstvm_=,:/.-0123456789", max_size=30),
)
@settings(max_examples=examples(300))
def test_parameters_of_a_made_trace_are_read_or_refused_in_one_line(name: str, parameters: str) -> None:
    try:
        open_trace(f"{name}:{parameters}", limit=10)
    except TraceError as error:
        assert_one_line(str(error))


def test_the_command_line_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"\x00\xff{")
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main(["trace", str(path)]))
    assert stopped.value.code
    assert_one_line(capsys.readouterr().err)


COMMANDS: dict[str, tuple[list[str], list[str]]] = {
    "later": (
        ["--threshold", "600"],
        ["--from", "--threshold", "--capacity", "--page-size", "--median-weight", "--next-prompt-estimate"],
    ),
    "hostile": (
        ["--policy", "tlru", "--strength", "0.1"],
        ["--strength", "--threshold", "--capacity", "--page-size", "--next-prompt-estimate", "--median-weight"],
    ),
}
"""By command: what makes it quick, and the flags whose values are numbers."""

REFUSED_ALWAYS = ("", "words", "1e", "1,000")
ODD = ("0", "-1", "nan", "inf", "-inf", "1e300", "0.5", "٣", "1M", "p101")


@pytest.mark.parametrize(
    ("command", "flag"), [(command, flag) for command, (_, flags) in COMMANDS.items() for flag in flags]
)
def test_a_number_given_to_a_command_is_used_or_refused_in_one_line(
    command: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["--trace", "synthetic:conversations=6", "--capacity", "2k", *COMMANDS[command][0]]
    for value in (*REFUSED_ALWAYS, *ODD):
        capsys.readouterr()
        status = main([command, *usual, f"{flag}={value}"])
        said = capsys.readouterr().err
        if status:
            assert said.startswith(f"eval {command}: ")
            assert_one_line(said)
        assert status == 2 or (status == 0 and value not in REFUSED_ALWAYS), (value, status)
