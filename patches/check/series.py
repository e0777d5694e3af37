"""A series of patches: the folder of one release of SGLang, and what its ``series.toml`` tells the checker.

Keys of ``series.toml``; all but ``release`` may be left out, and a key that is not here is an error:

``release``    the release that the patches apply to, as the package index names it: ``"0.5.23"``.
``imports``    modules that must import from the tree after each patch; one that the series adds, once it is there.
``tests``      paths in the tree of the test files that the series adds, run after the patch that brings or changes
               them, and with the whole series applied.
``kits``       test files in this folder that drive the test kits shipped in the wheel, run in the same way; they
               may import ``tests`` of this repository.
``live``       test files in this folder that start servers from the tree, without our plugin.
``agreement``  whether the tree's ``tlru`` must find the same cached tokens as our plugin, request by request.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["PATCHES", "Series", "SeriesError", "all_series"]

PATCHES = Path(__file__).resolve().parents[1]
"""The folder that holds a folder for each release."""


_KINDS = {"release": "a string", "agreement": "true or false"}


class SeriesError(ValueError):
    """A ``series.toml`` that cannot be followed, or a version that is not there."""


@dataclass(frozen=True, slots=True)
class Series:
    """What ``series.toml`` says; see the docstring of this module."""

    folder: Path
    release: str
    imports: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    kits: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    agreement: bool = False

    @property
    def version(self) -> str:
        """The name of the folder: ``v0.5.23``."""
        return self.folder.name

    @property
    def patches(self) -> list[Path]:
        """The patches in the order in which they apply."""
        return sorted(self.folder.glob("[0-9][0-9][0-9][0-9]-*.patch"))

    @classmethod
    def read(cls, folder: Path) -> Series:
        """The series of a folder.

        Raises:
            SeriesError: there is none, or its ``series.toml`` has a key or a value that is not known.
        """
        file = folder / "series.toml"
        try:
            table = tomllib.loads(file.read_text())
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise SeriesError(f"{file}: {error}") from None
        known = [entry.name for entry in fields(cls) if entry.name != "folder"]
        for key, value in table.items():
            if key not in known:
                raise SeriesError(f"{file}: {key} is not one of {', '.join(known)}")
            table[key] = _checked(value, _KINDS.get(key, "a list of strings"), f"{file}: {key}")
        if "release" not in table:
            raise SeriesError(f"{file}: release is missing")
        series = cls(folder=folder, **table)
        if not series.patches:
            raise SeriesError(f"{folder}: holds no NNNN-*.patch")
        return series


def _checked(value: Any, kind: str, where: str) -> Any:
    if kind == "a list of strings" and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if (kind == "a string" and isinstance(value, str)) or (kind == "true or false" and isinstance(value, bool)):
        return value
    raise SeriesError(f"{where} = {value!r}: must be {kind}")


def all_series(versions: list[str] | None = None) -> list[Series]:
    """The series of those versions (names of folders); of all there are if none is named."""
    found = {file.parent.name: file.parent for file in sorted(PATCHES.glob("*/series.toml"))}
    for version in versions or ():
        if version not in found:
            raise SeriesError(f"--version {version}: must be one of {', '.join(found) or '(none is here)'}")
    return [Series.read(found[version]) for version in versions or found]
