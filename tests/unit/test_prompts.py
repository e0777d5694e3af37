"""Files of prompts that are to be warm: what they may hold, and the one line that says what is wrong with one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radix_tlru.config import ConfigError
from radix_tlru.tools.prompts import MOST_PROMPTS, Prompt, read_prompts
from tests.helpers.paths import REPOSITORY

MESSAGES = [{"role": "system", "content": "Be kind."}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def written(folder: Path, *rows: Any) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_file_has_a_prompt_in_each_row(tmp_path: Path) -> None:
    rows = (
        {"text": "Once"},
        {"name": "support", "messages": MESSAGES, "tools": TOOLS},
        {"input_ids": [0, 7], "lora_path": "a", "cache_salt": "b"},
    )
    file = written(tmp_path, *rows)
    assert read_prompts(file) == (
        Prompt(f"{file}, row 1", "prompts.jsonl:1", text="Once"),
        Prompt(f"{file}, row 2", "support", messages=MESSAGES, tools=TOOLS),
        Prompt(f"{file}, row 3", "prompts.jsonl:3", input_ids=[0, 7], lora_path="a", cache_salt="b"),
    )


def test_the_example_of_the_readme_is_read(tmp_path: Path) -> None:
    section = (REPOSITORY / "radix_tlru" / "sglang" / "README.md").read_text().partition("## Warm prompts")[2]
    file = tmp_path / "prompts.jsonl"
    file.write_text(section.partition("```json\n")[2].partition("```")[0])
    assert [prompt.name for prompt in read_prompts(file)] == ["support", "prompts.jsonl:2", "prompts.jsonl:3"]


def test_rows_are_counted_as_an_editor_counts_them(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('\n{"text": "Once"}\n\n')
    assert [prompt.where for prompt in read_prompts(file)] == [f"{file}, row 2"]


def test_a_folder_has_a_file_for_each_prompt(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("Once\nupon")
    (tmp_path / "a.json").write_text(json.dumps({"messages": MESSAGES}))
    first, second = read_prompts(tmp_path)
    assert first == Prompt(str(tmp_path / "a.json"), "a.json", messages=MESSAGES)
    assert second == Prompt(str(tmp_path / "b.txt"), "b.txt", text="Once\nupon")


def test_a_mark_of_the_encoding_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"text": "Once"}', encoding="utf-8-sig")
    (tmp_path / "b.txt").write_text("Once", encoding="utf-8-sig")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["Once", "Once"]
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.json")] == ["Once"]


def test_the_line_ends_of_a_text_are_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"Once\r\nupon\r\n")
    (tmp_path / "b.txt").write_bytes(b"Once\nupon\n")
    assert [prompt.text for prompt in read_prompts(tmp_path)] == ["Once\r\nupon\r\n", "Once\nupon\n"]
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"text": "Once"}\r\n{"text": "upon"}\r\n')
    assert [prompt.text for prompt in read_prompts(rows)] == ["Once", "upon"]


def test_what_is_hidden_in_a_folder_is_no_prompt(tmp_path: Path) -> None:
    """A volume of Kubernetes has its files in a hidden folder that changes, and links to them."""
    (tmp_path / "..2026_11_28").mkdir()
    (tmp_path / "..2026_11_28" / "a.txt").write_text("Once")
    (tmp_path / "..data").symlink_to("..2026_11_28")
    (tmp_path / "a.txt").symlink_to("..data/a.txt")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    assert [prompt.name for prompt in read_prompts(tmp_path)] == ["a.txt"]


WRONG = [
    ("Once", '"Once": must be an object with one of text, messages, input_ids'),
    ({}, "no prompt: must be one of text, messages, input_ids"),
    ({"text": "a", "input_ids": [1]}, "text and input_ids: must be one of text"),
    ({"prompt": "a"}, 'prompt "a": must be left out; known are text, messages'),
    ({"text": ""}, 'text "": must be a text that is not empty'),
    ({"text": 5}, "text 5: must be a text"),
    ({"input_ids": []}, "input_ids []: must be a list of one or more token ids"),
    ({"input_ids": [1, -1]}, "input_ids [1, -1]: must be a list of one or more token ids, 0 or more"),
    ({"input_ids": [True]}, "input_ids [true]: must be"),
    ({"messages": "Hi"}, 'messages "Hi": must be a list of one or more objects with a role'),
    ({"messages": [{"content": "Hi"}]}, 'messages [{"content": "Hi"}]: must be'),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        'messages [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "dat...: must be '
        "a list of one or more objects with a role, as of a chat completion of text",
    ),
    ({"text": "a", "tools": TOOLS}, "tools ["),
    ({"text": "a", "name": "b\nc"}, 'name "b\\nc": must be a text that is not empty, of one line'),
    ({"text": "a", "name": "\x1b[2J"}, 'name "\\u001b[2J": must be a text that is not empty, of one line'),
    ({"text": "a", "lora_path": 1}, "lora_path 1: must be a text"),
    ({"text": "a", "cache_salt": None}, "cache_salt null: must be a text"),
]


@pytest.mark.parametrize(("row", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_row_is_named_with_its_field_and_what_is_allowed(row: Any, message: str, tmp_path: Path) -> None:
    file = written(tmp_path, {"text": "a"}, row)
    with pytest.raises(ConfigError) as error:
        read_prompts(file)
    assert str(error.value).startswith(f"{file}, row 2: {message}")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"text": "a", "text": "b"}', '"text": must be there once'),
        ('{"messages": [{"role": "user", "content": "a", "content": "b"}]}', '"content": must be there once'),
        ('{"messages": [{"role": "user", "content": NaN}]}', r".*: must be JSON"),
        ('{"messages": [{"role": "user", "content": -Infinity}]}', r".*: must be JSON"),
    ],
)
def test_a_row_that_a_server_would_be_asked_for_otherwise_is_refused(row: str, said: str, tmp_path: Path) -> None:
    """Of two fields with one name JSON keeps the last, and a body has no number that is none."""
    file = tmp_path / "prompts.jsonl"
    file.write_text(f'{{"text": "a"}}\n{row}\n')
    with pytest.raises(ConfigError, match=f"^{file}, row 2: {said}$"):
        read_prompts(file)


@pytest.mark.parametrize("name", [b"two\nlines.txt", b"clear\x1b[2J.txt", b"latin \xfc.txt"])
def test_a_file_whose_name_no_table_and_no_metric_can_have_is_refused(name: bytes, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(name)).write_text("Once")
    with pytest.raises(ConfigError, match=r"name .*: must be a text that is not empty, of one line$") as error:
        read_prompts(tmp_path)
    assert str(error.value).isprintable()


def test_what_is_no_file_of_prompts_is_refused(tmp_path: Path) -> None:
    empty, binary, broken = tmp_path / "empty", tmp_path / "binary", tmp_path / "broken"
    empty.touch()
    binary.write_bytes(b"\xff\xfe")
    broken.write_text('{"text": "a"')
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.txt").write_text("Once")
    (folder / "b.txt").write_bytes(b"\xff\xfe")
    many = written(tmp_path, *({"text": "a", "name": str(number)} for number in range(MOST_PROMPTS + 1)))
    for file, message in (
        (tmp_path / "missing", "missing: No such file"),
        (empty, "empty: 0 prompts: must be from 1 to 1,000"),
        (many, "prompts.jsonl: 1001 prompts: must be from 1 to 1,000"),
        (binary, "binary: must be text in UTF-8"),
        (broken, r"broken, row 1: .*: must be JSON"),
        (tmp_path, "binary: must be a .txt with a prompt, or a .json with an object"),
        (folder, "folder/b.txt: must be text in UTF-8"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_prompts(file)


def test_a_file_may_have_a_thousand_prompts(tmp_path: Path) -> None:
    file = written(tmp_path, *({"text": "a"} for _ in range(MOST_PROMPTS)))
    assert len(read_prompts(file)) == MOST_PROMPTS == 1_000


def test_a_name_is_that_of_one_prompt(tmp_path: Path) -> None:
    file = written(tmp_path, {"text": "a", "name": "n"}, {"text": "b", "name": "n"})
    with pytest.raises(ConfigError, match=r'row 2: name "n": must be another one than that of .*, row 1$'):
        read_prompts(file)


def test_a_row_is_refused_in_one_line_however_deeply_it_is_nested(tmp_path: Path) -> None:
    """Where Python still reads it and cannot write it, as where it cannot read it."""
    file = tmp_path / "prompts.jsonl"
    for depth in range(1, sys.getrecursionlimit()):
        file.write_text(f'{{"text": {"[" * depth}{"]" * depth}}}')
        with pytest.raises(ConfigError, match=r"^.*, row 1: .*: must be ") as error:
            read_prompts(file)
        assert len(str(error.value)) < len(str(file)) + 150


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = st.sampled_from(["text", "messages", "input_ids", "tools", "name", "lora_path", "cache_salt"])


@given(row=st.dictionaries(FIELDS, JSON, max_size=3) | JSON)
def test_whatever_a_row_has_is_read_or_refused_in_one_line(row: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = written(tmp_path_factory.getbasetemp(), row)
    refused = ""
    prompts: tuple[Prompt, ...] = ()
    try:
        prompts = read_prompts(file)
    except ConfigError as error:
        refused = str(error)
    assert len(prompts) == (0 if refused else 1)
    assert not refused or (refused.startswith(str(file)) and "\n" not in refused)
