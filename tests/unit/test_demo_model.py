"""The demo model: a directory that SGLang, transformers and tokenizers read as they read any model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from radix_tlru.cli import main
from radix_tlru.tools.demo_model import SPECIAL_TOKENS, write_demo_model
from tests.helpers.paths import REPOSITORY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "demo"
    write_demo_model(directory)
    return directory


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@given(text=st.text())
def test_a_text_is_its_bytes_and_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_byte_is_one_token(tokenizer: Tokenizer) -> None:
    # Some byte values never occur in UTF-8, so no text reaches them: the pieces themselves, one letter each.
    assert {len(tokenizer.id_to_token(byte) or "") for byte in range(256)} == {1}


def test_a_special_token_is_one_token_and_still_round_trips(tokenizer: Tokenizer) -> None:
    text = "".join(f"a{name}" for name in SPECIAL_TOKENS)
    ids = tokenizer.encode(text).ids
    assert len(ids) == 2 * len(SPECIAL_TOKENS)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_every_id_that_the_model_can_draw_is_a_token(model: Path, tokenizer: Tokenizer) -> None:
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    assert vocabulary >= 512
    assert tokenizer.get_vocab_size() == vocabulary
    assert all(tokenizer.id_to_token(i) for i in range(vocabulary))


def test_transformers_reads_the_same_model(model: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoConfig, AutoTokenizer

    config = AutoConfig.from_pretrained(model)
    assert config.max_position_embeddings == 32_768
    assert config.num_hidden_layers == 2
    assert config.eos_token_id is None  # nothing ends an answer but its length

    theirs = AutoTokenizer.from_pretrained(model)
    text = "Grüße, 世界!  <|user|>\n\t🙂"
    assert theirs.encode(text) == tokenizer.encode(text).ids
    assert theirs.decode(theirs.encode(text)) == text
    assert theirs.eos_token_id is None


def test_the_prompt_of_a_turn_is_a_prefix_of_the_next_one(model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    second = [*first, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Bye"}]
    prompts = [
        tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False) for turns in (first, second)
    ]
    # <|bos|>, then per message its role, its bytes and <|eos|>, then <|assistant|>: 1 + (2 + 9) + (2 + 5) + 1
    assert len(prompts[0]) == 20
    assert prompts[1][:20] == prompts[0]


def test_writing_twice_changes_nothing(model: Path) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in model.iterdir()}
    write_demo_model(model)
    assert before == {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in model.iterdir()}


def test_a_damaged_demo_model_is_repaired(tmp_path: Path) -> None:
    write_demo_model(tmp_path)
    right = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_text("")
    write_demo_model(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == right


@pytest.mark.parametrize("content", ["not JSON", "[]", '{"model_type": "llama"}'])
def test_a_directory_with_another_model_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(
        FileExistsError, match="other files than a demo model; give a directory that is missing, empty or"
    ):
        write_demo_model(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == content


def test_the_command_writes_a_model_and_says_how_to_serve_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shown in (("new/model", f"{tmp_path}/new/model"), ("a model", f"'{tmp_path}/a model'")):
        directory = tmp_path / name
        assert main(["demo-model", str(directory)]) == 0
        assert (directory / "tokenizer.json").is_file()
        assert f"--model-path {shown} --load-format dummy" in capsys.readouterr().out


def test_the_command_refuses_a_file_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights.bin"
    path.touch()
    assert main(["demo-model", str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors == f"radix-tlru: error: {path} is a file; give a directory that is missing, empty or a demo model\n"


def test_without_tokenizers_the_command_says_what_to_install(tmp_path: Path) -> None:
    # -S leaves site-packages out: this interpreter has the checkout and nothing else.
    ended = subprocess.run(
        [sys.executable, "-S", "-m", "radix_tlru.cli", "demo-model", str(tmp_path / "model")],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        "radix-tlru: error: the tokenizer of the demo model needs the package `tokenizers`: "
        "in a checkout, pip install '.[serve]'"
    ]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("words", [("demo-model", ""), ("state", ""), ("warm", "http://127.0.0.1:1", "")])
def test_an_empty_name_is_not_the_current_folder(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of a variable of the shell that is not set."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompt.txt").write_text("Once upon a time")
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(": '': must be the name of a file or folder")
    assert [each.name for each in tmp_path.iterdir()] == ["prompt.txt"]


def test_a_folder_below_a_file_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["demo-model", str(tmp_path / "file" / "model")]) == 2
    assert capsys.readouterr().err == f"radix-tlru: error: {tmp_path / 'file' / 'model'}: Not a directory\n"
