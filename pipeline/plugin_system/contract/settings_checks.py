"""What every plugin's config class and source code have to do, whatever the kind."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline import config_errors
from pipeline.plugin_api import ConfigError, DataTraits, PluginConfig
from pipeline.plugin_system.contract.checks import CheckError, Rule, require
from pipeline.plugin_system.plugin_loader import Plugin

_PUBLIC = ("pipeline.plugin_api", "pipeline.layers", "pipeline.plugin_checks")
_TAKEN_NAMES = ("name", "patch_embedding")
_TRAITS = [
    DataTraits(3, side, side, num_classes=5, mirror_symmetric=True) for side in (32, 64, 224)
]
_OWN = ("pipeline", "flows", "plugins")


@dataclass(frozen=True)
class SettingsChecks:
    """The checks that all four kinds share."""

    plugin: Plugin
    settings: PluginConfig | None
    """None if the config class gives none without being asked for more."""

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which an author meets them."""
        return [
            ("says_what_it_is", self.says_what_it_is),
            ("rejects_unknown_settings", self.rejects_unknown_settings),
            ("explains_every_setting", self.explains_every_setting),
            ("settings_survive_json", self.settings_survive_json),
            ("imports_only_the_public_api", self.imports_only_the_public_api),
        ]

    def says_what_it_is(self) -> None:
        """The summary is one line."""
        summary = self.plugin.summary
        require(summary.strip(), "Its summary is empty. Say in one line what it does.")
        require("\n" not in summary, "Its summary has several lines. Say it in one.")

    def rejects_unknown_settings(self) -> None:
        """A setting that does not exist is refused, not ignored."""
        config_class = self.plugin.config_class
        require(
            isinstance(config_class, type) and issubclass(config_class, PluginConfig),
            f"Its config class {config_class!r} does not derive from PluginConfig. Let it.",
        )
        try:
            config_class.model_validate({"no_such_setting_anywhere": 1})
        except ValidationError:
            return
        require(False, f"{config_class.__name__} takes unknown settings. Forbid extra keys.")

    def explains_every_setting(self) -> None:
        """Every setting has a text, which becomes its help, and a default."""
        for name, field in self.plugin.config_class.model_fields.items():
            require(
                name not in _TAKEN_NAMES,
                f"The setting {name} stands where a plugin's name stands. Call it something else.",
            )
            require(
                field.description,
                f"The setting {name} has no text. Put a docstring below its field.",
            )
            require(
                not field.is_required(),
                f"The setting {name} has no default. Give one, so that the name alone is enough.",
            )

    def settings_survive_json(self) -> None:
        """Settings written as JSON and read again are the same settings."""
        config_class = self.plugin.config_class
        settings = self.settings or config_class()
        self._survives(settings)
        for traits in _TRAITS:
            try:
                resolved = settings.resolved_for(traits)
            except ConfigError:
                continue
            require(
                isinstance(resolved, config_class),
                f"resolved_for returns {type(resolved).__name__}. Return the resolved settings.",
            )
            self._survives(resolved)

    def _survives(self, settings: PluginConfig) -> None:
        config_class = self.plugin.config_class
        try:
            again = config_class.model_validate_json(settings.model_dump_json())
        except ValidationError as error:
            raise CheckError(
                f"{settings!r} cannot be read again: {config_errors.sentence(error, config_class)}"
            ) from error
        require(again == settings, f"{settings!r} came back from JSON as {again!r}.")

    def imports_only_the_public_api(self) -> None:
        """Of Patchline it imports `pipeline.plugin_api` and `pipeline.layers`, nothing else."""
        for file, line, module in foreign_imports(self.plugin):
            require(
                False,
                f"{file.name}:{line} imports {module}. Only pipeline.plugin_api and "
                "pipeline.layers are promised to stay.",
            )


def foreign_imports(plugin: Plugin) -> Iterator[tuple[Path, int, str]]:
    """Yield file, line and module where a plugin's modules import what is Patchline's own."""
    build_module = _module_of(plugin.build)
    pending = {getattr(plugin.config_class, "__module__", ""), build_module}
    home = {name.partition(".")[0] for name in pending} - {"pipeline", "flows"}
    if not build_module.startswith("plugins."):
        home -= {"plugins"}
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen or name.partition(".")[0] not in home:
            continue
        seen.add(name)
        pending |= {name.rpartition(".")[0]} - {""}
        file = _source_of(name)
        if file is None:
            continue
        for line, imported in _imports(file, name):
            top = imported.partition(".")[0]
            if top in _OWN and top not in home and not imported.startswith(_PUBLIC):
                yield file, line, imported
            pending |= {imported, imported.rpartition(".")[0]} - {""}


def _module_of(build: Any) -> str:
    target = getattr(build, "func", build)  # of a functools.partial
    module = inspect.getmodule(target) or inspect.getmodule(type(target))
    return module.__name__ if module else ""


def _source_of(name: str) -> Path | None:
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if module is None:
        try:
            spec = importlib.util.find_spec(name)
        except Exception:  # noqa: BLE001 - a neighbour that cannot be imported is not read
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
            parts = package.split(".")
            above = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            origin = ".".join(part for part in (above, node.module or "") if part)
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"
