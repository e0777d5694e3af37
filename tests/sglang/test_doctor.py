"""`radix-tlru doctor`: the truth about an installation, with SGLang and without."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import sglang

import radix_tlru.sglang
from radix_tlru.policy.order import Victim
from radix_tlru.sglang.cache.component import TailComponent
from radix_tlru.sglang.doctor import seams
from radix_tlru.sglang.doctor.checks import Check, Section
from radix_tlru.sglang.doctor.report import examine
from radix_tlru.sglang.releases import ANSWERS_QUESTIONS, SUPPORTED, release_of, rust_core_refusal, supported_range
from tests.helpers.paths import REPOSITORY


def _doctor(*python: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the doctor in a fresh process, with SGLANG_PLATFORM only as given."""
    inherited = {name: value for name, value in os.environ.items() if name != "SGLANG_PLATFORM"}
    return subprocess.run(
        [sys.executable, *python, "-m", "radix_tlru.cli", "doctor"],
        cwd=REPOSITORY,
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def report() -> subprocess.CompletedProcess[str]:
    """The doctor of this very installation; asked once, as importing SGLang takes its time."""
    return _doctor()


def _line(report: subprocess.CompletedProcess[str], start: str) -> str:
    """The line about `start`, its columns one space apart."""
    lines = [" ".join(line.split()) for line in report.stdout.splitlines()]
    (line,) = [line for line in lines if line.startswith(start)]
    return line


def test_a_working_installation_is_healthy(report: subprocess.CompletedProcess[str]) -> None:
    assert report.returncode == 0, report.stdout + report.stderr
    assert "FAIL" not in report.stdout
    assert report.stdout.endswith("everything needed is in place\n")


def test_it_says_in_words_of_sglang_what_it_looks_for(report: subprocess.CompletedProcess[str]) -> None:
    assert "\nfunctions of SGLang that the plugin needs\n" in report.stdout
    assert "seam" not in report.stdout


def test_a_reader_who_has_seen_enough_may_go() -> None:
    command = [sys.executable, "-m", "radix_tlru.cli", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as doctor:
        assert doctor.stdout is not None
        assert doctor.stderr is not None
        assert doctor.stdout.readline() == "versions\n"
        doctor.stdout.close()
        said = doctor.stderr.read()
    assert doctor.returncode == 128 + signal.SIGPIPE
    assert "BrokenPipe" not in said
    assert "Traceback" not in said


def test_it_says_what_a_bug_report_needs(report: subprocess.CompletedProcess[str]) -> None:
    assert f"supported: {supported_range()}" in _line(report, "ok sglang")
    assert _line(report, "ok torch 2.")
    assert _line(report, "accelerator")
    assert _line(report, "sglang.srt.plugins radix_tlru")
    assert _line(report, "sglang.srt.platforms torch_cpu") == "sglang.srt.platforms torch_cpu"


@pytest.mark.parametrize(
    ("given", "check"),
    [
        ("", Check("SGLANG_PLUGINS", "not set: all are loaded")),
        ("other", Check("SGLANG_PLUGINS", "other: leaves out radix_tlru: name it there", "failed")),
        ("other, radix_tlru", Check("SGLANG_PLUGINS", "other, radix_tlru", "ok")),
    ],
)
def test_it_says_which_plugins_sglang_is_told_to_load(
    given: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PLUGINS", given)
    _versions, points, patience = itertools.islice(examine(), 3)
    assert points.title == "entry points"
    assert patience.title == "sglang is imported and tried now", "as nothing more is said for a while"
    assert points.checks[-1] == check


def test_it_says_which_tree_core_serves_and_why_not_the_faster_one(
    report: subprocess.CompletedProcess[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if rust_core_refusal():
        assert _line(report, "no tree core").startswith("no tree core python, which costs more: ")
        return
    assert _line(report, "ok tree core") == "ok tree core rust, as RustTailCore"
    monkeypatch.setenv("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND", "python")
    slower = seams.tree_core()
    assert slower.state == "refused"
    assert slower.result.endswith("SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python")


def test_a_torch_other_than_the_rust_cores_means_the_python_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = seams.tree_core()
    installed = tmp_path / "torch-2.11.0+cu130.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.11.0+cu130\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    slower = seams.tree_core()
    assert slower.state == "refused"
    asked = next(each for each in metadata.requires("sglang") or [] if each.startswith("torch=="))
    mismatch = (
        f"SGLang's Rust core is built for torch {asked.removeprefix('torch==')}, "
        "installed is 2.11.0+cu130, with which it panics"
    )
    # On a release whose Rust core is refused whatever the torch, for the same reason as before.
    assert slower.result == (f"python, which costs more: {mismatch}" if usual.state == "ok" else usual.result)


@pytest.mark.long  # the same as above, asked as a user asks
def test_an_installation_on_the_slower_core_is_healthy() -> None:
    slower = _doctor(SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND="python")
    assert slower.returncode == 0, slower.stdout + slower.stderr
    assert _line(slower, "no tree core").startswith("no tree core python, which costs more: ")


@pytest.mark.parametrize(
    "seam",
    [
        "entry point",
        "HookRegistry.register",
        "CacheInitParams(component_registry_override=)",
        "UnifiedTreeCore._split_node",
        "FullComponent._evict_device_next_node",
        "ServerArgs.from_cli_args",
        "Engine.server_args_class",
        "Scheduler.run_batch(batch=)",
        "Scheduler.process_batch_result(batch=)",
        "UnifiedRadixCache._all_reduce_attn_groups(op=)",
    ],
)
def test_each_seam_is_found(report: subprocess.CompletedProcess[str], seam: str) -> None:
    assert _line(report, f"ok {seam} ")


def test_each_function_that_is_hooked_is_looked_for() -> None:
    folder = Path(radix_tlru.sglang.__path__[0])
    files = [file for file in sorted(folder.rglob("*.py")) if "\nHOOKED = " in file.read_text()]
    names = [".".join(file.relative_to(folder.parents[1]).with_suffix("").parts) for file in files]
    hooked = [importlib.import_module(name).HOOKED for name in names]
    targets = {target for one in hooked for target in ([one] if isinstance(one, str) else one)}
    assert len(targets) > 15
    looked_for = {path.replace(":", ".") for path, _ in seams.SEAMS}
    only_explained = {target for target in targets if target.startswith(ANSWERS_QUESTIONS)}
    assert targets - only_explained <= looked_for


def test_it_evicts_a_tail_and_says_so(report: subprocess.CompletedProcess[str]) -> None:
    assert _line(report, "ok a tail is evicted") == "ok a tail is evicted 44 tokens of 200, and 156 stay"


def test_an_eviction_that_takes_too_much_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    named = TailComponent.next_victim

    def whole(tail: TailComponent, missing: int) -> Victim | None:
        victim = named(tail, missing)
        return victim and victim._replace(keep=victim.leaf.start)

    monkeypatch.setattr(TailComponent, "next_victim", whole)
    check = seams.try_eviction()
    assert (check.state, check.result) == ("failed", "0 tokens of 200 were still there, where 156 should have been")


def test_a_core_that_lacks_what_a_cut_calls_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: object) -> None:
        raise AttributeError("no attribute 'insert_host'")

    cut = "python_core.PythonTailComponent.cut" if rust_core_refusal() else "rust_core.RustTailCore._cut"
    monkeypatch.setattr(f"radix_tlru.sglang.cache.{cut}", gone)
    check = seams.try_eviction()
    assert (check.state, check.result) == ("failed", "AttributeError: no attribute 'insert_host'")


def test_it_reads_a_request_as_a_turn_and_says_so(report: subprocess.CompletedProcess[str]) -> None:
    assert _line(report, "ok a request is read as a turn").endswith("when it is prefilled and when it was served")


@pytest.mark.parametrize(
    ("where", "lacks"),
    [
        ("managers.schedule_batch.Req", "output_ids_through_stop"),
        ("managers.schedule_batch.Req", "finished"),
        ("model_executor.forward_batch_info.ForwardMode", "is_extend_without_speculative"),
    ],
)
def test_a_request_that_lacks_what_is_read_of_it_is_a_failure(
    where: str, lacks: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(f"sglang.srt.{where}.{lacks}")
    check = seams.read_request()
    assert check.state == "failed"
    assert lacks in check.result


def test_a_server_would_start_with_our_flag_and_refuse_a_second_policy(
    report: subprocess.CompletedProcess[str],
) -> None:
    assert _line(report, "ok --radix-eviction tlru would") == "ok --radix-eviction tlru would start"
    for objective in ("--tlru-ttft-slo 100", "--tlru-threshold 4096"):
        assert _line(report, f"ok --radix-eviction tlru {objective} would")
    both = _line(report, "no --radix-eviction tlru --tlru-ttft-slo 100 --tlru-threshold 4096")
    assert both.endswith("--tlru-threshold 4096: not together with --tlru-ttft-slo 100; give one of them")
    refused = _line(report, "no --radix-eviction tlru --radix-eviction-policy lru")
    assert refused.count("--radix-eviction-policy lru") == 2  # asked for, and named in the error
    assert _line(report, "ok --radix-eviction tlru --enable-session-radix-cache would")
    for other in ("--radix-cache-backend x", "--disable-radix-cache"):
        assert _line(report, f"no --radix-eviction tlru {other} ")


def test_an_import_that_takes_its_process_down_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, sys\nsys.stderr.write('Illegal instruction')\nos._exit(3)\n")
    report = _doctor("-P", PYTHONPATH=f"{tmp_path}{os.pathsep}{REPOSITORY}")
    assert report.returncode == 1
    assert _line(report, "FAIL import") == "FAIL import ended with status 3: Illegal instruction"


def test_without_sglang_it_says_what_to_install() -> None:
    report = _doctor("-S", PYTHONPATH="")  # no site-packages: the checkout and nothing else
    assert report.returncode == 1
    assert _line(report, "FAIL sglang") == "FAIL sglang not installed: in a checkout, pip install '.[serve]'"
    assert report.stderr == ""


@pytest.mark.long
def test_a_platform_that_does_not_exist_is_reported_and_not_raised() -> None:
    report = _doctor(SGLANG_PLATFORM="no_such_platform")
    assert report.returncode == 1
    assert "'no_such_platform' not found" in _line(report, "FAIL platform")
    assert report.stderr == ""


def test_only_a_failure_makes_a_section_unhealthy() -> None:
    checks = (Check("a", "worth knowing"), Check("b", "found", "ok"), Check("c", "declined", "refused"))
    assert Section("title", checks).healthy
    assert not Section("title", (*checks, Check("d", "gone", "failed"))).healthy


def test_the_columns_of_a_section_line_up() -> None:
    section = Section("title", (Check("short", "1"), Check("much longer", "2", "failed")))
    assert str(section).splitlines() == [
        "title",
        "        short        1",
        "  FAIL  much longer  2",
    ]


def test_nothing_is_skipped_for_the_newest_release() -> None:
    """Older ones lack a Rust core that fits, and kits: there tests are skipped, and here that would hide a fault."""
    if release_of(sglang.__version__) != SUPPORTED[1]:
        return
    assert rust_core_refusal() is None
    assert importlib.util.find_spec("sglang.test.kits.unified_radix_cache") is not None
