"""A file or folder of prompts that are to be warm, read and checked before a server hears of any.

A file has a JSON object in each line. A folder has a ``.txt`` for each prompt, or a ``.json`` with such an object.
Hidden names (``.git``, the ``..data`` of a volume that Kubernetes mounts) are skipped.

==============  =========================================================================================
field           is
==============  =========================================================================================
``text``        a prompt as it is
``messages``    of a chat of text, through the model's own chat template; ``tools`` may come with them
``input_ids``   token ids
``name``        what it is called in tables and metrics; by default its file, or its file and row
``lora_path``   the LoRA adapter that it is for, by the server's name
``cache_salt``  the salt of the requests that begin with it
==============  =========================================================================================

A prompt has one of the first three.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from radix_tlru.config import ConfigError, shown

__all__ = ["MOST_PROMPTS", "Prompt", "read_prompts"]

MOST_PROMPTS = 1_000
"""Prompts of a file; each has metrics of its own."""

_SAID_BY = ("text", "messages", "input_ids")
_FIELDS = (*_SAID_BY, "tools", "name", "lora_path", "cache_salt")
_SEEN = ("image_url", "input_image", "video_url", "audio_url", "input_audio")  # parts of a message, by their type


class Prompt(NamedTuple):
    """A prompt that is to be warm."""

    where: str  # it was found: the file, and the row of one with several
    name: str
    text: str | None = None
    messages: list[dict[str, Any]] | None = None
    input_ids: list[int] | None = None
    tools: list[dict[str, Any]] | None = None
    lora_path: str | None = None
    cache_salt: str | None = None


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file or folder, in the order of its rows or names.

    Raises:
        ConfigError: one cannot be read; the message names file, row, field, value, and what is allowed.
    """
    try:
        prompts = tuple(_of_folder(path) if path.is_dir() else _of_lines(path))
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from None
    if not 0 < len(prompts) <= MOST_PROMPTS:
        raise ConfigError(f"{path}: {len(prompts)} prompts: must be from 1 to {MOST_PROMPTS:,}")
    found: dict[str, str] = {}
    for prompt in prompts:
        if prompt.name in found:
            raise _error(prompt.where, "name", prompt.name, f"another one than that of {found[prompt.name]}")
        found[prompt.name] = prompt.where
    return prompts


def _of_folder(folder: Path) -> Iterator[Prompt]:
    for file in sorted(folder.iterdir()):
        if file.name.startswith("."):
            continue
        if file.suffix == ".txt":
            yield _prompt({"text": _read(file)}, str(file), file.name)
        elif file.suffix == ".json":
            yield _prompt(_parsed(_read(file), str(file)), str(file), file.name)
        else:
            raise ConfigError(f"{file}: must be a .txt with a prompt, or a .json with an object")


def _of_lines(file: Path) -> Iterator[Prompt]:
    for row, line in enumerate(_read(file).split("\n"), start=1):
        if line.strip():
            where = f"{file}, row {row}"
            yield _prompt(_parsed(line, where), where, f"{file.name}:{row}")


def _read(file: Path) -> str:
    """The text of a file. Some editors begin it with a mark of the encoding, which is no part of a prompt."""
    try:
        return file.read_bytes().decode("utf-8-sig")  # with the line ends that it has: they are tokens, too
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: must be text in UTF-8") from None


def _parsed(text: str, where: str) -> Any:
    def refused(constant: str) -> None:
        raise ValueError(constant)  # NaN or Infinity, which no body of a request has

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in fields if names.count(name) > 1)
            raise ConfigError(f"{where}: {shown(twice)}: must be there once")
        return fields

    try:
        return json.loads(text, parse_constant=refused, object_pairs_hook=once)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        raise ConfigError(f"{where}: {shown(text.strip())}: must be JSON") from None


def _prompt(given: Any, where: str, name: str) -> Prompt:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {shown(given)}: must be an object with one of {', '.join(_SAID_BY)}")
    for field, value in given.items():
        if field not in _FIELDS:
            raise _error(where, field, value, f"left out; known are {', '.join(_FIELDS)}")
    said = [field for field in _SAID_BY if field in given]
    if len(said) != 1:
        raise ConfigError(f"{where}: {' and '.join(said) or 'no prompt'}: must be one of {', '.join(_SAID_BY)}")
    for field, value in given.items():
        is_allowed, allowed = _CHECKS[field]
        if not value or not is_allowed(value):
            raise _error(where, field, value, allowed)
    if "tools" in given and "messages" not in given:
        raise _error(where, "tools", given["tools"], "left out without messages")
    named = {"name": name, **given}
    if not _is_name(named["name"]):  # of a file, which may have any
        raise _error(where, "name", named["name"], _CHECKS["name"][1])
    return Prompt(where, **named)


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(token) is int and token >= 0 for token in value)


def _is_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def _is_messages(value: Any) -> bool:
    return _is_objects(value) and all(isinstance(each.get("role"), str) and not _sees(each) for each in value)


def _sees(message: Mapping[str, Any]) -> bool:
    """Whether it has an image, a video or a sound: what is cached of these is no token of a text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, Mapping) and part.get("type") in _SEEN for part in parts)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


_TEXT = _is_text, "a text that is not empty"
_CHECKS = {
    "text": _TEXT,
    "messages": (_is_messages, "a list of one or more objects with a role, as of a chat completion of text"),
    "input_ids": (_is_ids, "a list of one or more token ids, 0 or more"),
    "tools": (_is_objects, "a list of one or more objects, as of a chat completion"),
    "name": (_is_name, "a text that is not empty, of one line"),
    "lora_path": _TEXT,
    "cache_salt": _TEXT,
}


def _error(where: str, field: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{where}: {field} {shown(value)}: must be {allowed}")
