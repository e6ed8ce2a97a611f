"""Files of the product that import each other in a circle, as a function on a source tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.structure.import_rules import FOLDERS, ROOT_PACKAGE
from tests.structure.source_files import source_file

Imports = Mapping[str, set[str]]


def import_circles(root: Path, *packages: str, types_too: bool = True) -> list[list[str]]:
    """Return groups of files of which each imports each, directly or indirectly.

    An import inside a function counts: it hides a circle, and does not untie it.

    Args:
        root: the folder that holds the packages.
        packages: `pipeline`, `pipeline/data`; imports of other packages are followed too only if
            these are named.
        types_too: whether imports for type checkers (`if TYPE_CHECKING`) count as well.
    """
    files = {_module(file.relative_to(root)): file for file in _sources(root, packages)}
    imports = {
        module: set(_imported(file, set(files), types_too=types_too)) - {module}
        for module, file in files.items()
    }
    reached = {module: _reached(module, imports) for module in imports}
    circles = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in imports
        if module in reached[module]
    }
    return [list(circle) for circle in sorted(circles)]


def _sources(root: Path, packages: tuple[str, ...]) -> Iterator[Path]:
    for package in packages:
        yield from sorted((root / package).rglob("*.py"))


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    if parts[0] in FOLDERS:
        parts = (ROOT_PACKAGE, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(file: Path, modules: set[str], *, types_too: bool) -> Iterator[str]:
    """Yield the modules among these that a file imports."""
    for each in source_file(file.read_text(encoding="utf-8")).imports:
        if types_too or not each.for_types:
            yield from [name for name in (str(each), each.module) if name in modules][:1]


def _reached(module: str, imports: Imports) -> set[str]:
    reached: set[str] = set()
    waiting = list(imports[module])
    while waiting:
        here = waiting.pop()
        if here not in reached:
            reached.add(here)
            waiting += imports[here]
    return reached
