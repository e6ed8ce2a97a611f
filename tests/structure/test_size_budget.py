"""Modules and functions stay small enough to read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pipeline", "flows", "plugins", "tests", "benchmarks", "examples")
MODULE_LINES, FUNCTION_LINES = 400, 60
EXCEPTIONS: dict[str, str] = {}
"""Places over the budget, each with its reason."""
BANNED_NAMES = {"utils", "common", "helpers", "base", "types", "misc"}


def over_budget(root: Path) -> set[str]:
    """Return modules and functions that are too long."""
    found = set()
    for package in PACKAGES:
        for file in [*(root / package).rglob("*.py"), *root.glob("*.py")]:
            text = file.read_text(encoding="utf-8")
            name = file.relative_to(root).as_posix()
            if text.count("\n") > MODULE_LINES:
                found.add(name)
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    length = (node.end_lineno or node.lineno) - node.lineno + 1
                    if length > FUNCTION_LINES:
                        found.add(f"{name}:{node.name}")
    return found


def test_everything_fits_or_has_a_reason() -> None:
    """A module has at most 400 lines and a function 60, but for the listed exceptions."""
    assert over_budget(ROOT) <= set(EXCEPTIONS)


def test_no_exception_is_stale() -> None:
    """An exception that is no longer needed has to go."""
    assert set(EXCEPTIONS) <= over_budget(ROOT)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def long():\n" + "    pass\n" * 60, "flows/long.py:long"),
        ("x = 1\n" * 401, "flows/long.py"),
    ],
    ids=["function of 61 lines", "module of 401 lines"],
)
def test_what_is_too_long_is_found(tmp_path: Path, text: str, found: str) -> None:
    """The same check names a function and a module that were made too long on purpose."""
    for package in PACKAGES:
        (tmp_path / package).mkdir()
    (tmp_path / "flows/long.py").write_text(text, encoding="utf-8")
    assert over_budget(tmp_path) == {found}


def test_no_file_has_a_name_that_says_nothing() -> None:
    """Files are named for what they hold."""
    named = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    assert not [file for file in named if file.stem in BANNED_NAMES]
