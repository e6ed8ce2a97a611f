"""What the rules on the code ask about a file: each is parsed once for all of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class Import(NamedTuple):
    """A name that a file imports: `import module`, or `from module import name`."""

    line: int
    module: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


class SourceFile(NamedTuple):
    """Imports, those inside functions included, and the names of what is defined, with lines."""

    imports: list[Import]
    names: list[tuple[int, str]]


@cache
def source_file(text: str) -> SourceFile:
    """Return what a file imports, and what its functions, parameters and fields are called."""
    gc.disable()  # it would look at the growing tree many times, and find nothing
    try:
        tree = ast.parse(text)
        return SourceFile(list(_imports(tree)), list(_names(tree)))
    finally:
        gc.enable()


def _imports(tree: ast.Module) -> Iterator[Import]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (Import(node.lineno, node.module, each.name) for each in node.names)


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield what functions, classes, their parameters and their fields are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.lineno, field.target.id
