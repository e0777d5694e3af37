"""Real servers for the tests marked `live`: the first test that asks for one starts it, and it ends with the session.

An idle server sleeps (`--sleep-on-idle`), so that those that wait do not take the processor from the one under test.
And SGLang checks its own books: after every step, that each slot of the pool is free, evictable, locked or in a
request, and that no page has two owners. A server that finds otherwise raises, and dies.
"""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import NodeManager

from eval.live.server import Server, cpu_flags, ensure_demo_model
from radix_tlru.sglang.support import rust_core_refusal
from radix_tlru.tools.demo_model import write_demo_model

# No test fails for being slow. Where nobody watches, the same examples in every run: a search for new ones belongs on a
# desk.
UNTIMED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("desk", **UNTIMED)
settings.register_profile("ci", **UNTIMED, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

# Here, so that the processes of xdist import with it, too.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).with_name("helpers") / "startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

POOL = 4_000
PAGED_POOL, PAGE_SIZE = 4_096, 16
THRESHOLD, NEXT_PROMPT = 600, 100

# Prompts up to this length are prefilled, and inserted into the tree, in one piece.
CHUNK, PAGED_CHUNK = 2_048, 256

QWEN = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
"""What makes the demo model one whose attention SGLang can replicate, as it cannot a Llama's."""

REAL_WEIGHTS = ("--load-format", "auto")

ALL_CHECKS = {"SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1", "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1"}


NodeManager.EXIT_TIMEOUT = 60  # s, instead of 10: a process that is interrupted has servers to stop

SHARED = ("our_server", "stock_server", "paged_server")


class Scheduling(LoadScopeScheduling):
    """With `--numprocesses`, one process has all files that share servers, and each other file is in one.

    A server is 2.5 GB: two processes with three of them each are more than a machine of 24 GB has. Some tests ask for a
    server by its name, so what counts is whether a file speaks of one.

    Those files take as long as all others together, so they are first. What else takes long is next, and what is short
    fills the end.
    """

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # in the order that `pytest_collection_modifyitems` made

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "servers" if _shares(self.config.rootpath / file) else file


@cache
def _shares(file: Path) -> bool:
    text = file.read_text()
    return any(name in text for name in SHARED)


LONG = ("test_overlay", "test_doctor")
"""Files without a server that start as many processes that import SGLang."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a process of xdist; the order within a file stays."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        long = {item.path for item in items if item.get_closest_marker("live") or item.path.stem in LONG}
        items.sort(key=lambda item: (not _shares(item.path), item.path not in long))


def pytest_collection_finish() -> None:
    """What there is to import is imported; from here on caches come and go, which only the collector gives back."""
    gc.set_threshold(700, 10, 10)  # Python's own


@pytest.hookimpl(optionalhook=True)  # nobody asks where xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    return Scheduling(config, log)


def flags(model: Path, pool: int, page_size: int, chunk: int) -> list[str]:
    return [*cpu_flags(model, pool, page_size), *("--chunked-prefill-size", str(chunk)), "--sleep-on-idle"]


@pytest.fixture(autouse=True)
def no_log_outlives_its_test() -> Iterator[None]:
    """SGLang sets up logging for whole processes: what is written next would go to a stream that pytest has closed."""
    before = logging.root.handlers[:]
    yield
    for handler in logging.root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in before:  # not pytest's own, which are subclasses
            logging.root.removeHandler(handler)


@pytest.fixture(scope="module", params=["rust", "python"])
def tree_core(request: pytest.FixtureRequest) -> Iterator[str]:
    """The tree core that SGLang's caches run on, unless told otherwise: a module's tests are run on each."""
    if request.param == "rust" and (refusal := rust_core_refusal()):
        pytest.skip(refusal)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", request.param)
        yield request.param


def write_weighted_model(directory: Path, seed: int, **config: Any) -> Path:
    """The demo model with random weights of the usual size: SGLang's dummy ones answer anything with equal odds.

    Args:
        config: what its `config.json` shall say instead.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_demo_model(directory)
    described = directory / "config.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), **config}))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    save_file(model.state_dict(), directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="session")
def weighted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `our_server` and `stock_server` serve."""
    return write_weighted_model(tmp_path_factory.mktemp("models") / "weighted", seed=0)


@pytest.fixture(scope="session")
def our_server(weighted_model: Path) -> Iterator[Server]:
    """Ours, by command-line flags: page size 1."""
    ours = ("--radix-eviction", "tlru", "--tlru-threshold", str(THRESHOLD))
    estimate = ("--tlru-next-prompt-estimate", str(NEXT_PROMPT))
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS, *ours, *estimate]
    with Server(given, name="test-ours", environment=ALL_CHECKS) as server:
        yield server


@pytest.fixture(scope="session")
def stock_server(weighted_model: Path) -> Iterator[Server]:
    """Stock SGLang with the plugin installed and none of its flags: `our_server` in all but the eviction."""
    given = [*flags(weighted_model, POOL, 1, CHUNK), *REAL_WEIGHTS]
    with Server(given, name="test-stock", environment=ALL_CHECKS) as server:
        yield server


@pytest.fixture(scope="session")
def paged_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Ours, by a file of settings: page size 16, and prompts in chunks of 256 tokens."""
    settings = tmp_path_factory.mktemp("paged") / "server.yaml"
    ours = {"radix-eviction": "tlru", "tlru-threshold": THRESHOLD, "tlru-next-prompt-estimate": NEXT_PROMPT}
    settings.write_text("".join(f"{name}: {value}\n" for name, value in ours.items()))
    given = [*flags(ensure_demo_model(), PAGED_POOL, PAGE_SIZE, PAGED_CHUNK), *("--config", str(settings))]
    with Server(given, name="test-paged", environment=ALL_CHECKS) as server:
        yield server
