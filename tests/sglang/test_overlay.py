"""The oldest supported release of SGLang, on its own wheel; `make compat` does the same for each release.

Where the wheel can neither be found nor fetched these tests fail: that the release is supported would be a claim only.
"""

from __future__ import annotations

import pytest

from patches.check.tree import CommandError
from radix_tlru.sglang.support import check_version
from tests.helpers.overlay import SUITE, releases, run_suite

OLDEST = releases()[0]


def test_every_release_between_the_first_and_the_last_is_supported() -> None:
    for release in releases():
        check_version(release)


# Without the tests that start processes, or go on for thousands of steps.
EVICTS_AND_TAKES_FLAGS = (
    *("tests/sglang/test_eviction.py", "tests/sglang/test_flags.py", "tests/unit/test_config.py"),
    *("-m", "not long", "-k", "not launcher and not without_the_plugin and not random_walk"),
)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("suite", "more_than"),
    [(EVICTS_AND_TAKES_FLAGS, 120), pytest.param(SUITE, 150, marks=pytest.mark.long)],
    ids=["short", "whole"],
)
def test_the_oldest_supported_release_evicts_and_takes_flags_as_the_newest_does(
    suite: tuple[str, ...], more_than: int
) -> None:
    try:
        outcome = run_suite(OLDEST, suite)
    except CommandError as error:
        pytest.fail(f"SGLang {OLDEST} cannot be tested: {error}", pytrace=False)
    assert outcome.status == 0, outcome.failed
    assert outcome.counts["passed"] > more_than
