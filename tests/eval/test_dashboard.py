"""``python -m eval dashboard``, as far as it goes without a server: what cannot be done is said before one starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.__main__ import main
from eval.live.prometheus import COMMAND


def test_a_file_of_another_kind_is_refused_before_a_server_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dashboard", "--out", "dashboard.txt"]) == 2
    assert capsys.readouterr().err.startswith("eval dashboard: --out dashboard.txt: must end in one of ")


def test_without_prometheus_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "picture" / "dashboard.png"
    assert main(["dashboard", "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"eval dashboard: {COMMAND} is not installed; Debian has it as a package\n"
    assert not out.parent.exists()
