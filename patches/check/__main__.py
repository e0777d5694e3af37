"""`make patches-check`: does each series apply, work and come off again, on the release that it was made for?

For each version: the released wheel is laid out as SGLang's repository, the series is applied with ``git am``, one
patch at a time, and after each one what it changed is byte-compiled and imported, and the tests that it brings run. On
the whole series SGLang's CI has to find all of them, and they run again, in one process; then the kits that ship in the
wheel, the live tests against a server started from that tree without our plugin, and the comparison with our plugin on
a trace. Then the series is taken back, and the tree must be what it was.

A line for each step; the first that fails is named, with what it printed, and ends the check with status 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from patches.check.agreement import cells, compare
from patches.check.series import PATCHES, Series, SeriesError, all_series
from patches.check.tree import CommandError, Tree, fetch_wheel, run

REPOSITORY = PATCHES.parent
TRACE = Path("mooncake_conversation_trace.jsonl")

# Run on a tree: what is imported must come from it, and our plugin must stay out.
IMPORT = """
import importlib, os, sys
python, modules = sys.argv[1], sys.argv[2:]
for name in ["sglang", *modules]:
    file = importlib.import_module(name).__file__
    assert os.path.realpath(file).startswith(os.path.realpath(python) + os.sep), f"{name} comes from {file}"
"""
COLLECT = """
import sys
from sglang.test.ci.ci_register import collect_tests
collect_tests(sys.argv[1:])
"""
PYTEST = """
import os, sys
import pytest, sglang
python = sys.argv[1]
assert os.path.realpath(sglang.__file__).startswith(os.path.realpath(python) + os.sep), sglang.__file__
status = pytest.main(sys.argv[2:])
assert "radix_tlru.sglang.plugin" not in sys.modules, "our plugin was loaded"
sys.exit(status)
"""


class StepError(Exception):
    """A step of the check failed; what it printed is shown already."""


@contextlib.contextmanager
def step(version: str, name: str) -> Iterator[list[str]]:
    """One line for what is done inside: when it is done, how long it took, and what was added to the list."""
    notes: list[str] = []
    began = time.monotonic()
    try:
        yield notes
    except (CommandError, AssertionError, OSError) as error:
        print(f"{version}  FAIL  {name}\n{error}", flush=True)
        raise StepError(f"{version}: {name}") from None
    print(f"{version}  ok    {name}  ({'; '.join([*notes, f'{time.monotonic() - began:.1f} s'])})", flush=True)


def skip(version: str, name: str, why: str) -> None:
    """One line for what is not done."""
    print(f"{version}  skip  {name}  ({why})", flush=True)


class Check:
    """The steps for one series."""

    def __init__(self, series: Series, tree: Tree, *, live: bool, trace: Path) -> None:
        self.series, self.tree = series, tree
        self.version = series.version
        self._live, self._trace = live, trace

    def run(self) -> None:
        """All steps.

        Raises:
            StepError: at the first one that fails.
        """
        with step(self.version, f"lay out sglang {self.series.release} from its wheel") as notes:
            wheel = fetch_wheel(self.series.release)
            self.tree.lay_out_wheel(wheel)
            notes.append(wheel.name)
        released = self.tree.tree_hash()
        for patch in self.series.patches:
            self._apply(patch, last=patch == self.series.patches[-1])
        with step(self.version, "collect the tests as SGLang's CI does"):
            self._python("-P", "-c", COLLECT, *sorted(self.tree.root.glob("test/registered/**/*.py")))
        self._test("of the series, in one process", *(self.tree.root / test for test in self.series.tests))
        for kit in self.series.kits:
            self._test(kit, self.series.folder / kit, path=[REPOSITORY])
        self._run_live()
        self._compare()
        with step(self.version, "reverse the series and find the release"):
            leftovers = self.tree.leftovers()
            assert not leftovers, f"the tree has what no patch brought:\n{leftovers}"
            for patch in reversed(self.series.patches):
                self.tree.reverse(patch)
            assert self.tree.tree_hash() == released, self.tree.git("diff", "--stat", released)

    def environment(self, *path: Path) -> dict[str, str]:
        """Of everything that runs on the tree: the tree first, of plugins our CPU platform alone."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, [self.tree.python, *path])),
            "PYTHONDONTWRITEBYTECODE": "",  # keep compiled modules: each run would compile SGLang anew
            "SGLANG_PLATFORM": "torch_cpu",
            "SGLANG_PLUGINS": "torch_cpu",  # a list of those allowed: `radix_tlru`, which has the flags, is not in it
            "MOONCAKE_TRACE": str(self._trace.resolve()),
        }

    def _python(self, *arguments: str | Path, cwd: Path | None = None, path: Sequence[Path] = ()) -> str:
        return run([sys.executable, *arguments], cwd=cwd or self.tree.root, environment=self.environment(*path))

    def _apply(self, patch: Path, *, last: bool) -> None:
        with step(self.version, f"apply {patch.name}"):
            self.tree.apply(patch)
        with step(self.version, f"compile and import after {patch.name[:4]}"):
            changed = [file for file in self.tree.changed_by(patch) if file.suffix == ".py"]
            if changed:
                self._python("-m", "py_compile", *changed)
            there = [name for name in self.series.imports if last or self._is_there(name)]
            self._python("-P", "-c", IMPORT, self.tree.python, *there)
        if not last:  # after the last one all of them run
            for test in self.series.tests:
                if self.tree.root / test in changed:
                    self._test(f"{test}, on the series up to here", self.tree.root / test)

    def _is_there(self, module: str) -> bool:
        path = self.tree.python / module.replace(".", "/")
        return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()

    def _test(self, name: str, *files: Path, path: Sequence[Path] = ()) -> None:
        with step(self.version, f"test {name}") as notes:
            options = [
                "-q",
                "-W",
                "ignore",
                "-p",
                "no:cacheprovider",
                "--rootdir",
                str(self.tree.root),
                "-c",
                os.devnull,
            ]
            notes.append(summary(self._python("-P", "-c", PYTEST, self.tree.python, *options, *files, path=path)))

    def _run_live(self) -> None:
        for tests in self.series.live:
            name = f"live: {tests}"
            if not self._live:
                skip(self.version, name, "--skip-live")
                continue
            with step(self.version, name) as notes:
                # From our repository, whose tests these are: its folder has no `sglang` that could come first.
                began = time.time()
                options = ["-q", "-p", "no:cacheprovider"]
                file = self.series.folder / tests
                notes.append(summary(self._python("-m", "pytest", *options, file, cwd=REPOSITORY)))
                logs = [log for log in (REPOSITORY / ".out/logs").glob("test-*.log") if log.stat().st_mtime >= began]
                assert logs, "no server was started"
                for log in logs:  # SGLang's own cache, where our plugin's would have registered its backend
                    said = log.read_text(errors="replace")
                    assert "Tree cache initialized: source=default impl=UnifiedRadixCache" in said, log

    def _compare(self) -> None:
        if not self.series.agreement:
            return
        name = "agree with our plugin, request by request"
        if not self._trace.is_file():
            skip(self.version, name, f"--trace {self._trace}: is not there")
            return
        for cell in cells():
            with step(self.version, f"{name}: {cell}") as notes:
                plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
                notes.append(compare(cell, self._trace.resolve(), REPOSITORY, plain, self.environment()))


def summary(printed: str) -> str:
    """pytest's own last word, "4 passed in 2.1s"; other things may be printed after it.

    Raises:
        AssertionError: no test passed, as where all of them were skipped.
    """
    lines = [line.strip("= ") for line in printed.splitlines()]
    last = next((line for line in reversed(lines) if re.search(r"\d+ (passed|skipped|failed)", line)), "no summary")
    assert re.search(r"\d+ passed", last), f"no test passed: {last}"
    return last


def _make_folder(folder: Path, chosen: Sequence[Series]) -> None:
    """What ``--keep`` names, where no tree of these series may be, before any of them is checked."""
    for series in chosen:
        if (folder / series.version).exists():
            raise SeriesError(f"--keep {folder}: {folder / series.version} is there already")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SeriesError(f"--keep {folder}: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its status."""
    parser = argparse.ArgumentParser(prog="patches-check", description=__doc__.splitlines()[0])
    parser.add_argument("--version", action="append", metavar="vX.Y.Z", help="only this one; may be repeated")
    parser.add_argument("--skip-live", action="store_true", help="start no server")
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="PATH",
        help=f"Mooncake's conversation trace, to compare with our plugin on (default: {TRACE}, if it is there)",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="lay the tree out there, and leave it")
    args = parser.parse_args(arguments)
    try:
        chosen = all_series(args.version)
        if args.trace is not None and not args.trace.is_file():
            raise SeriesError(f"--trace {args.trace}: is not there")
        if args.keep is not None:
            _make_folder(args.keep, chosen)
        for series in chosen:
            with contextlib.ExitStack() as stack:
                root = args.keep and args.keep / series.version
                root = root or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="patches-check-")))
                root.mkdir(exist_ok=True)
                Check(series, Tree(root.resolve()), live=not args.skip_live, trace=args.trace or TRACE).run()
    except SeriesError as error:
        print(f"patches-check: {error}", file=sys.stderr)
        return 2
    except StepError as failure:
        print(f"patches-check: failed at {failure}", file=sys.stderr)
        return 1
    print("patches-check: everything holds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
