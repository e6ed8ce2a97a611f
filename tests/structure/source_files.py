"""What the rules on the code ask about a file: each is parsed once for all of them."""

from __future__ import annotations

import ast
import gc
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
        return _read(ast.parse(text))
    finally:
        gc.enable()


def _read(tree: ast.Module) -> SourceFile:
    """Return what a file imports, and what functions, classes, parameters and fields are called."""
    found = SourceFile([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.imports.extend(Import(node.lineno, each.name, None) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.imports.extend(Import(node.lineno, node.module, e.name) for e in node.names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.names.append((node.lineno, node.name))
        elif isinstance(node, ast.arg):
            found.names.append((node.lineno, node.arg))
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    found.names.append((field.lineno, field.target.id))
    return found
