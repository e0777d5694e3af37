"""A released SGLang laid out as its repository: ``python/sglang/…`` under git, to which a series is applied."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["CommandError", "Tree", "cache_folder", "fetch_wheel", "run"]

_TAIL = 40  # lines of a failed command's output that are worth showing


class CommandError(RuntimeError):
    """A command that did not end with status 0; the message is its command line and the end of what it printed."""


def run(command: Sequence[str | Path], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints, both streams.

    Raises:
        CommandError: it ended with a status other than 0.
    """
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=None if environment is None else dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        words = " ".join(word if len(word) < 200 and "\n" not in word else "…" for word in map(str, command))
        tail = "\n".join(done.stdout.splitlines()[-_TAIL:])
        raise CommandError(f"{words}\nended with status {done.returncode}:\n{tail}")
    return done.stdout


def cache_folder() -> Path:
    """Where what was fetched is kept, outside the repository: ``$XDG_CACHE_HOME/radix-tlru``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radix-tlru"


def fetch_wheel(release: str) -> Path:
    """The wheel of a release of SGLang, from the cache folder or else from the package index that pip is set up for."""
    folder = cache_folder() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pattern = f"sglang-{release}-*.whl"
    if not any(folder.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, f"sglang=={release}"])
    return min(folder.glob(pattern))


class Tree:
    """A git repository of one commit, the release, to which patches are applied as further commits.

    Args:
        root: a folder that does not exist yet, or is empty.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / "python"

    def lay_out_wheel(self, wheel: Path) -> None:
        """The package of a wheel becomes the first commit."""
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.startswith("sglang/")]
            archive.extractall(self.python, members)
        self._commit_release()

    def lay_out_installed(self, package: Path) -> None:
        """The sources of an installed package (a folder named ``sglang``) become the first commit.

        Enough to apply patches to; copied, because an installer may have linked them into its cache.
        """
        for folder, _, names in os.walk(package):
            kept = [name for name in names if name.endswith((".py", ".md"))]
            target = self.python / package.name / Path(folder).relative_to(package)
            target.mkdir(parents=True, exist_ok=True)
            for name in kept:
                shutil.copyfile(Path(folder) / name, target / name)
        self._commit_release()

    def _commit_release(self) -> None:
        self.git("init", "--quiet")
        (self.root / ".git" / "info" / "exclude").write_text("__pycache__/\n*.pyc\n.pytest_cache/\n")
        self.git("add", "--all", "--force", "python")
        self.git("commit", "--quiet", "--no-verify", "-m", "The release as it was published")

    def git(self, *arguments: str | Path) -> str:
        """What a git command prints, without the last newline.

        Raises:
            CommandError: git refused.
        """
        nobody = {"NAME": "patches-check", "EMAIL": "patches-check@localhost"}
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            **{f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in nobody.items()},
            "GIT_CONFIG_GLOBAL": os.devnull,  # hooks, signing and line endings of whoever runs this stay out
            "GIT_CONFIG_SYSTEM": os.devnull,
        }
        return run(["git", "-c", "core.autocrlf=false", *arguments], cwd=self.root, environment=environment).rstrip(
            "\n"
        )

    def tree_hash(self) -> str:
        """Hash of all that is committed: equal if and only if every file is."""
        return self.git("rev-parse", "HEAD^{tree}")

    def apply(self, patch: Path) -> None:
        """``git am``: the patch becomes a commit, whole or not at all."""
        self.git("am", "--quiet", "--no-3way", "--keep-cr", "--keep-non-patch", patch.resolve())

    def reverse(self, patch: Path) -> None:
        """Take back a patch that was applied last."""
        self.git("apply", "--reverse", "--index", patch.resolve())
        self.git("commit", "--quiet", "--no-verify", "-m", f"Reverse {patch.name}")

    def changed_by(self, patch: Path) -> list[Path]:
        """Files of the tree that a patch adds or changes."""
        lines = self.git("apply", "--numstat", patch.resolve()).splitlines()
        return [self.root / line.split("\t")[2] for line in lines]

    def leftovers(self) -> str:
        """What git sees beside the last commit: changed or new files."""
        return self.git("status", "--porcelain", "--untracked-files=all")
