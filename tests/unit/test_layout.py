"""The shape of the repository, by reading its imports: what may know what, and that nothing goes in a circle."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.imports import Import, Modules
from tests.helpers.paths import REPOSITORY

MOST_LINES = 400


@pytest.fixture(scope="module")
def modules() -> Modules:
    return Modules(REPOSITORY, "radix_tlru", "eval", "patches", "tests")


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def importers(modules: Modules, of: str, by: str) -> list[str]:
    """Where modules of one package import another one."""
    return [str(one) for one in modules.imports if within(one.imported, of) and within(one.module, by)]


def test_no_modules_import_each_other_in_a_circle(modules: Modules) -> None:
    """An import in a function, or for types alone, counts like any other."""
    circles = modules.circles()
    assert not circles, "\n".join(" <-> ".join(circle) for circle in circles)


def test_a_private_name_is_not_used_outside_its_folder(modules: Modules) -> None:
    used = list(map(str, modules.private_names()))
    assert not used, "\n".join(used)


def test_what_is_imported_of_this_repository_is_there(modules: Modules) -> None:
    """Also where it is imported late, or by what only `make patches-check` runs."""
    roots = {module.partition(".")[0] for module in modules.files}
    missing = [
        str(one)
        for one in modules.imports
        if one.imported.partition(".")[0] in roots and not modules.has(one.imported, one.name)
    ]
    assert not missing, "\n".join(missing)


def test_no_test_imports_from_a_test_module(modules: Modules) -> None:
    found = [
        str(one)
        for one in modules.imports
        if within(one.module, "tests") and any(part.startswith("test_") for part in one.imported.split("."))
    ]
    assert not found, "\n".join(found)


def test_only_one_folder_of_the_package_imports_sglang(modules: Modules) -> None:
    found = [
        str(one)
        for one in modules.imports
        if within(one.imported, "sglang")
        and within(one.module, "radix_tlru")
        and not within(one.module, "radix_tlru.sglang")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("other", ["eval", "tests", "patches"])
def test_the_package_knows_nothing_of_what_is_built_on_it(modules: Modules, other: str) -> None:
    found = importers(modules, of=other, by="radix_tlru")
    assert not found, "\n".join(found)


def test_the_configuration_imports_nothing_of_the_package(modules: Modules) -> None:
    found = importers(modules, of="radix_tlru", by="radix_tlru.config")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("room", "below"),
    [
        ("policy", {"config"}),
        ("objective", {"config"}),
        ("hints", {"config", "policy"}),
        ("learning", {"config", "policy", "objective", "hints"}),
        ("tools", {"config", "policy", "learning"}),
    ],
)
def test_a_room_imports_what_is_below_it(room: str, below: set[str], modules: Modules) -> None:
    """As `radix_tlru/README.md` has it."""
    found = [
        one
        for one in modules.imports
        if within(one.module, f"radix_tlru.{room}") and within(one.imported, "radix_tlru")
        if one.imported.split(".")[1:2] and one.imported.split(".")[1] not in {room, *below}
    ]
    assert not found, "\n".join(map(str, found))


def test_the_functions_that_the_architecture_names_are_there(modules: Modules) -> None:
    named = set(re.findall(r"`(?:(\w+)\.)?(\w+)\(\)`", (REPOSITORY / "radix_tlru" / "README.md").read_text()))
    defined: set[tuple[str, str]] = set()
    for module in modules.files:
        if within(module, "radix_tlru"):
            for node in ast.walk(ast.parse(modules.files[module].read_text())):
                inside = node.body if isinstance(node, ast.ClassDef | ast.Module) else []
                owner = node.name if isinstance(node, ast.ClassDef) else ""
                functions = [each.name for each in inside if isinstance(each, ast.FunctionDef)]
                defined |= {(given, name) for name in functions for given in ("", owner)}
    assert len(named) > 30
    assert not named - defined


def test_the_plugin_leaves_prometheus_to_sglang() -> None:
    """Imported before SGLang has said where several processes write, it would show nothing of the launching one."""
    check = "import sys, radix_tlru.sglang.plugin; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], cwd=REPOSITORY, check=True)


def test_a_file_has_at_most_400_lines(modules: Modules) -> None:
    lengths = {module: len(file.read_text().splitlines()) for module, file in modules.files.items()}
    assert not {module: lines for module, lines in lengths.items() if lines > MOST_LINES}


def test_a_module_says_what_it_is_for(modules: Modules) -> None:
    silent = [
        module
        for module, file in modules.files.items()
        if within(module, "radix_tlru") or within(module, "eval")
        if not ast.get_docstring(ast.parse(file.read_text()))
    ]
    assert not silent


def test_a_folder_says_what_each_of_its_files_is_for(modules: Modules) -> None:
    """By its name in the docstring of its `__init__.py`, by an import there, or in the README beside it."""
    unnamed = []
    for file in modules.files.values():
        if file.is_relative_to(REPOSITORY / "tests") or file.is_relative_to(REPOSITORY / "patches"):
            continue
        folder, name = (file.parent.parent, file.parent.name) if file.stem == "__init__" else (file.parent, file.stem)
        told = [page.read_text() for page in (folder / "__init__.py", folder / "README.md") if page.exists()]
        # A row or a line of an import begins with it, or it is quoted. In prose it would be a word like any other.
        is_named = re.search(rf"^ *(\w+, )?{name}\b|[`.]{name}\b", "\n".join(told), re.MULTILINE)
        if folder != REPOSITORY and name != "__main__" and not is_named:
            unnamed.append(str(file.relative_to(REPOSITORY)))
    assert not unnamed


def test_a_message_names_no_index_to_install_from(modules: Modules) -> None:
    """There is no release on one: what works is an extra of a checkout."""
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    texts = [file.read_text() for module, file in modules.files.items() if not within(module, "tests")]
    told = [found for text in texts for found in re.findall(r"(.*)pip install ('.*?'|\S+)", text)]
    assert told
    assert not [what for where, what in told if what not in {f"'.[{extra}]'" for extra in extras}]
    assert not [where for where, _ in told if "in a checkout" not in where]


# ---- the reader itself, on files made up for it ----


def written(root: Path, init: str = "", **files: str) -> Modules:
    """A package `p` of these files; `a__b` is the file `b` of its folder `a`."""
    package = root / "p"
    package.mkdir(parents=True)
    for name, text in files.items():
        file = package.joinpath(*name.split("__")).with_suffix(".py")
        file.parent.mkdir(exist_ok=True)
        file.parent.joinpath("__init__.py").touch()
        file.write_text(text)
    package.joinpath("__init__.py").write_text(init)
    return Modules(root, "p")


@pytest.mark.parametrize(
    "back",
    [
        "from p.a import x",
        "import p.a",
        "from p import a",
        "from . import a",
        "from .a import x as y",
        "def later():\n    from p.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x",
        "import importlib\nimportlib.import_module('p.a')",
    ],
)
def test_an_import_wherever_it_stands_closes_a_circle(back: str, tmp_path: Path) -> None:
    there = "from p.b import y\nx = 1"
    assert written(tmp_path / "line", a=there, b="y = 1").circles() == []
    assert written(tmp_path / "circle", a=there, b=f"{back}\ny = 1").circles() == [["p.a", "p.b"]]
    assert written(tmp_path / "longer", a=there, b="import p.c", c=back).circles() == [["p.a", "p.b", "p.c"]]


def test_circles_are_told_apart(tmp_path: Path) -> None:
    modules = written(tmp_path, a="import p.b", b="import p.a, p.c", c="import p.d", d="import p.c", e="import p.a")
    assert modules.circles() == [["p.a", "p.b"], ["p.c", "p.d"]]


def test_a_package_that_names_its_modules_is_in_a_circle_with_those_that_name_it(tmp_path: Path) -> None:
    assert written(tmp_path / "one", init="from p.a import x", a="x = 1").circles() == []
    assert written(tmp_path / "two", init="from p.a import x", a="from p import y").circles() == [["p", "p.a"]]


@pytest.mark.parametrize(
    ("use", "owner"),
    [
        ("from p.other.m import _secret", "p.other.m"),
        ("from ..other.m import _secret", "p.other.m"),
        ("from p.other import m\nm._secret", "p.other.m"),
        ("import p.other.m\np.other.m._secret()", "p.other.m"),
        ("import p.other.m as n\ndef f():\n    return n._secret", "p.other.m"),
        ("from p.other import _secret", "p.other"),
    ],
)
def test_private_names_of_another_folder_are_found(use: str, owner: str, tmp_path: Path) -> None:
    modules = written(tmp_path, other__m="_secret = 1", mine__user=use)
    (found,) = modules.private_names()
    assert (found.module, found.owner, found.name) == ("p.mine.user", owner, "_secret")


@pytest.mark.parametrize("use", ["from p.mine.m import _secret", "from . import m\nm._secret", "self._secret"])
def test_private_names_of_the_same_folder_are_its_own(use: str, tmp_path: Path) -> None:
    modules = written(tmp_path, mine__m="_secret = 1", mine__user=use)
    assert list(modules.private_names()) == []


def test_what_a_module_does_not_have_is_known(tmp_path: Path) -> None:
    modules = written(tmp_path, a="import os as system\nif True:\n    x: int = 1\ndef f(): pass", b="from p.a import x")
    assert all(modules.has("p.a", name) for name in (None, "system", "x", "f"))
    assert not any((modules.has("p.a", "os"), modules.has("p.a", "y"), modules.has("p.c")))


def test_a_finding_says_where_it_is(tmp_path: Path) -> None:
    modules = written(tmp_path, a="x = 1", b="\nfrom p.a import x\n")
    assert modules.imports == [Import("p.b", 2, "p.a", "x")]
    assert str(modules.imports[0]) == "p.b:2 imports p.a.x"
