"""How tests run: side by side, with few looks for garbage, and on real servers that they share.

The first test that asks for a server starts it, and it ends with the session.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager, WorkerController

import eval.live.server
from eval.live import warm_start
from eval.live.server import Server
from radix_tlru.sglang.releases import rust_core_refusal
from tests.helpers.models import small_model, write_weighted_model
from tests.helpers.servers import (
    NEXT_PROMPT,
    OURS,
    PAGE_SIZE,
    PAGED_CHUNK,
    PAGED_POOL,
    PRIORITY,
    THRESHOLD,
    UNCHECKED,
    serve,
)
from tests.helpers.talk import Told, crowd, histories

# No test fails for being slow. Where nobody watches, the same examples in every run: a search for new ones belongs on a
# desk.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("desk", **UNTIMED)
settings.register_profile("ci", **UNTIMED, derandomize=True, print_blob=True)
ON_WHAT = "ci" if os.environ.get("CI") else "desk"
settings.register_profile("short", settings.get_profile(ON_WHAT), max_examples=30)

# Two cores are what there is for all: the threads of one process would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Here, so that the processes of xdist import with it, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).with_name("helpers") / "startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

NodeManager.EXIT_TIMEOUT = 60  # s, instead of 10: a process that is interrupted has servers to stop

ON_SERVERS = "tests/live/"

ALONE = ("ahead", "dashboard", "endings", "gpu", "hybrids", "ranks", "router", "slo", "state", "thoughts", "warm")
"""Files of tests on servers that share none with others."""

LONG = ("test_overlay", "test_doctor", "test_flags", "test_simulate")
"""Files without a server that start processes which import much."""


class Scheduling(LoadScopeScheduling):
    """With `--numprocesses`, a file is in one process, and one process has the tests that share servers.

    So few servers run at once, and while one of them loads or answers, another process has the second core. A process
    that has nothing else left takes over files that share servers, and starts its own.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # in the order that `pytest_collection_modifyitems` made

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.split("::", 1)[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            taken = next((file for file in self.workqueue if place_of(file) > 0), next(reversed(self.workqueue)))
            self.workqueue.move_to_end(taken, last=False)
        super()._assign_work_unit(node)


def place_of(file: str) -> int:
    """When the tests of a file are run, 0 first; ``file`` is its path from the root."""
    name = Path(file).stem
    if file.startswith(ON_SERVERS):
        return 2 if name.removeprefix("test_") in ALONE else 0
    return 1 if name in LONG else 3  # many short ones: at the end no process waits long for the other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cold-start", action="store_true", help="start each server as a user does; see warm_start.py")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("short" if config.getoption("markexpr") == "not long" else ON_WHAT)
    if not config.getoption("--cold-start"):
        Server.start_process = staticmethod(warm_start.start_process)
        if config.getoption("numprocesses", None):  # of xdist
            warm_start.share()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a process of xdist; the order within a file stays."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: place_of(item.nodeid.split("::", 1)[0]))


def pytest_collection_finish() -> None:
    """What there is to import is imported; from here on caches come and go, which only the collector gives back."""
    gc.set_threshold(700, 10, 10)  # Python's own
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # nobody asks where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def no_log_outlives_its_test() -> Iterator[None]:
    """SGLang sets up logging for whole processes: what is written next would go to a stream that pytest has closed."""
    before = logging.root.handlers[:]
    yield
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:  # not pytest's own, which are subclasses
            logging.root.removeHandler(handler)


@pytest.fixture
def logs_in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that the test itself starts log into its folder."""
    monkeypatch.setattr(eval.live.server, "LOG_DIRECTORY", tmp_path)


@pytest.fixture(scope="module", params=["rust", "python"])
def tree_core(request: pytest.FixtureRequest) -> Iterator[str]:
    """The tree core that SGLang's caches run on, unless told otherwise: a module's tests are run on each."""
    if request.param == "rust" and (refusal := rust_core_refusal()):
        pytest.skip(refusal)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", request.param)
        yield request.param


@pytest.fixture(scope="session")
def weighted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `our_server` and `stock_server` serve."""
    return write_weighted_model(tmp_path_factory.mktemp("models") / "weighted", seed=0)


@pytest.fixture(scope="session")
def our_server(weighted_model: Path) -> Iterator[Server]:
    """Ours, by command-line flags: page size 1."""
    with serve(weighted_model, "ours", *OURS, "--tlru-priority", str(PRIORITY), "--tlru-explain") as server:
        yield server


@pytest.fixture(scope="session")
def stock_server(weighted_model: Path) -> Iterator[Server]:
    """Stock SGLang with the plugin installed and none of its flags: `our_server` in all but the eviction."""
    with serve(weighted_model, "stock", **UNCHECKED) as server:
        yield server


@pytest.fixture(scope="session")
def told_by_stock(stock_server: Server) -> Told:
    """The histories of a crowd of so many that `stock_server` has answered; each crowd asks it once."""
    return functools.cache(lambda count: histories(crowd(stock_server, [{}] * count)))


@pytest.fixture(scope="session")
def paged_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, by a file of settings: page size 16, and prompts in chunks of 256 tokens."""
    settings = tmp_path_factory.mktemp("paged") / "server.yaml"
    ours = {"radix-eviction": "tlru", "tlru-threshold": THRESHOLD, "tlru-next-prompt-estimate": NEXT_PROMPT}
    settings.write_text("".join(f"{name}: {value}\n" for name, value in ours.items()))
    shape = {"pool": PAGED_POOL, "page_size": PAGE_SIZE, "chunk": PAGED_CHUNK}
    with serve(small_model(), "paged", "--config", str(settings), "--load-format", "dummy", **shape) as server:
        yield server
