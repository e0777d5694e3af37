"""`python -m eval constants`: the table has every tuned number of the package, and measures what another value does."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import radix_tlru
from eval.__main__ import main
from eval.studies.constants.changed import changed
from eval.studies.constants.table import CONSTANTS, FORMATS, PACKAGE, Constant, changed_value

ROOT = Path(radix_tlru.__file__).parent
TUNED = ("policy", "objective", "learning", "hints", "config")
BY_KEY = {one.key: one for one in CONSTANTS}


def tuned_modules() -> Iterator[str]:
    """Names below the package of the modules that hold tuned numbers. On those of ``checks`` no decision depends."""
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[0] in TUNED and parts[-1] not in ("__init__", "checks"):
            yield ".".join(parts)


def tree_of(module: str) -> ast.Module:
    return ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())


def is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def numbers_of(module: str) -> Iterator[str]:
    """Names that the module sets, at its top level, to something with a number in it."""
    for statement in tree_of(module).body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and any(map(is_number, ast.walk(statement))):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name))


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda one: one.key)
def test_every_entry_is_a_number_of_the_package_that_has_a_half_and_a_double(constant: Constant) -> None:
    assert all(isinstance(each, int | float) for each in flat(constant.value))
    half, twice = (changed_value(constant.value, factor, constant.scale) for factor in (0.5, 2.0))
    assert type(half) is type(twice) is type(constant.value)
    assert half != constant.value != twice or constant.value == 1
    if constant.unit == "share":
        assert all(0 <= each <= 1 for value in (half, twice) for each in flat(value)), "a share stays one"


def flat(value: object) -> list[object]:
    return list(value) if isinstance(value, tuple) else [value]


def test_every_number_of_the_package_is_in_the_table_or_is_no_constant_to_tune() -> None:
    there = {f"{module}.{name}" for module in tuned_modules() for name in numbers_of(module)}
    assert there == BY_KEY.keys() | FORMATS.keys()
    assert not BY_KEY.keys() & FORMATS.keys()
    assert all(FORMATS.values()), "each with a reason"


def test_no_constant_is_read_when_a_function_or_a_class_is_defined() -> None:
    # Else another value would not reach it.
    names = {one.name for one in CONSTANTS}
    early = []
    for module in tuned_modules():
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.FunctionDef):
                read = [*node.args.defaults, *node.args.kw_defaults, *node.decorator_list]
            elif isinstance(node, ast.ClassDef):
                read = [each for each in node.body if not isinstance(each, ast.FunctionDef)] + node.decorator_list
            else:
                continue
            found = (each for part in read if part is not None for each in ast.walk(part))
            early += [(module, each.id) for each in found if isinstance(each, ast.Name) and each.id in names]
    assert early == []


def test_another_value_reaches_all_who_imported_it_and_what_is_computed_from_it() -> None:
    for module in ("age_bands", "gittins", "hazard_model", "return_model"):
        importlib.import_module(f"{PACKAGE}.learning.{module}")
    bands, gittins, hazards, returns = (
        sys.modules[f"{PACKAGE}.learning.{name}"] for name in ("age_bands", "gittins", "hazard_model", "return_model")
    )
    before = bands.BANDS, bands.AGES, gittins.BANDS, gittins._WIDTHS, hazards._EDGES, returns.AGES
    with changed(BY_KEY["learning.age_bands._FIRST_S"], 2.0) as value:
        assert value == bands.BANDS[1] == bands.AGES[1] == 2 * before[0][1]
        assert bands.BANDS == gittins.BANDS == hazards.BANDS == tuple(hazards._EDGES)
        assert gittins._WIDTHS[-1] == value
        assert returns.AGES is bands.AGES
    assert before == (bands.BANDS, bands.AGES, gittins.BANDS, gittins._WIDTHS, hazards._EDGES, returns.AGES)
    assert hazards.BANDS is bands.BANDS


SMALL = ("chat-mix:conversations=60,arrival_span_s=200", "agents:runs=60,arrival_span_s=400")


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    sizes = ["--capacity", "8k", "16k", "--threshold", "512"]
    return ["constants", "--measure", "--trace", *SMALL, *sizes, "--out", str(tmp_path), "--jobs", "2"]


def test_a_constant_is_measured_on_each_trace_and_once(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words += ["--only", "_SLACK", "_PATIENCE_S", "DEAREST"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    files = sorted(tmp_path.iterdir())
    rows = [line for path in files for line in path.read_text().splitlines()]
    assert len(rows) == 2 * (1 + 2 * 2), "of each trace: all as they are, and two constants at half and twice"
    for name in ("chat-mix: 8,000 tokens, ξ = 512", "agents: 16,000 tokens, ξ = 512"):
        assert name in printed
    assert "with: policy.entries._SLACK" in printed, "it only bounds memory"
    assert "hints.models.DEAREST: not measured, no trace has hints" in printed
    changed_at = [path.stat().st_mtime_ns for path in files]
    assert main(words) == 0
    assert capsys.readouterr().out == printed
    assert [path.stat().st_mtime_ns for path in files] == changed_at, "nothing was served again"


def test_another_estimate_makes_a_difference(words: list[str], tmp_path: Path) -> None:
    assert main([*words, "--only", "DEFAULT_NEXT_PROMPT"]) == 0
    rows = [path.read_text().splitlines() for path in tmp_path.iterdir()]
    figures = [{line.partition(', "tel"')[2] for line in lines} for lines in rows]
    assert any(len(of_trace) > 1 for of_trace in figures)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "LUCK"], "--only LUCK: must be one of"),
        (["--load", "0.5"], "--load: needs --measure; the list of constants takes --only alone"),
        (["--measure", "--trace", *SMALL, "--capacity", "1k", "2k", "3k"], "--capacity 1000 2000 3000: must be one"),
        (["--measure", "--trace", SMALL[0], "--capacity", "8"], "--capacity 8: must be at least one page"),
        (["--measure", "--trace", SMALL[0], "--capacity", "0"], "--capacity 0: must be at least one page"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["constants", *flags, "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"eval constants: {said}")
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()
