"""What a bug report needs, section by section; the half of the doctor that works without SGLang."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from radix_tlru.sglang.doctor.checks import Check, Section
from radix_tlru.sglang.releases import SUPPORTED, release_of, supported_range
from radix_tlru.tools.demo_model import write_demo_model

__all__ = ["examine"]

_NEEDED = ("sglang", "torch", "tokenizers")
_INSTALL = "not installed: in a checkout, pip install '.[serve]'"
_PLUGINS_VARIABLE = "SGLANG_PLUGINS"
_PLUGIN = "radix_tlru"  # the name of our entry point
_PATIENCE_S = 600.0  # for importing SGLang and trying it


def examine() -> Iterator[Section]:
    """The sections of the report, each as soon as it is known: the ones that import SGLang take a while."""
    yield _versions()
    yield _entry_points()
    if all(map(_installed, _NEEDED)):
        takes = f"10 s, and minutes on a busy machine; it is given up after {_PATIENCE_S:g} s"
        yield Section("sglang is imported and tried now", (Check("which takes", takes),))
        yield from _ask_sglang()


def _versions() -> Section:
    supported = supported_range()
    sglang = _installed("sglang")
    if sglang is None:
        sglang_check = Check("sglang", _INSTALL, "failed")
    elif SUPPORTED[0] <= release_of(sglang) <= SUPPORTED[1]:
        sglang_check = Check("sglang", f"{sglang} (supported: {supported})", "ok")
    else:
        sglang_check = Check("sglang", f"{sglang} is not supported, {supported} is", "failed")
    return Section(
        "versions",
        (
            Check("radix-tlru", _installed("radix-tlru") or "not installed, imported from a directory"),
            Check("python", f"{platform.python_version()}, {platform.system()} {platform.machine()}, {sys.executable}"),
            sglang_check,
            *(_package(name) for name in _NEEDED[1:]),
        ),
    )


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _package(name: str) -> Check:
    found = _installed(name)
    return Check(name, found, "ok") if found else Check(name, _INSTALL, "failed")


def _entry_points() -> Section:
    groups = ("sglang.srt.plugins", "sglang.srt.platforms")
    found = (Check(group, ", ".join(sorted(entry_points(group=group).names)) or "none") for group in groups)
    return Section("entry points", (*found, _plugins_variable()))


def _plugins_variable() -> Check:
    """The plugins that SGLang is told to load. It loads no other, and says so in its log alone."""
    given = os.environ.get(_PLUGINS_VARIABLE)
    if not given:
        return Check(_PLUGINS_VARIABLE, "not set: all are loaded")
    if _PLUGIN not in [name.strip() for name in given.split(",")]:
        return Check(_PLUGINS_VARIABLE, f"{given}: leaves out {_PLUGIN}: name it there", "failed")
    return Check(_PLUGINS_VARIABLE, given, "ok")


def _ask_sglang() -> list[Section]:
    """The sections of :mod:`radix_tlru.sglang.doctor.seams`, or one that says how its process ended."""
    with tempfile.TemporaryDirectory(prefix="radix-tlru-doctor-") as directory:
        model, report = Path(directory, "model"), Path(directory, "report.json")
        write_demo_model(model)
        command = [sys.executable, "-m", "radix_tlru.sglang.doctor.seams", str(model), str(report)]
        try:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PATIENCE_S, check=False
            )
        except subprocess.TimeoutExpired:
            return [Section("sglang", (Check("import", f"no answer after {_PATIENCE_S:g} s", "failed"),))]
        if not report.exists():
            last = ended.stderr.strip().splitlines()[-1:] or ["nothing printed"]
            return [Section("sglang", (Check("import", f"ended with status {ended.returncode}: {last[0]}", "failed"),))]
        sections = json.loads(report.read_text())
    return [Section(s["title"], tuple(Check(**check) for check in s["checks"])) for s in sections]
