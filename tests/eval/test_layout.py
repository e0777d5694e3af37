"""How the modules of the harness and of the package depend on each other, read from their imports."""

from __future__ import annotations

import ast
import graphlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import eval
import radix_tlru

ROOTS = {root.__name__: Path(root.__file__).parent for root in (eval, radix_tlru)}
MOST_LINES = 400


class Import(NamedTuple):
    """A name that a module imports, wherever in the file, for types too."""

    module: str  # that imports
    source: str
    name: str | None  # None: the module itself


def modules() -> dict[str, Path]:
    found = {}
    for root, folder in ROOTS.items():
        for path in folder.rglob("*.py"):
            parts = (root, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(module: str) -> Iterator[Import]:
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: imports are written out"
            assert node.module is not None
            yield from (Import(module, node.module, each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (Import(module, each.name, None) for each in node.names)


IMPORTS = list(itertools.chain.from_iterable(map(imports, MODULES)))


def test_no_two_modules_import_each_other_by_whatever_way() -> None:
    graph: dict[str, set[str]] = {}
    for module, source, name in IMPORTS:
        target = f"{source}.{name}" if f"{source}.{name}" in MODULES else source
        graph.setdefault(module, set()).add(target)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_package_does_not_know_the_harness() -> None:
    assert [each for each in IMPORTS if each.module.startswith("radix_tlru") and each.source.startswith("eval")] == []


def test_no_private_name_is_imported() -> None:
    def is_private(name: str) -> bool:
        return name.startswith("_") and not name.startswith("__")

    private = [
        each
        for each in IMPORTS
        if each.source.partition(".")[0] in ROOTS
        if any(map(is_private, (each.name or "", *each.source.split("."))))
    ]
    assert private == []


@pytest.mark.parametrize("module", sorted(name for name in MODULES if name.startswith("eval")))
def test_a_module_says_what_it_is_for_and_is_short(module: str) -> None:
    text = MODULES[module].read_text()
    assert ast.get_docstring(ast.parse(text)), "has no docstring"
    assert text.count("\n") <= MOST_LINES
