"""The limits of the style guide that a machine can check: sizes, and the number of parameters."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import qstate

PACKAGE = Path(qstate.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MOST_MODULES_OF_A_FOLDER = 16
MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 60
GOOD_LINES_OF_A_FUNCTION = 35
MOST_POSITIONAL_PARAMETERS = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function):
            yield node


def lines(function: Function) -> int:
    """Lines of the signature and the body; the docstring is for the reader and does not count."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None and first.end_lineno is not None:
        total -= first.end_lineno - first.lineno + 1
    return total


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_keep_the_limits(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES_OF_A_FILE
    for function in functions(path):
        where = f"{path.name}: {function.name}"
        assert lines(function) <= MOST_LINES_OF_A_FUNCTION, where
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        positional = [name for name in names if name not in ("self", "cls")]
        assert len(positional) <= MOST_POSITIONAL_PARAMETERS, where


def test_a_folder_has_few_modules() -> None:
    sizes = Counter(path.parent for path in FILES if path.name != "__init__.py")
    assert {folder: size for folder, size in sizes.items() if size > MOST_MODULES_OF_A_FOLDER} == {}


def test_nearly_all_functions_are_short() -> None:
    sizes = [lines(function) for path in FILES for function in functions(path)]
    assert sum(size <= GOOD_LINES_OF_A_FUNCTION for size in sizes) >= 0.95 * len(sizes)
