"""The oldest supported release of SGLang, on its own wheel; `make compat` does the same for each release.

Where the wheel can neither be found nor fetched these tests fail: that the release is supported would be a claim only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from patches.check.tree import CommandError
from radix_tlru.sglang.releases import check_version
from tests.helpers.overlay import SUITE, main, releases, run_suite

OLDEST = releases()[0]


def test_every_release_between_the_first_and_the_last_is_supported() -> None:
    for release in releases():
        check_version(release)


def test_a_release_that_cannot_be_had_does_not_keep_the_others_from_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    first, second = releases()[:2]
    assert main(["--release", first, "--release", second]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].split() == ["SGLang", "core", "passed", "failed", "skipped"]
    for release in (first, second):
        assert f"compat: SGLang {release}: " in said.err


@pytest.mark.long  # the same tests on another release than the installed one
@pytest.mark.timeout(1200)
def test_the_oldest_supported_release_evicts_and_takes_flags_as_the_newest_does() -> None:
    try:
        outcome = run_suite(OLDEST, SUITE)
    except CommandError as error:
        pytest.fail(f"SGLang {OLDEST} cannot be tested: {error}", pytrace=False)
    assert outcome.status == 0, outcome.failed
    assert outcome.counts["passed"] > 150
