"""Find plugins by entry point, import one by name, and report failures in a sentence.

Listing imports no plugin: a plugin's summary is the first line of its module's docstring, read
without running the module. A broken plugin affects only runs that use it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from patchline.pipeline.errors import PipelineError, PluginError, first_line, suggest_name
from patchline.pipeline.installation import checkout
from patchline.plugin_api import (
    API_VERSION,
    AugmentationPlugin,
    DataSourcePlugin,
    LauncherPlugin,
    ModelPlugin,
    ObjectivePlugin,
    PatchEmbeddingPlugin,
    PluginConfig,
    StorePlugin,
    ToolPlugin,
)

Kind = Literal[
    "model",
    "patch_embedding",
    "data_source",
    "augmentation",
    "objective",
    "launcher",
    "store",
    "tool",
]
Plugin = (
    ModelPlugin[Any]
    | PatchEmbeddingPlugin[Any]
    | DataSourcePlugin[Any]
    | AugmentationPlugin[Any]
    | ObjectivePlugin[Any]
    | LauncherPlugin[Any]
    | StorePlugin[Any]
    | ToolPlugin
)

KINDS: dict[Kind, type] = {
    "model": ModelPlugin,
    "patch_embedding": PatchEmbeddingPlugin,
    "data_source": DataSourcePlugin,
    "augmentation": AugmentationPlugin,
    "objective": ObjectivePlugin,
    "launcher": LauncherPlugin,
    "store": StorePlugin,
    "tool": ToolPlugin,
}
_DISTRIBUTION = "patchline"
FILES_VARIABLE = "PATCHLINE_PLUGIN_FILES"
"""Environment variable with the files of `--plugin`, inherited by child processes."""


@dataclass(frozen=True)
class PluginEntry:
    """An installed plugin, not yet imported."""

    kind: Kind
    name: str
    distribution: str
    version: str
    summary: str
    error: str | None
    target: str
    """`module:attribute`, or the path of a single file."""


def plugin_files() -> list[Path]:
    """Return the files given by `--plugin` to this process or its parent."""
    return [Path(part) for part in os.environ.get(FILES_VARIABLE, "").split(os.pathsep) if part]


def use_plugin_files(files: list[Path]) -> None:
    """Make single-file plugins available in this process and its children.

    Raises:
        PluginError: if a file does not exist or defines no plugin.
    """
    for file in files:
        if not file.is_file():
            what = "is a folder" if file.is_dir() else "does not exist"
            raise PluginError(f"Plugin file {file} {what}. Give the path of a .py file.")
    absolute = [str(file.resolve()) for file in files]
    for path in absolute:
        _load_file(path)
    os.environ[FILES_VARIABLE] = os.pathsep.join(dict.fromkeys(absolute))


def list_installed(kind: Kind | None = None, name: str | None = None) -> list[PluginEntry]:
    """Return the installed plugins, sorted by kind and name, without importing any."""
    entries: list[PluginEntry] = []
    points = _entry_points(tuple((folder, _last_change(folder)) for folder in sys.path))
    for wanted in KINDS if kind is None else (kind,):
        for point in points[wanted]:
            if name not in (None, point.name):
                continue
            summary, error = _describe_module(point.target.partition(":")[0])
            entries.append(PluginEntry(wanted, *point[:3], summary, error, point.target))
    for file in plugin_files():
        plugin = _load_file(str(file))
        own_kind = kind_of(plugin)
        if kind in (None, own_kind):
            entries.append(
                PluginEntry(own_kind, file.stem, file.name, "-", plugin.summary, None, str(file))
            )
    entries = _with_rivals(list(dict.fromkeys(entries)))
    return sorted(entries, key=lambda e: (list(KINDS).index(e.kind), e.name, e.distribution))


class _InstalledEntry(NamedTuple):
    """An entry point and its distribution."""

    name: str
    distribution: str
    version: str
    target: str


@lru_cache(maxsize=1)
def _entry_points(_folders: tuple[tuple[str, int], ...]) -> dict[Kind, list[_InstalledEntry]]:
    """Read all distributions in these folders, unless none was installed or removed since."""
    owners: dict[int, tuple[str, str]] = {}

    def read(point: metadata.EntryPoint) -> _InstalledEntry:
        if (dist := point.dist) is None:
            return _InstalledEntry(point.name, "unknown", "unknown", point.value)
        if id(dist) not in owners:  # each look at its metadata parses the whole file
            content = dist.metadata
            owners[id(dist)] = content["Name"], content["Version"]
        return _InstalledEntry(point.name, *owners[id(dist)], point.value)

    points = metadata.entry_points()
    found = {kind: [read(each) for each in points.select(group=f"patchline.{kind}s")]
             for kind in KINDS}  # fmt: skip
    for kind, own in _of_checkout().items():
        others = [each for each in found[kind] if each.distribution != _DISTRIBUTION]
        found[kind] = [*own, *others]
    return found


def _of_checkout() -> dict[Kind, list[_InstalledEntry]]:
    """Return the built-in plugins of a checkout of Patchline; empty if it was installed as a wheel.

    What was recorded when the checkout was installed lacks plugins that came with an update since.
    """
    source = checkout()
    if source is None:
        return {}
    try:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    except (OSError, ValueError, KeyError):
        return {}
    groups = project.get("entry-points", {})
    return {
        kind: [
            _InstalledEntry(name, _DISTRIBUTION, project["version"], target)
            for name, target in groups.get(f"patchline.{kind}s", {}).items()
        ]
        for kind in KINDS
    }


def _last_change(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns  # noqa: PTH116 - "" is the current folder
    except OSError:
        return 0


def _with_rivals(entries: list[PluginEntry]) -> list[PluginEntry]:
    """Return the entries, with an error for each whose name is not unique."""
    owners: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        owners.setdefault((entry.kind, entry.name), []).append(entry.distribution)
    return [
        entry
        if len(rivals := owners[entry.kind, entry.name]) == 1
        else replace(entry, error=f"its name is taken by {' and '.join(sorted(rivals))}")
        for entry in entries
    ]


def find(kind: Kind, name: str) -> PluginEntry:
    """Return the one installed plugin of that kind and name.

    Raises:
        PluginError: if there is none, or more than one.
    """
    matches = [entry for entry in list_installed(kind, name) if entry.name == name]
    if len(matches) > 1:
        owners = " and ".join(match.distribution for match in matches)
        raise PluginError(
            f"The {kind} name '{name}' is taken by {owners}. Uninstall one of them, or rename its "
            "entry point."
        )
    if not matches:
        names = sorted(entry.name for entry in list_installed(kind))
        installed_names = f"Installed: {', '.join(names)}" if names else "None is installed"
        raise PluginError(
            f"There is no {kind} plugin '{name}'.{suggest_name(name, names)} {installed_names}. "
            "To use a plugin from a file, add --plugin FILE.py."
        )
    return matches[0]


def load(kind: Kind, name: str) -> Plugin:
    """Import one plugin.

    Raises:
        PluginError: if it is unknown, cannot be imported, or is not a plugin of that kind.
    """
    return load_entry(find(kind, name))


def load_entry(entry: PluginEntry) -> Plugin:
    """Import an installed plugin.

    Raises:
        PluginError: if it cannot be imported, or is not a plugin of its kind.
    """
    return _load_file(entry.target) if entry.target.endswith(".py") else _load_entry(entry)


@cache
def _load_entry(entry: PluginEntry) -> Plugin:
    module_name, _, attribute = entry.target.partition(":")
    origin = f"The {entry.kind} plugin '{entry.name}' of {entry.distribution} {entry.version}"
    try:
        plugin = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        raise PluginError(
            f"{origin} cannot be imported: {type(error).__name__}: "
            f"{first_line(error, 'no message')}. Repair or uninstall {entry.distribution}."
        ) from error
    if not isinstance(plugin, KINDS[entry.kind]):
        raise PluginError(
            f"{origin} is a {type(plugin).__name__}, not a {KINDS[entry.kind].__name__}. Point its "
            "entry point at the right object."
        )
    _check_api_version(plugin, origin)
    return cast("Plugin", plugin)


@cache
def _load_file(file: str) -> Plugin:
    origin = f"Plugin file {file}"
    module_name = f"patchline_plugin_file_{Path(file).stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise PluginError(f"{origin} is not a Python file. Give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{origin} cannot be imported: {type(error).__name__}: "
            f"{first_line(error, 'no message')}. Repair the file."
        ) from error
    plugin = getattr(module, "plugin", None)
    if not isinstance(plugin, tuple(KINDS.values())):
        raise PluginError(
            f"{origin} has no plugin. Assign a ModelPlugin, PatchEmbeddingPlugin, "
            "DataSourcePlugin, AugmentationPlugin, ObjectivePlugin, LauncherPlugin, StorePlugin or "
            "ToolPlugin to the name 'plugin'."
        )
    _check_api_version(plugin, origin)
    return cast("Plugin", plugin)


@contextmanager
def plugin_errors(kind: Kind, name: str, what: str) -> Iterator[None]:
    """Raise exceptions from a plugin's code as a `PluginError` that names the plugin.

    Args:
        kind: kind of the plugin.
        name: name of the plugin.
        what: what failed, such as `failed to build`.

    Raises:
        PluginError: for any exception except Patchline's own and `OSError`.
    """
    try:
        yield
    except (PipelineError, OSError):
        raise
    except Exception as error:
        raise PluginError(
            f"{origin_of(kind, name)} {what}: {type(error).__name__}: "
            f"{first_line(error, 'no message')}. Run `patchline plugins check {kind} {name}` "
            "and fix the plugin."
        ) from error


def origin_of(kind: Kind, name: str) -> str:
    """Return the beginning of a sentence about a plugin: its kind, name and distribution."""
    entry = find(kind, name)
    return f"The {kind} plugin '{name}' of {entry.distribution} {entry.version}"


def _check_api_version(plugin: Any, origin: str) -> None:
    if plugin.api_version != API_VERSION:
        raise PluginError(
            f"{origin} was written for plugin API {plugin.api_version}; this Patchline has "
            f"{API_VERSION}. Install a matching version of one of them."
        )


def kind_of(plugin: Plugin) -> Kind:
    """Return the kind of a plugin object."""
    return next(kind for kind, cls in KINDS.items() if isinstance(plugin, cls))


def load_model(name: str) -> ModelPlugin[Any]:
    """Import a model plugin."""
    return cast("ModelPlugin[Any]", load("model", name))


def load_patch_embedding(name: str) -> PatchEmbeddingPlugin[Any]:
    """Import a patch embedding plugin."""
    return cast("PatchEmbeddingPlugin[Any]", load("patch_embedding", name))


def load_data_source(name: str) -> DataSourcePlugin[Any]:
    """Import a data source plugin."""
    return cast("DataSourcePlugin[Any]", load("data_source", name))


def load_augmentation(name: str) -> AugmentationPlugin[Any]:
    """Import an augmentation plugin."""
    return cast("AugmentationPlugin[Any]", load("augmentation", name))


def load_objective(name: str) -> ObjectivePlugin[Any]:
    """Import an objective plugin."""
    return cast("ObjectivePlugin[Any]", load("objective", name))


def load_launcher(name: str) -> LauncherPlugin[Any]:
    """Import a launcher plugin."""
    return cast("LauncherPlugin[Any]", load("launcher", name))


def load_store(name: str) -> StorePlugin[Any]:
    """Import a store plugin; its name is the scheme of its addresses."""
    return cast("StorePlugin[Any]", load("store", name))


def config_class(kind: Kind, name: str) -> type[PluginConfig]:
    """Return the config class of a plugin."""
    return load(kind, name).config_class


@lru_cache(maxsize=256)
def _file_of(module_name: str, _folders: tuple[str, ...]) -> Path:
    """Return a module's file without importing the packages around it.

    Raises:
        ModuleNotFoundError: if there is none, which the next call looks up again.
    """
    folders: list[str] | None = None
    origin = None
    for end, _ in enumerate(module_name.split("."), start=1):
        full_name = ".".join(module_name.split(".")[:end])
        specs = (finder.find_spec(full_name, folders) for finder in sys.meta_path)
        spec = next((s for s in specs if s is not None), None)
        if spec is None:
            raise ModuleNotFoundError
        folders, origin = list(spec.submodule_search_locations or []), spec.origin
    if origin is None:
        raise ModuleNotFoundError
    return Path(origin)


def _describe_module(module_name: str) -> tuple[str, str | None]:
    """Return the first line of a module's docstring, and an error if the module is broken."""
    try:
        file = _file_of(module_name, tuple(sys.path))
        status = file.stat()
        return _first_sentence(file, status.st_mtime_ns, status.st_size), None
    except ModuleNotFoundError:
        return "", f"module {module_name} does not exist"
    except (OSError, SyntaxError, ValueError) as error:
        return "", f"{type(error).__name__}: {error}"


@lru_cache(maxsize=256)
def _first_sentence(file: Path, _mtime_ns: int, _bytes: int) -> str:
    """Return the first line of a module's docstring; the file is parsed once until it changes."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")
