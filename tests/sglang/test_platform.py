"""The torch-only platform: there when it is named, absent otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from radix_tlru.sglang.cpu.entry_point import activate
from tests.helpers.runs import Run


@pytest.mark.parametrize("named", [None, "", "another_vendor", "TORCH_CPU"])
def test_it_steps_aside_unless_it_is_named(monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    if named is None:
        monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    else:
        monkeypatch.setenv("SGLANG_PLATFORM", named)
    assert activate() is None


def test_it_is_installed_under_the_name_that_it_answers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    (entry,) = entry_points(group="sglang.srt.platforms", name="torch_cpu")
    monkeypatch.setenv("SGLANG_PLATFORM", entry.name)
    assert entry.load()() == "radix_tlru.sglang.cpu.platform:TorchCpuPlatform"


def test_asking_it_imports_neither_sglang_nor_torch() -> None:
    code = (
        "import sys; from radix_tlru.sglang.cpu.entry_point import activate; activate(); "
        "print({'sglang', 'torch'} & sys.modules.keys())"
    )
    assert _run(code, "torch_cpu") == "set()"


def test_sglang_serves_on_it_in_one_thread_when_it_is_named(tmp_path: Path) -> None:
    script = tmp_path / "asks.py"
    script.write_text("""
import os, torch
from sglang.srt.platforms import current_platform as platform

def threads(asked):
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ.update(asked)
    torch.set_num_threads(2)
    platform.init_backend()
    return torch.get_num_threads()

print(
    type(platform).__name__, platform.is_out_of_tree(), platform.device_type, platform.get_default_attention_backend(),
    threads({}), threads({"OMP_NUM_THREADS": "2"}),
)
""")
    status, printed = Run(tmp_path, str(script)).wait()
    assert status == 0, printed
    assert printed.splitlines()[-1] == "TorchCpuPlatform True cpu torch_native 1 2"


def _run(code: str, platform: str) -> str:
    """What `code` prints last, in a fresh process with `SGLANG_PLATFORM` set."""
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SGLANG_PLATFORM": platform},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip().splitlines()[-1]
