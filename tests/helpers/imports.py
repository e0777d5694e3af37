"""Reads what the modules of a tree of Python files import from each other, without importing any of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DYNAMIC = ("import_module", "importlib.import_module", "__import__")


@dataclass(frozen=True)
class Import:
    """One statement that imports: at the top of a file, in a function, or under TYPE_CHECKING."""

    module: str  # that imports
    line: int
    imported: str  # a module: the one itself where a name of it is imported
    name: str | None = None  # imported from it; None for the module itself

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.imported}{f'.{self.name}' if self.name else ''}"


@dataclass(frozen=True)
class PrivateName:
    """A use of a name with a leading underscore that another folder owns."""

    module: str
    line: int
    owner: str  # module
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} uses {self.owner}.{self.name}"


class Modules:
    """The modules below some folders of a root, and their imports.

    Args:
        root: what module names are relative to.
        folders: packages below it.
    """

    def __init__(self, root: Path, *folders: str) -> None:
        self.files = {
            module_name(file.relative_to(root)): file
            for folder in folders
            for file in sorted(root.joinpath(folder).rglob("*.py"))
        }
        self._nodes = {module: _nodes_of(file) for module, file in self.files.items()}
        self._names: dict[str, set[str]] = {}  # of the modules that were asked about
        self.imports = [found for module in self.files for found in self._imports_of(module)]

    def folder(self, module: str) -> str:
        """The package that a module is in: of a package, itself."""
        return module if self._is_package(module) else module.rpartition(".")[0]

    def has(self, module: str, name: str | None = None) -> bool:
        """Whether there is such a module, and that name in it."""
        if module not in self.files:
            return False
        if module not in self._names:
            self._names[module] = _names_in(ast.parse(self.files[module].read_bytes()))
        return name is None or name in self._names[module]

    def _is_package(self, module: str) -> bool:
        return module in self.files and self.files[module].name == "__init__.py"

    def _imports_of(self, module: str) -> Iterator[Import]:
        for node in self._nodes[module]:
            match node:
                case ast.Import():
                    for alias in node.names:
                        yield Import(module, node.lineno, alias.name)
                case ast.ImportFrom():
                    source = self._source(module, node)
                    for alias in node.names:
                        whole = f"{source}.{alias.name}"
                        if whole in self.files:
                            yield Import(module, node.lineno, whole)
                        else:
                            yield Import(module, node.lineno, source, alias.name)
                case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(func) in DYNAMIC:
                    yield Import(module, node.lineno, name)

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """What `from … import` names, also where it begins with dots."""
        if not node.level:
            return node.module or ""
        package = self.folder(module).split(".")
        return ".".join([*package[: len(package) + 1 - node.level], *filter(None, [node.module])])

    def circles(self) -> list[list[str]]:
        """Modules that import each other, directly or not; each circle once, as the modules in it.

        That a module runs the `__init__` of the packages above it is no import of them; to name them is.
        """
        after: dict[str, set[str]] = {module: set() for module in self.files}
        for one in self.imports:
            if one.imported in after:
                after[one.module].add(one.imported)
        reached = {module: _reachable(module, after) for module in after}
        circles = {frozenset(other for other in reached[module] if module in reached[other]) for module in after}
        return sorted(sorted(circle) for circle in circles if circle)

    def private_names(self) -> Iterator[PrivateName]:
        """Private modules of another folder, private names imported from it, and those taken from its modules."""
        for one in self.imports:
            if one.imported not in self.files or self.folder(one.module) == self.folder(one.imported):
                continue
            *_, last = one.imported.split(".")
            for name in filter(None, (last, one.name)):
                if is_private(name):
                    yield PrivateName(one.module, one.line, one.imported, name)
        for module, nodes in self._nodes.items():
            names = self._names_of_modules(module)
            for node in nodes:
                if isinstance(node, ast.Attribute) and is_private(node.attr):
                    owner = self._module_named(node.value, names)
                    if owner is not None and self.folder(owner) != self.folder(module):
                        yield PrivateName(module, node.lineno, owner, node.attr)

    def _names_of_modules(self, module: str) -> dict[str, str]:
        """Names in a file that stand for modules, with the modules."""
        names: dict[str, str] = {}
        for node in self._nodes[module]:
            match node:
                case ast.Import():
                    for alias in node.names:
                        if alias.asname:
                            names[alias.asname] = alias.name
                        else:
                            first = alias.name.partition(".")[0]
                            names[first] = first
                case ast.ImportFrom():
                    for alias in node.names:
                        names[alias.asname or alias.name] = f"{self._source(module, node)}.{alias.name}"
        return names

    def _module_named(self, node: ast.expr, names: dict[str, str]) -> str | None:
        """The module of ours that an expression like `a.b` stands for."""
        first, *rest = ast.unparse(node).split(".")
        if first not in names:
            return None
        whole = ".".join([names[first], *rest])
        return whole if whole in self.files else None


def module_name(file: Path) -> str:
    """Of a file, relative to what modules are found under."""
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_private(name: str) -> bool:
    """Whether a leading underscore says so; names of Python's own, like `__all__`, are not private."""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _names_in(tree: ast.Module) -> set[str]:
    """What a file gives a name to, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.add(asname or name.partition(".")[0])
    return names


def _nodes_of(file: Path) -> list[ast.AST]:
    """What imports are read from, wherever it stands in a file."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute)
    return [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, kinds)]


def _reachable(start: str, after: dict[str, set[str]]) -> set[str]:
    """What is imported from there on, `start` itself only if some way leads back to it."""
    reached: set[str] = set()
    left = list(after[start])
    while left:
        module = left.pop()
        if module not in reached:
            reached.add(module)
            left += after[module]
    return reached
