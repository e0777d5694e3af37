"""`make compat`: the cache-level suite on each supported release of SGLang, and a table of what came out.

The wheel of a release is fetched without what it depends on, unpacked, and found before the SGLang that is installed;
torch and everything else stay. Wheels and what is in them are kept in ``$XDG_CACHE_HOME/radix-tlru``. Run as
``python -m tests.helpers.overlay``; the status is 1 if a test failed on any release, or one cannot be had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from ast import literal_eval
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from eval.live.warm_start import SHARED
from patches.check.tree import CommandError, cache_folder, fetch_wheel
from radix_tlru.sglang.releases import SUPPORTED, release_of, sglang_version

REPOSITORY = Path(__file__).parents[2]
STARTUP = Path(__file__).with_name("startup")

SUITE = tuple(
    f"tests/{folder}/test_{name}.py"
    for folder, names in {
        "sglang": ("eviction", "algorithm1", "cores", "kits", "flags", "models", "doctor", "hybrids", "sessions"),
        "unit": ("order", "config"),
    }.items()
    for name in names
)

PLUGIN = "tests.helpers.which_sglang"


@dataclass(frozen=True)
class Outcome:
    """What the suite said on one release."""

    release: str
    core: str
    counts: Counter[str]  # tests that passed, failed, or were skipped
    skipped: Counter[str]  # reasons, and tests skipped for each
    failed: tuple[str, ...]  # names
    status: int

    @property
    def row(self) -> str:
        counts = "  ".join(f"{self.counts[state]:>7,}" for state in ("passed", "failed", "skipped"))
        return f"{self.release:8}  {self.core:6}  {counts}"


def releases() -> list[str]:
    """The supported releases, oldest first."""
    (*series, oldest), (*same, newest) = SUPPORTED
    assert series == same, f"{SUPPORTED} is more than one series of releases"
    return [".".join(map(str, (*series, number))) for number in range(oldest, newest + 1)]


def unpacked(release: str) -> Path:
    """The folder that holds the package of a release.

    Raises:
        CommandError: its wheel is not kept here, and the package index does not hand it out.
    """
    folder = cache_folder() / "unpacked" / release
    if not folder.is_dir():
        wheel = fetch_wheel(release)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished, zipfile.ZipFile(wheel) as archive:
            whole = Path(unfinished, release)
            archive.extractall(whole)
            try:
                whole.rename(folder)
            except OSError:
                if not folder.is_dir():  # or another process was first
                    raise
    return folder


def environment(release: str) -> dict[str, str]:
    """Of a process that finds this release."""
    overlay = [] if _is_installed(release) else [str(unpacked(release))]
    # With bytecode kept, an import takes a third of the time.
    other = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", SHARED)  # servers are not forked off one that has another release
    plain = {name: value for name, value in os.environ.items() if name not in other}
    return {**plain, "SGLANG_PLATFORM": "torch_cpu", "PYTHONPATH": os.pathsep.join([*overlay, str(STARTUP)])}


def _is_installed(release: str) -> bool:
    return release_of(sglang_version() or "") == release_of(release)


def run_suite(release: str, arguments: Sequence[str] = SUITE) -> Outcome:
    """Run tests on a release; what pytest prints is printed.

    Raises:
        CommandError: the release cannot be had, or our cache does not import on it.
    """
    variables = environment(release)
    with tempfile.TemporaryDirectory() as folder:
        report, found = Path(folder, "report.xml"), Path(folder, "found.json")
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
        pytest += [f"--junitxml={report}", "-p", PLUGIN, "--which-sglang", str(found)]
        status = subprocess.run([*pytest, *arguments], cwd=REPOSITORY, env=variables, check=False).returncode
        if not found.exists():
            raise CommandError(f"our cache does not import on SGLang {release}")
        version, file, reason = json.loads(found.read_text())
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    is_there = _is_installed(release) or Path(file).is_relative_to(unpacked(release))
    if release_of(version) != release_of(release) or not is_there:
        raise CommandError(f"SGLang {release} was to be tested, and {version} was found at {file}")
    skips = [case.find("skipped") for case in cases]
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = Counter(map(_reason, cases, skips))
    del skipped[""]
    counts = Counter(failed=len(failed), skipped=skipped.total())
    counts["passed"] = len(cases) - counts.total()
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return Outcome(release, "rust" if reason is None else "python", counts, skipped, names, status)


def _reason(case: ElementTree.Element, skip: ElementTree.Element | None) -> str:
    """Why a test was skipped; empty if it was not."""
    if skip is None:
        return ""
    if skip.get("message") != "collection skipped":
        return skip.get("message") or "no reason given"
    # A whole file counts as one, and the reason is in the text: a tuple of file, line and "Skipped: …".
    said = str(literal_eval(skip.text or "()")[-1]).removeprefix("Skipped: ")
    return f"all of {case.get('name')}: {said}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its status."""
    parser = argparse.ArgumentParser(prog="compat", description=__doc__.splitlines()[0])
    parser.add_argument("--release", action="append", choices=releases(), help="only this one; may be repeated")
    args = parser.parse_args(arguments)
    outcomes, untested = [], []
    for release in args.release or releases():
        print(f"SGLang {release}", flush=True)
        try:
            outcomes.append(run_suite(release))
        except CommandError as error:
            untested.append(f"compat: SGLang {release}: {error}")
    print(f"\n{'SGLang':8}  {'core':6}  {'passed':>7}  {'failed':>7}  {'skipped':>7}")
    for outcome in outcomes:
        print(outcome.row)
        for why, count in outcome.skipped.items():
            print(f"          {count:,} skipped: {why}")
        for name in outcome.failed:
            print(f"          failed: {name}")
    for reason in untested:
        print(reason, file=sys.stderr)
    return int(bool(untested) or any(outcome.status for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
