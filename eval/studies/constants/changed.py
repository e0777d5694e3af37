"""Another value of a constant, in this process, for as long as a block lasts.

A constant is set in the module that defines it and in every module that imported it by name. What module-level
assignments computed from it is computed again. Constants are read when functions run, never when they are defined
(a test checks that), so nothing else has to follow.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from eval.studies.constants.table import PACKAGE, Constant, changed_value

_PACKAGES = (PACKAGE, "eval")


class _Old(NamedTuple):
    """What a name stood for."""

    module: ModuleType
    name: str
    value: Any


@contextmanager
def changed(constant: Constant, factor: float) -> Iterator[Any]:
    """``with changed(constant, 2):`` runs with twice its value; yields the value. Build caches inside the block."""
    value = changed_value(constant.value, factor, constant.scale)
    before: list[_Old] = []
    try:
        _set(sys.modules[f"{PACKAGE}.{constant.module}"], constant.name, value, before)
        yield value
    finally:
        for old in reversed(before):
            setattr(old.module, old.name, old.value)


def _set(module: ModuleType, name: str, value: Any, before: list[_Old]) -> None:
    before.append(_Old(module, name, getattr(module, name)))
    setattr(module, name, value)
    for importer, alias in _importers(module.__name__, name):
        _set(importer, alias, value, before)
    for statement in _tree(module).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and name in _names(statement, ast.Load):
            computed = dict(vars(module))
            exec(compile(ast.Module([statement], []), str(module.__file__), "exec"), computed)
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                for other in _names(target, ast.Store):
                    _set(module, other, computed[other], before)


def _importers(module: str, name: str) -> list[tuple[ModuleType, str]]:
    """Loaded modules that have ``from module import name``, and what they call it."""
    found = []
    for other in list(sys.modules.values()):
        if not getattr(other, "__file__", None) or other.__name__.partition(".")[0] not in _PACKAGES:
            continue
        for statement in _tree(other).body:
            if isinstance(statement, ast.ImportFrom) and statement.module == module:
                found += [(other, each.asname or each.name) for each in statement.names if each.name == name]
    return found


def _names(part: ast.AST, context: type[ast.Load] | type[ast.Store]) -> set[str]:
    return {each.id for each in ast.walk(part) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def _tree(module: ModuleType) -> ast.Module:
    return _parsed(str(module.__file__))


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text())
