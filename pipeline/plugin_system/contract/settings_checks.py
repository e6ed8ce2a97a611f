"""Conformance checks of the config class and the source code of every kind of plugin."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from patchline.pipeline import config_errors
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckedPlugin,
    CheckError,
    checks,
    require,
)
from patchline.pipeline.plugin_system.plugin_loader import Plugin
from patchline.plugin_api import ConfigError, DataTraits, PluginConfig

_PUBLIC = ("patchline.plugin_api", "patchline.pipeline.models.layers", "patchline.plugin_checks")
_TAKEN_NAMES = ("name", "patch_embedding")
_BUILT_IN = "patchline.plugins"
_SERVING = (f"{_BUILT_IN}.launchers", f"{_BUILT_IN}.stores")
"""Built-in plugins that serve the library, and may import it."""


def says_what_it_is(subject: CheckedPlugin) -> None:
    """The summary is one line."""
    summary = subject.plugin.summary
    require(summary.strip(), "Its summary is empty. Describe the plugin in one line.")
    require("\n" not in summary, "Its summary has several lines. Use one line.")


def rejects_unknown_settings(subject: CheckedPlugin) -> None:
    """An unknown setting is an error; it is not ignored."""
    config_class = subject.plugin.config_class
    require(
        isinstance(config_class, type) and issubclass(config_class, PluginConfig),
        f"Its config class {config_class!r} does not derive from PluginConfig. Derive it.",
    )
    try:
        config_class.model_validate({"no_such_setting_anywhere": 1})
    except ValidationError:
        return
    require(False, f"{config_class.__name__} accepts unknown settings. Forbid extra keys.")


def explains_every_setting(subject: CheckedPlugin) -> None:
    """Every setting has a default and a docstring, which becomes its help text."""
    for name, field in subject.plugin.config_class.model_fields.items():
        require(
            name not in _TAKEN_NAMES,
            f"The setting name {name} is reserved. Rename the setting.",
        )
        require(
            field.description,
            f"The setting {name} has no help text. Add a docstring below its field.",
        )
        require(
            not field.is_required(),
            f"The setting {name} has no default. Add one, so that the plugin works without it.",
        )


def settings_survive_json(subject: CheckedPlugin) -> None:
    """Settings survive a round trip through JSON unchanged."""
    config_class = subject.plugin.config_class
    settings = subject.settings or config_class()
    _require_survival(settings)
    for side in (32, 64, 224):
        try:
            resolved = settings.resolved_for(traits(side))
        except ConfigError:
            continue
        require(
            isinstance(resolved, config_class),
            f"resolved_for returns {type(resolved).__name__}. Return the resolved settings.",
        )
        _require_survival(resolved)


def _require_survival(settings: PluginConfig) -> None:
    try:
        again = settings.model_validate_json(settings.model_dump_json())
    except ValidationError as error:
        raise CheckError(
            f"{settings!r} cannot be read from its own JSON: "
            f"{config_errors.sentence(error, type(settings))}"
        ) from error
    require(again == settings, f"{settings!r} is read from its own JSON as {again!r}.")


def imports_only_the_public_api(subject: CheckedPlugin) -> None:
    """From Patchline it imports only the plugin API and `patchline.pipeline.models.layers`."""
    for file, line, module in foreign_imports(subject.plugin):
        require(
            False,
            f"{file.name}:{line} imports {module}. Import only patchline.plugin_api and "
            "patchline.pipeline.models.layers; other modules may change.",
        )


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks that all kinds share."""
    return checks(
        subject,
        says_what_it_is,
        rejects_unknown_settings,
        explains_every_setting,
        settings_survive_json,
        imports_only_the_public_api,
    )


def traits(side: int) -> DataTraits:
    """Return the traits of data with square colour images of five classes."""
    return DataTraits(3, side, side, num_classes=5, mirror_symmetric=True)


def foreign_imports(plugin: Plugin) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and module of each import of a private Patchline module by a plugin."""
    builds = (getattr(plugin, "build", None), getattr(plugin, "build_batch", None))
    build_modules = {_module_of(build) for build in builds if build is not None}
    pending = {getattr(plugin.config_class, "__module__", ""), *build_modules}
    home = {name.partition(".")[0] for name in pending} - {"patchline"}
    if any(module.startswith(f"{_BUILT_IN}.") for module in build_modules):
        home |= {_BUILT_IN}
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or not _is_below(name, *home) or _is_below(name, *_SERVING):
            continue
        seen.add(name)
        pending |= {name.rpartition(".")[0]} - {""}
        file = _source_of(name)
        if file is None:
            continue
        for line, imported in _imports(file, name):
            if _is_below(imported, "patchline") and not _is_below(imported, *_PUBLIC, *home):
                yield file, line, imported
            pending |= {imported, imported.rpartition(".")[0]} - {""}


def _is_below(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _module_of(build: Any) -> str:
    target = getattr(build, "func", build)  # unwraps a functools.partial
    module = inspect.getmodule(target) or inspect.getmodule(type(target))
    return module.__name__ if module else ""


def _source_of(name: str) -> Path | None:
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if module is None:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # noqa: BLE001 - a module that cannot be imported is skipped
            return None
        origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None


def _imports(file: Path, name: str) -> Iterator[tuple[int, str]]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            named = "." * node.level + (node.module or "")
            origin = importlib.util.resolve_name(named, package)
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
