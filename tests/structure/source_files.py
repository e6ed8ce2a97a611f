"""What the rules on the code ask about a file: each is parsed once for all of them."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple


class Import(NamedTuple):
    """A name that a file imports: `import module`, or `from module import name`."""

    line: int
    module: str
    name: str | None
    for_types: bool
    """Whether it is below `if TYPE_CHECKING`."""

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
        return SourceFile(list(_imports(tree.body)), list(_names(tree)))
    finally:
        gc.enable()


def _imports(statements: Iterable[ast.stmt], *, for_types: bool = False) -> Iterator[Import]:
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, each.name, None, for_types) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                yield Import(node.lineno, node.module, each.name, for_types)
        elif isinstance(node, ast.If):
            guarded = ast.unparse(node.test).endswith("TYPE_CHECKING")
            yield from _imports(node.body, for_types=for_types or guarded)
            yield from _imports(node.orelse, for_types=for_types)
        else:
            for name in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _imports(getattr(node, name, ()), for_types=for_types)


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
