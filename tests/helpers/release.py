"""`make release-check`: what a user of a release gets, in an environment that knows nothing of the checkout.

The source archive is built from the checkout, and the wheel from that archive. Each is installed beside a stock SGLang
of the pinned versions, in an empty folder: the entry points load, ``radix-tlru demo-model`` and ``radix-tlru doctor``
work, a server evicts by ``etlru``. Without the package SGLang is there as it was. Run as ``python -m
tests.helpers.release``; the status is 1 if anything is not as it should be.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from email.parser import HeaderParser
from pathlib import Path

import requests

from eval.live.server import Server, cpu_flags
from patches.check.tree import CommandError, run
from radix_tlru import __version__
from radix_tlru.tools.scrape import scrape
from tests.helpers.paths import REPOSITORY

CONSTRAINTS = REPOSITORY / "constraints.txt"

POOL = 4_000  # tokens

IN_WHEEL = (
    *("radix_tlru/py.typed", "radix_tlru/README.md", "radix_tlru/tools/prometheus_rules.yml"),
    f"radix_tlru-{__version__}.dist-info/licenses/LICENSE",
)

IN_SOURCES = (
    "LICENSE",
    "CHANGELOG.md",
    "constraints.txt",
    "eval/__main__.py",
    "tests/conftest.py",
    "patches/README.md",
)

# Prints where the package was found; fails if an entry point does not load, or is not of this installation.
LOAD_ENTRY_POINTS = """
import importlib.metadata, pathlib, sys
import radix_tlru
found = pathlib.Path(radix_tlru.__file__)
assert found.is_relative_to(sys.prefix), f"{found} is not in {sys.prefix}"
points = importlib.metadata.distribution("radix-tlru").entry_points
groups = {point.group for point in points}
assert groups == {"console_scripts", "sglang.srt.plugins", "sglang.srt.platforms"}, groups
for point in points:
    assert callable(point.load()), point
print(f"{len(points)} entry points load from {found.parent}")
"""


# Fails if SGLang has a flag of ours. Its platform is the package's, too.
NO_FLAG_OF_OURS = """
import argparse, os
del os.environ["SGLANG_PLATFORM"]
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import ServerArgs
load_plugins()
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
ours = [flag for flag in parser._option_string_actions if flag == "--radix-eviction" or flag.startswith("--tlru")]
assert not ours, ours
print("without the package SGLang knows none of its flags")
"""


class Environment:
    """A virtual environment of its own in ``folder``, and an empty folder to run its commands in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._empty = folder / "empty"
        run([_uv(), "venv", "--quiet", "--python", sys.executable, folder])
        self._empty.mkdir()

    def install(self, *packages: str, reinstall: bool = False) -> None:
        """Install packages at the pinned versions; ``reinstall``: put this one in the place of the one that is there.

        Raises:
            CommandError: one cannot be had or built.
        """
        install = [_uv(), "pip", "install", "--quiet", "-c", CONSTRAINTS]
        again = ["--reinstall", "--no-deps"] if reinstall else []
        run([*install, *again, *packages], cwd=self._empty, environment=self._variables)

    def run(self, command: str, *arguments: str | Path, cwd: Path | None = None) -> str:
        """What a command of this environment prints.

        Raises:
            CommandError: it ended with a status other than 0.
        """
        program = self._folder / "bin" / command
        return run([program, *arguments], cwd=cwd or self._empty, environment=self._variables)

    def remove(self, package: str) -> None:
        """Uninstall a package."""
        run([_uv(), "pip", "uninstall", "--quiet", package], environment=self._variables)

    def serve(self, *flags: str) -> Server:
        """A server of this environment that is to be entered, with these flags."""
        python = self._folder / "bin" / "python"
        command = [str(python), "-P", "-m", "sglang.launch_server"]  # -P: nothing is imported from where it is started
        plain = dict.fromkeys(("PYTHONPATH", "PYTHONHOME"), "")
        return Server(flags, name="release-check", startup_s=600.0, environment=plain, command=command)

    @property
    def _variables(self) -> dict[str, str]:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return {**plain, "VIRTUAL_ENV": str(self._folder), "SGLANG_PLATFORM": "torch_cpu"}


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the source archive, built into ``folder``.

    Raises:
        CommandError: they cannot be built.
    """
    tools = Environment(folder / "tools")
    tools.install("build", "twine")
    built = folder / "dist"
    tools.run("python", "-m", "build", "--outdir", built, REPOSITORY)
    (wheel,), (sources,) = built.glob("*.whl"), built.glob("*.tar.gz")
    tools.run("twine", "check", "--strict", wheel, sources)
    print(f"{wheel.name}, {sources.name}: metadata and README render", flush=True)
    return wheel, sources


def faults_of_wheel(wheel: Path) -> list[str]:
    """What is not in a wheel and should be, or the reverse."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = HeaderParser().parsestr(archive.read(f"radix_tlru-{__version__}.dist-info/METADATA").decode())
    faults = [f"{wheel.name}: lacks {name}" for name in IN_WHEEL if name not in names]
    foreign = {name.partition("/")[0] for name in names} - {"radix_tlru", f"radix_tlru-{__version__}.dist-info"}
    faults += [f"{wheel.name}: has {name}, which is not of the package" for name in sorted(foreign)]
    wanted = {"Version": __version__, "License-Expression": "Apache-2.0", "Requires-Python": ">=3.11"}
    return faults + [
        f"{wheel.name}: {field} {metadata[field]}: must be {value}"
        for field, value in wanted.items()
        if metadata[field] != value
    ]


def faults_of_sources(sources: Path) -> list[str]:
    """What is not in a source archive and should be, its entry in the changelog included."""
    root = sources.name.removesuffix(".tar.gz")
    with tarfile.open(sources) as archive:
        faults = [f"{sources.name}: lacks {name}" for name in IN_SOURCES if f"{root}/{name}" not in archive.getnames()]
        changelog = None if faults else archive.extractfile(f"{root}/CHANGELOG.md")
        if changelog is not None and f"\n## {__version__}" not in changelog.read().decode():
            faults.append(f"{sources.name}: CHANGELOG.md says nothing of {__version__}")
    return faults


def try_out(environment: Environment, model: Path) -> None:
    """Do in an environment what a user does first.

    Raises:
        CommandError: something does not work.
    """
    print(environment.run("python", "-c", LOAD_ENTRY_POINTS).splitlines()[-1])
    print(environment.run("radix-tlru", "--version").strip())
    environment.run("radix-tlru", "demo-model", model)
    print(environment.run("radix-tlru", "doctor").splitlines()[-1], flush=True)
    with environment.serve(*cpu_flags(model, POOL), "--radix-eviction", "etlru") as server:
        asked = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}, "tlru": {"returns_in_s": 5}}
        reply = requests.post(f"{server.base_url}/generate", json=asked, timeout=60)
        reply.raise_for_status()
        (in_force,) = (rank.policy for rank in scrape(server.base_url).ranks)
    print(f"a server answers; etlru has {in_force} in force", flush=True)


def check(folder: Path) -> list[str]:
    """Build, look and try out; returns what is at fault in the files.

    Raises:
        CommandError: a step does not work.
    """
    wheel, sources = build(folder)
    faults = faults_of_wheel(wheel) + faults_of_sources(sources)
    fresh = Environment(folder / "fresh")
    fresh.install(f"{wheel}[serve]")
    print(f"{wheel.name}, in a fresh environment")
    try_out(fresh, folder / "model-of-the-wheel")
    fresh.install(str(sources), reinstall=True)
    print(f"{sources.name}, in the same one")
    try_out(fresh, folder / "model-of-the-sources")
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    fresh.install(f"{wheel}[eval,dashboard]")
    fresh.run("radix-tlru", "dashboard")
    fresh.run("python", "-m", "eval", "--help", cwd=folder / sources.name.removesuffix(".tar.gz"))
    print("python -m eval runs from the unpacked source archive")
    fresh.remove("radix-tlru")
    print(fresh.run("python", "-c", NO_FLAG_OF_OURS).splitlines()[-1])
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its status."""
    argparse.ArgumentParser(prog="release-check", description=__doc__.splitlines()[0]).parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="radix-tlru-release-") as folder:
        try:
            faults = check(Path(folder))
        except CommandError as error:
            faults = [str(error)]
    for fault in faults:
        print(f"release-check: {fault}", file=sys.stderr)
    print(f"{len(faults)} faults" if faults else "the release is in order")
    return int(bool(faults))


def _uv() -> Path:
    """The uv beside this Python, where `make setup` puts it."""
    return Path(sys.executable).with_name("uv")


if __name__ == "__main__":
    raise SystemExit(main())
