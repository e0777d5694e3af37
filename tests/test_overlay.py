"""The oldest supported release of SGLang, on its own wheel; `make compat` runs more tests, and on each release.

Where the wheel can neither be found nor fetched these tests fail: that the release is supported would be a claim only.
"""

from __future__ import annotations

import pytest

from patches.check.tree import CommandError
from radix_tlru.sglang.compat import check_version
from tests.overlay import releases, run_suite

OLDEST = releases()[0]

# The paper's figure, what stays and what goes in numbers, locks and a flush; then the flags.
SHORT = (
    "tests/test_eviction.py",
    "tests/test_flags.py",
    "-k",
    "figure_1 or branch_point or shared_path or trim_chunk or locked_leaf or flush or refused_by_its_name "
    "or becomes_a_configuration or one_flag or is_learned or yaml or engine or supported_range",
)


def test_every_release_between_the_first_and_the_last_is_supported() -> None:
    for release in releases():
        check_version(release)


@pytest.mark.timeout(1200)
def test_the_oldest_supported_release_evicts_and_takes_flags_as_the_newest_does() -> None:
    try:
        outcome = run_suite(OLDEST, SHORT)
    except CommandError as error:
        pytest.fail(f"SGLang {OLDEST} cannot be tested: {error}", pytrace=False)
    assert outcome.status == 0, outcome.failed
    assert outcome.counts["passed"] > 20
