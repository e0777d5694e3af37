"""What a release is made of, and what the workflow of public CI and the container files say of it."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from radix_tlru import __version__
from radix_tlru.cli import main
from tests.helpers.overlay import releases
from tests.helpers.paths import REPOSITORY
from tests.helpers.release import IN_SOURCES, IN_WHEEL, faults_of_sources, faults_of_wheel

METADATA = f"radix_tlru-{__version__}.dist-info/METADATA"
FIELDS = f"Metadata-Version: 2.4\nVersion: {__version__}\nLicense-Expression: Apache-2.0\nRequires-Python: >=3.11\n"
CHANGELOG = f"# Changelog\n\n## {__version__}\n"


def written_wheel(folder: Path, files: Mapping[str, str]) -> Path:
    path = folder / f"radix_tlru-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def written_sources(folder: Path, files: Mapping[str, str]) -> Path:
    path = folder / f"radix_tlru-{__version__}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"radix_tlru-{__version__}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_wheel_is_missed_nothing_and_has_nothing_foreign(tmp_path: Path) -> None:
    whole = {**dict.fromkeys(IN_WHEEL, ""), METADATA: FIELDS}
    assert faults_of_wheel(written_wheel(tmp_path, whole)) == []
    untyped = {name: text for name, text in whole.items() if not name.endswith("py.typed")}
    (fault,) = faults_of_wheel(written_wheel(tmp_path, untyped))
    assert fault.endswith("lacks radix_tlru/py.typed")
    (fault,) = faults_of_wheel(written_wheel(tmp_path, {**whole, "eval/__init__.py": ""}))
    assert fault.endswith("has eval, which is not of the package")
    (fault,) = faults_of_wheel(written_wheel(tmp_path, {**whole, METADATA: FIELDS.replace(__version__, "7")}))
    assert fault.endswith(f"Version 7: must be {__version__}")


def test_a_source_archive_has_the_harness_and_an_entry_in_the_changelog(tmp_path: Path) -> None:
    whole = {**dict.fromkeys(IN_SOURCES, ""), "CHANGELOG.md": CHANGELOG}
    assert faults_of_sources(written_sources(tmp_path, whole)) == []
    (fault,) = faults_of_sources(written_sources(tmp_path, {**whole, "CHANGELOG.md": "# Changelog\n\n## 0.0.1\n"}))
    assert fault.endswith(f"CHANGELOG.md says nothing of {__version__}")
    without = {name: text for name, text in whole.items() if name != "eval/__main__.py"}
    (fault,) = faults_of_sources(written_sources(tmp_path, without))
    assert fault.endswith("lacks eval/__main__.py")


def test_the_help_says_where_the_harness_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "run from a checkout" in " ".join(capsys.readouterr().out.split())


def test_public_ci_runs_targets_that_are_there_on_each_supported_release() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["compat"]["strategy"]["matrix"]["sglang"] == releases()
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = {match[1] for command in commands if (match := re.match(r"make ([a-z-]+)", command))}
    assert called == {"test", "test-all", "release-check", "compat"}
    assert called <= targets
