"""A plugin of pytest: writes down which SGLang its tests find, for `overlay`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--which-sglang", type=Path, metavar="FILE", help="where to write it")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """The version, the file, and why a cache of ours is not on the Rust core, if it is not."""
    import sglang

    from radix_tlru import Config
    from radix_tlru.sglang.offline import cache_params
    from radix_tlru.sglang.support import python_core_reason

    found = [sglang.__version__, sglang.__file__, python_core_reason(cache_params(1), Config())]
    session.config.getoption("--which-sglang").write_text(json.dumps(found))
