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
from typing import Any

from pydantic import ValidationError

from patchline.pipeline import config_errors, quiet_libraries
from patchline.pipeline.errors import PluginError
from patchline.pipeline.plugin_system.contract import (
    data_source_checks,
    launcher_checks,
    settings_checks,
    store_checks,
    tool_checks,
)
from patchline.pipeline.plugin_system.contract.checks import (
    Check,
    CheckedPlugin,
    CheckError,
    CheckResult,
    find_accepted_side,
    with_expected_failures,
)
from patchline.pipeline.plugin_system.plugin_loader import Plugin, kind_of
from patchline.plugin_api import PluginConfig, ToolPlugin

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
    if isinstance(plugin, ToolPlugin):
        return with_expected_failures(tool_checks.table(CheckedPlugin(plugin, None)), expected)
    config = _config(plugin, settings or {})
    subject = CheckedPlugin(plugin, config)
    table = settings_checks.table(subject)
    if config is None:  # the other checks need settings
        names = {check.name for check in table}
        expected = {name: reason for name, reason in expected.items() if name in names}
        return with_expected_failures(table, expected)
    if settings:
        find_accepted_side(lambda side: config.resolved_for(settings_checks.traits(side)))
    return with_expected_failures([*table, *_table_of_kind(subject)], expected)


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


def _table_of_kind(subject: CheckedPlugin) -> list[Check]:
    kind = kind_of(subject.plugin)
    if kind == "data_source":
        return data_source_checks.table(subject)
    if kind == "store":
        return store_checks.table(subject)
    if kind == "launcher":
        return launcher_checks.table(subject)
    from patchline.pipeline.plugin_system.contract import (  # these need torch
        augmentation_checks,
        module_checks,
        objective_checks,
    )

    tables = {
        "model": module_checks.model_table,
        "patch_embedding": module_checks.patch_embedding_table,
        "objective": objective_checks.table,
        "augmentation": augmentation_checks.table,
    }
    return tables[kind](subject)
