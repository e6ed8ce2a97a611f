"""Conformance checks for plugin authors.

In the tests of your plugin:

    @pytest.mark.parametrize("check", plugin_checks.checks_of(plugin), ids=str)
    def test_keeps_the_contract(check):
        check()

From the command line: `patchline plugins check [KIND] NAME`. A plugin that cannot pass a check
declares it with the reason:
`ModelPlugin(..., expected_failed_checks={"exports_to_onnx": "the reason"})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from patchline.pipeline import config_errors, quiet_libraries
from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckError,
    CheckResult,
    Rule,
    with_expected_failures,
)
from patchline.pipeline.plugin_system.contract.settings_checks import SettingsChecks
from patchline.pipeline.plugin_system.plugin_loader import Plugin, kind_of
from patchline.plugin_api import PluginConfig

__all__ = ["Check", "CheckError", "CheckResult", "checks_of"]


def checks_of(plugin: Plugin, settings: Mapping[str, Any] | None = None) -> list[Check]:
    """Return every conformance check for the plugin's kind; call a check to run it.

    Args:
        plugin: the plugin object, installed or not.
        settings: settings that differ from the defaults.

    Raises:
        ConfigError: for settings that the plugin does not have, or that fit no image.
        PluginError: for an expected failure without a reason, or of a check that does not exist.
    """
    quiet_libraries.apply()
    expected = plugin.expected_failed_checks
    if not isinstance(expected, Mapping):
        raise PluginError(
            f"The plugin's expected_failed_checks is {expected!r}. Pass a mapping from the name of "
            "a check to the reason."
        )
    config = _config(plugin, settings or {})
    rules = SettingsChecks(plugin, config).rules()
    if config is None:  # the other checks need settings
        own = {name: expected[name] for name, _ in rules if name in expected}
        return list(with_expected_failures(rules, own))
    of_kind = _checks_of_kind(plugin, config)
    if settings:
        of_kind.refuse_settings()
    return list(with_expected_failures([*rules, *of_kind.rules()], expected))


def _config(plugin: Plugin, settings: Mapping[str, Any]) -> PluginConfig | None:
    """Return the plugin's settings; None if its config class has no valid defaults."""
    config_class: Any = plugin.config_class
    if not (isinstance(config_class, type) and issubclass(config_class, PluginConfig)):
        return None
    try:
        return config_class.model_validate(dict(settings))
    except ValidationError as error:
        if not settings:
            return None
        raise config_errors.sentence(error, config_class) from error


class _Checks(Protocol):
    def rules(self) -> list[Rule]: ...

    def refuse_settings(self) -> None: ...


def _checks_of_kind(plugin: Any, settings: Any) -> _Checks:
    """Import only the checks of the plugin's kind: those of a data source need no torch."""
    kind = kind_of(plugin)
    if kind == "model":
        from patchline.pipeline.plugin_system.contract.model_checks import ModelChecks

        return ModelChecks(plugin, settings)
    if kind == "patch_embedding":
        from patchline.pipeline.plugin_system.contract.patch_embedding_checks import (
            PatchEmbeddingChecks,
        )

        return PatchEmbeddingChecks(plugin, settings)
    if kind == "data_source":
        from patchline.pipeline.plugin_system.contract.data_source_checks import DataSourceChecks

        return DataSourceChecks(plugin, settings)
    if kind == "objective":
        from patchline.pipeline.plugin_system.contract.objective_checks import ObjectiveChecks

        return ObjectiveChecks(plugin, settings)
    if kind == "launcher":
        from patchline.pipeline.plugin_system.contract.launcher_checks import LauncherChecks

        return LauncherChecks(plugin, settings)
    from patchline.pipeline.plugin_system.contract.augmentation_checks import AugmentationChecks

    return AugmentationChecks(plugin, settings)
