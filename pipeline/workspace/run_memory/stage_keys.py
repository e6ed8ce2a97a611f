"""The inputs that determine the result of a stage: data, settings, code, packages, plugins.

A record stores them as plain text, so that one can see why a result was reused or not.

`python -m patchline.pipeline.workspace.run_memory.stage_keys` parses all code before a run does.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import json
import platform
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import StorageError
from patchline.pipeline.installation import PACKAGE
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import Kind, PluginEntry
from patchline.pipeline.plugin_system.plugin_settings import list_chosen_plugins
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import digest_of

Ingredients = dict[str, str]

_LIBRARY = ("patchline.pipeline.", "patchline.plugin_api", "patchline.plugin_checks")
"""The modules that other code of a stage is followed into."""
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_DEVELOPMENT = re.compile(r"extra\s*==\s*['\"]dev['\"]")
_ORCHESTRATION = {"prefect", "cyclopts", "rich", "uvicorn", "fastapi", "filelock", "psutil"}
"""Packages that start and display a stage, but do not affect its result."""
_NO_INGREDIENTS = (
    "training.threads",
    "training.device",
    "model.init",
    "model.download",
)
"""The first two are ingredients of their own; the digest of initial weights says what they are."""


def settings(config: RunConfig, *sections: str) -> dict[str, str]:
    """Return the settings of some sections, by dotted key."""
    return {
        key: value
        for key, value in config.flat().items()
        if key.partition(".")[0] in sections and key not in _NO_INGREDIENTS
    }


def all_settings(config: RunConfig) -> dict[str, str]:
    """Return the settings that a result may depend on, by dotted key: not where it is computed."""
    return {k: value for k, value in config.flat().items() if not k.startswith("launcher.")}


@functools.cache
def code(*modules: str) -> str:
    """Return a digest of the code of some modules and of all library modules that they import.

    Comments, docstrings and the layout of the code do not count.

    Args:
        modules: full names, such as `patchline.pipeline.training.__main__`; a package counts as a
            whole. Of a module outside the library, its own file counts and what it imports of the
            library.

    Raises:
        ValueError: if there is no such module.
    """
    return _digest(files_of(*modules), PACKAGE)


def files_of(*modules: str) -> set[Path]:
    """Return the files of the modules and of all library modules that they import.

    Files beside a module that are not modules, such as templates, are included.
    """
    sources: set[Path] = set()
    waiting: list[Path] = []
    for module in modules:
        files = _files_of(module) or _outside(module)
        if not files:
            raise ValueError(f"There is no module {module}.")
        waiting += files
    while waiting:
        file = waiting.pop()
        if file in sources:
            continue
        sources.add(file)
        if file.name != "config.py" and file.is_relative_to(PACKAGE):  # settings use no templates
            sources.update(_templates_in(file.parent))
        for name in _source(file, file.stat().st_mtime_ns).imports:
            waiting += _files_of(name)
    return sources


@functools.cache
def _files_of(module: str) -> tuple[Path, ...]:
    """Return the file of a module, or all files of a package; none outside the library."""
    if not module.startswith(_LIBRARY):
        return ()
    path = _path(module)
    file = path.with_suffix(".py")
    if file.is_file():
        return (file,)
    return tuple(found for found in _sources(path) if found.suffix == ".py")


def _outside(module: str) -> tuple[Path, ...]:
    """Return the file of a module outside the library."""
    if module.startswith(_LIBRARY):
        return ()
    spec = importlib.util.find_spec(module)
    return (Path(spec.origin),) if spec and spec.origin else ()


def _is_module(name: str) -> bool:
    path = _path(name)
    return name.startswith(_LIBRARY) and (path.with_suffix(".py").is_file() or path.is_dir())


def _path(module: str) -> Path:
    """Return the folder of a package of Patchline; with the suffix `.py`, a module's file."""
    return PACKAGE.joinpath(*module.split(".")[1:])


@functools.cache
def _templates_in(folder: Path) -> tuple[Path, ...]:
    others = (path for path in folder.iterdir() if path.suffix not in (".py", ".pyc", ".typed"))
    return tuple(path for path in others if path.is_file())


def software(config: RunConfig, *kinds: Kind) -> dict[str, str]:
    """Return versions and code digests of the packages and plugins that a stage uses.

    Args:
        config: names the plugins.
        kinds: the kinds of plugins that the stage uses.
    """
    entries = _entries(config, kinds)
    distributions = {e.distribution for e in entries if not e.target.endswith(".py")}
    versions = package_versions(distributions)
    return {**plugins(config, *kinds), **versions, "python": platform.python_version()}


def plugins(config: RunConfig, *kinds: Kind) -> dict[str, str]:
    """Return versions and code digests of the plugins of some kinds that a config names."""
    entries = _entries(config, kinds)
    return {f"plugin {e.kind} {e.name}": f"{e.version} {plugin_code(e)}" for e in entries}


def store(scheme: str) -> dict[str, str]:
    """Return version and code digest of the store plugin of a scheme."""
    entry = plugin_loader.find("store", scheme)
    return {f"plugin store {entry.name}": f"{entry.version} {plugin_code(entry)}"}


def package_versions(distributions: Iterable[str] = ()) -> dict[str, str]:
    """Return the versions of Patchline, the given distributions, and their requirements."""
    owners = {"patchline", *distributions}
    needed = set(owners)
    for owner in owners:
        for requirement in _requirements(owner):
            name = _REQUIREMENT.match(requirement)
            if name and not _DEVELOPMENT.search(requirement):
                needed.add(name[0].lower())
    versions = {name: find_installed_version(name) for name in sorted(needed - _ORCHESTRATION)}
    return {f"package {name}": version for name, version in versions.items() if version}


def plugin_code(entry: PluginEntry) -> str:
    """Return a digest of a plugin's file, or of the whole package that contains it."""
    if entry.target.endswith(".py"):
        file = Path(entry.target)
        return _digest([file], file.parent)
    spec = importlib.util.find_spec(_home(entry.target.partition(":")[0]))
    if spec is None:
        return "unknown"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in _sources(folder)]
    if not folders and spec.origin:
        files = [Path(spec.origin)]
    return _digest(files, files[0].parent if files else Path())


def _home(module: str) -> str:
    """Return the package that a plugin came in: the top-level one, or that of our own plugins."""
    own = "patchline.plugins"
    return own if module.startswith(f"{own}.") else module.partition(".")[0]


def _entries(config: RunConfig, kinds: Iterable[Kind]) -> list[PluginEntry]:
    chosen = list_chosen_plugins(config)
    return [plugin_loader.find(kind, chosen[kind]) for kind in kinds if kind in chosen]


def _sources(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    ]


def _digest(files: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.relative_to(root) if file.is_relative_to(root) else file).encode())
        digest.update(b"\0" + _content(file))
    _keep_parsed()
    return digest.hexdigest()[:16]


def _content(file: Path) -> bytes:
    """Return a digest of a file: of Python, without comments, docstrings and layout."""
    if file.suffix == ".py":
        with contextlib.suppress(SyntaxError, ValueError):  # of a plugin; importing it says why
            return _source(file, file.stat().st_mtime_ns).digest
    return bytes.fromhex(digest_of(file).sha256)


class _SourceFile(NamedTuple):
    """What matters of a Python file."""

    imports: tuple[str, ...]
    """The modules that it imports anywhere, also inside its functions."""
    digest: bytes


_ONE_PARSES = threading.Lock()
"""In CPython 3.11, two threads that build syntax trees at once disturb each other if Python code
runs in between, such as a callback of the garbage collector: "AST constructor recursion depth
mismatch"."""


_parsed: dict[str, tuple[list[int], _SourceFile]] = {}
"""Files of Patchline that this process has parsed: their states, and what matters of them."""


@functools.cache
def _source(file: Path, _modified: int) -> _SourceFile:
    state = _state_of(file)
    kept, imports, digest = _read_kept().get(str(file), (None, (), ""))
    if kept == state:
        return _SourceFile(tuple(imports), bytes.fromhex(digest))
    with _ONE_PARSES:
        source = _parse(file)
        if file.is_relative_to(PACKAGE):
            _parsed[str(file)] = state, source
    return source


def _state_of(file: Path) -> list[int]:
    """Return what differs once a file was changed, whatever time its content pretends to be of."""
    status = file.stat()
    return [status.st_mtime_ns, status.st_ctime_ns, status.st_size]


def _kept_file() -> Path:
    """Return the file of the Python environment that keeps what was parsed: parsing takes seconds.

    Another Python may have another syntax tree, and another version of this file another digest.
    """
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    return Path(sys.prefix) / "share" / "patchline" / f"code-{sys.hexversion:x}-{own}.json"


@functools.cache
def _read_kept() -> dict[str, Any]:
    """Return the state, the imports and the digest of each file, by its path."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(_kept_file().read_text(encoding="utf-8")))
    return {}


def _keep_parsed() -> None:
    """Keep what this process has parsed; an environment may be read-only."""
    with _ONE_PARSES, contextlib.suppress(OSError, StorageError):
        if _parsed:
            new = {
                k: (state, each.imports, each.digest.hex()) for k, (state, each) in _parsed.items()
            }
            _parsed.clear()
            _read_kept().update(new)
            write_text(_kept_file(), json.dumps(_read_kept()))


def _parse(file: Path) -> _SourceFile:
    tree = ast.parse(file.read_bytes())
    imports: list[str] = []
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            imports += [name if _is_module(name) else node.module for name in inner]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [each for each in node.body if not _is_string(each)]
    return _SourceFile(tuple(imports), hashlib.sha256(ast.dump(tree).encode()).digest())


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and all statements in it that run.

    Expressions, most of a tree, are not looked at, nor is what only type checkers read.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ("body", "orelse", "finalbody", "handlers", "cases")[is_typing:]:
            inner = getattr(node, part, ())
            waiting += inner if isinstance(inner, list) else ()


def _is_string(node: ast.stmt) -> bool:
    """Return whether a statement is a docstring, of an attribute too."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _requirements(distribution: str) -> list[str]:
    try:
        return metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []


def find_installed_version(name: str) -> str:
    """Return the version of a distribution; empty if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


if __name__ == "__main__":
    for part in ("pipeline", "plugins"):
        _digest(_sources(PACKAGE / part), PACKAGE)
