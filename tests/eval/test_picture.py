"""``python -m eval picture`` as a user runs it, but for the caches that it draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.__main__ import main
from eval.render import picture


def test_it_shows_what_the_readme_says_of_it() -> None:
    """Stock drops A, of 2,000 tokens, whole; 400 were missing, and our cache takes these off A."""
    later = {"B": 1_500, "C": 900}
    assert picture.kept_by_each_cache() == {
        "stock lru": {"A": 0, **later},
        "stock tlru": {"A": 0, **later},
        picture.PLUGIN: {"A": 2_000 - 400, **later},
    }


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("x.foo", "must end with .avif, .eps"),
        (".", "must be the name of a file"),
        ("here/x.png", "must be in a folder"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    file: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").write_text("a file, not a folder")
    monkeypatch.setattr(picture, "kept_by_each_cache", lambda: dict.fromkeys(("lru", "tlru"), picture.CONVERSATIONS))
    assert main(["picture", "--out", str(tmp_path / file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"eval picture: --out {tmp_path / file}: ")
    assert reason in line
