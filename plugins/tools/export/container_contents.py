"""What a program needs in a container: which of our modules, and exact versions of libraries."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from patchline.pipeline.errors import PackagingError

_OWN = "patchline"


@dataclass(frozen=True)
class Closure:
    """Modules of Patchline that import each other, and the libraries that they import."""

    modules: dict[str, Path] = field(default_factory=dict)
    """File by module name; a package is its `__init__`."""
    libraries: frozenset[str] = frozenset()
    """Top-level names, such as `cv2`."""


def closure_of(module: str, root: Path) -> Closure:
    """Return what a module needs.

    What a function imports when it is called counts if that needs no further library: a server
    without MLflow does not follow an alias, but it does read every kind of image file.

    Args:
        module: full name, such as `patchline.pipeline.registry.serving.__main__`.
        root: the folder that holds the package `patchline`.
    """
    modules, libraries = _always({module}, root)
    pending = {name for file in modules.values() for name in _imported(file, root, late=True)}
    refused: set[str] = set()
    while further := pending - modules.keys() - refused:
        name = min(further)
        more, needed = _always({name}, root)
        if needed <= libraries:
            modules |= more
            pending |= {
                other for file in more.values() for other in _imported(file, root, late=True)
            }
        else:
            refused.add(name)
    return Closure(dict(sorted(modules.items())), frozenset(libraries))


def _always(names: set[str], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the modules that are imported with some others, and all their libraries."""
    modules: dict[str, Path] = {}
    libraries: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        file = _file_of(name, root)
        if name in modules or file is None:
            continue
        modules[name] = file
        parent = name.rpartition(".")[0]
        pending |= {parent} if parent else set()
        pending |= set(_imported(file, root, late=False))
        libraries |= set(_libraries(file))
    return modules, libraries


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


def _imported(file: Path, root: Path, *, late: bool) -> Iterator[str]:
    """Yield our modules that a file imports.

    Args:
        file: a module.
        root: the folder that holds the package `patchline`.
        late: those that are imported by its functions, instead of with it.
    """
    for node in _imports(file, late=late):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == _OWN)
        elif node.module and node.module.split(".")[0] == _OWN:
            yield node.module
            for name in node.names:
                if _file_of(f"{node.module}.{name.name}", root):
                    yield f"{node.module}.{name.name}"


def _libraries(file: Path) -> Iterator[str]:
    """Yield the top-level names of other libraries that are imported with a file."""
    for node in _imports(file, late=False):
        names = (
            [name.name for name in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
        )
        for name in names:
            top = name.split(".")[0]
            if top and top != _OWN and top not in sys.stdlib_module_names:
                yield top


def _imports(file: Path, *, late: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield a file's imports, without those for type checkers alone."""
    pending: list[tuple[ast.AST, bool]] = [(ast.parse(file.read_text(encoding="utf-8")), False)]
    while pending:
        node, inside = pending.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            if inside == late:
                yield node
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        deeper = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        pending += [(child, deeper) for child in ast.iter_child_nodes(node)]


def pinned_requirements(libraries: Iterable[str]) -> list[str]:
    """Return `name==version` for each library and what it requires, sorted.

    Args:
        libraries: top-level names of modules, such as `cv2`.

    Raises:
        PackagingError: if one belongs to no installed distribution.
    """
    providers = metadata.packages_distributions()
    pending = []
    for library in sorted(libraries):
        if library not in providers:
            raise PackagingError(
                f"The library {library}, which the server needs, belongs to no installed package. "
                "Install the versions in constraints.txt."
            )
        pending.append((providers[library][0], frozenset[str]()))
    pins: dict[str, str] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    while pending:
        name, extras = pending.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        distribution = metadata.distribution(name)
        own_name = canonicalize_name(distribution.metadata["Name"])
        pins[own_name] = f"{own_name}=={distribution.version}"
        for line in distribution.requires or ():
            required = Requirement(line)
            if _applies(required, extras):
                pending.append((canonicalize_name(required.name), frozenset(required.extras)))
    return [pins[name] for name in sorted(pins)]


def _applies(required: Requirement, extras: frozenset[str]) -> bool:
    if required.marker is None:
        return True
    return any(required.marker.evaluate({"extra": extra}) for extra in (extras or {""}))
