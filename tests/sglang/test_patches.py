"""Each patch series applies to the release it was made for, patch by patch, and comes off again.

Here on the files of the SGLang that is installed, so for its release alone; `make patches-check` does it for each
release on its own wheel, and runs what the patches bring.
"""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sglang.test.ci.ci_register import collect_tests

from patches.check.__main__ import main, summary
from patches.check.series import PATCHES, Series, SeriesError, all_series
from patches.check.tree import CommandError, Tree
from radix_tlru.sglang.releases import release_of, sglang_version

SERIES = [series for series in all_series() if release_of(series.release) == release_of(sglang_version() or "")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """The installed SGLang as a repository; a test leaves it as it found it."""
    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    tree = Tree(tmp_path_factory.mktemp("release"))
    tree.lay_out_installed(Path(found.origin).parent)
    return tree


def test_the_installed_release_has_a_series() -> None:
    assert SERIES


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.version)
def test_a_series_applies_and_comes_off(series: Series, tree: Tree) -> None:
    released = tree.tree_hash()
    hashes = [released]
    for patch in series.patches:
        tree.apply(patch)
        hashes.append(tree.tree_hash())
        for file in tree.changed_by(patch):
            if file.suffix == ".py":
                py_compile.compile(str(file), doraise=True)
    assert len(set(hashes)) == len(hashes)  # each of them changes something
    added = {str(file.relative_to(tree.root)) for patch in series.patches for file in tree.changed_by(patch)}
    assert set(series.tests) <= added
    collect_tests([str(file) for file in tree.root.glob("test/registered/**/*.py")])  # as SGLang's CI: each registers
    for patch, before in zip(reversed(series.patches), reversed(hashes[:-1]), strict=True):
        tree.reverse(patch)
        assert tree.tree_hash() == before
    assert tree.leftovers() == ""


@pytest.mark.parametrize("series", SERIES, ids=lambda series: series.version)
def test_a_series_applies_to_an_environment_inside_a_repository(series: Series, tree: Tree, tmp_path: Path) -> None:
    released = tree.tree_hash()
    packages = tmp_path / "site-packages"
    shutil.copytree(tree.python, packages)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    subprocess.run(  # as patches/README.md says
        ["git", "apply", "-p2", "--include=sglang/*", *series.patches],
        cwd=packages,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
        check=True,
    )
    for patch in series.patches:
        tree.apply(patch)
    changed = {file for patch in series.patches for file in tree.changed_by(patch)}
    for file in changed:
        if file.is_relative_to(tree.python):
            assert (packages / file.relative_to(tree.python)).read_bytes() == file.read_bytes()
    for patch in reversed(series.patches):
        tree.reverse(patch)
    assert tree.tree_hash() == released


@pytest.mark.parametrize("series", all_series(), ids=lambda series: series.version)
def test_a_patch_says_what_a_pull_request_has_to_say(series: Series) -> None:
    for patch in series.patches:
        header, _, _ = patch.read_text().partition("\n---\n")
        for section in ("Motivation", "Modifications", "Accuracy", "Benchmarking", "Checklist"):
            assert f"\n## {section}" in header, f"{patch}: {section}"


def test_a_patch_that_does_not_fit_is_refused_whole(tree: Tree, tmp_path: Path) -> None:
    (series, *_) = SERIES
    header, hunks = series.patches[0].read_text().split("\n@@ ", 1)
    context = next(line for line in hunks.splitlines() if line.startswith(" ") and line.strip())
    broken = tmp_path / "0001-broken.patch"
    broken.write_text(f"{header}\n@@ {hunks.replace(context, context + ' otherwise', 1)}")
    released = tree.tree_hash()
    with pytest.raises(CommandError, match=r"0001-broken\.patch"):
        tree.apply(broken)
    tree.git("am", "--abort")
    assert (tree.tree_hash(), tree.leftovers()) == (released, "")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('release = "0.5.23"\nlife = ["x"]', "life is not one of release, imports"),
        ('release = "0.5.23"\ntests = "x"', "tests = 'x': must be a list of strings"),
        ('release = "0.5.23"\nagreement = 1', "agreement = 1: must be true or false"),
        ('tests = ["x"]', "release is missing"),
        ('release = "0.5.23"', r"holds no NNNN-\*.patch"),
        ("release =", "Invalid value"),
    ],
)
def test_a_wrong_series_file_is_refused_by_name(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "series.toml").write_text(text)
    with pytest.raises(SeriesError, match=complaint):
        Series.read(tmp_path)


def test_a_version_that_is_not_there_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version", "v9.9.9"]) == 2
    assert "--version v9.9.9: must be one of v" in capsys.readouterr().err


def test_a_trace_that_is_not_there_is_refused_before_anything_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "mooncake.jsonl"
    assert main(["--trace", str(missing)]) == 2
    assert capsys.readouterr().err == f"patches-check: --trace {missing}: is not there\n"


def test_a_folder_that_cannot_be_kept_is_refused_before_anything_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = all_series()[-1].version
    (tmp_path / "kept" / last).mkdir(parents=True)
    (tmp_path / "file").touch()
    for folder, why in (("kept", f"{tmp_path / 'kept' / last} is there already"), ("file", "File exists")):
        assert main(["--keep", str(tmp_path / folder)]) == 2
        assert capsys.readouterr().err == f"patches-check: --keep {tmp_path / folder}: {why}\n"
    assert [entry.name for entry in (tmp_path / "kept").iterdir()] == [last]


def test_tests_that_were_all_skipped_are_no_success() -> None:
    assert summary("..s\n=== 2 passed, 1 skipped in 2.1s ===\nbye\n") == "2 passed, 1 skipped in 2.1s"
    for printed in ("=== 3 skipped in 0.1s ===\n", "bye\n"):
        with pytest.raises(AssertionError, match="no test passed"):
            summary(printed)


def test_the_checker_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "patches.check", "--help"],
        cwd=PATCHES.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--skip-live" in done.stdout
