"""The contract of a plugin, to be run by its author.

In the tests of a plugin's own repository:

    @pytest.mark.parametrize("check", plugin_checks.checks_of(plugin), ids=str)
    def test_keeps_the_contract(check):
        check()

From the command line: `patchline plugins check [KIND] NAME`. What a plugin cannot do it declares,
with the reason: `ModelPlugin(..., exceptions={"exports_to_onnx": "the reason"})`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import ValidationError

from pipeline import config_errors, quiet_libraries
from pipeline.contract.checks import Check, CheckError, CheckResult, Rule, with_exceptions
from pipeline.contract.settings_checks import SettingsChecks
from pipeline.plugin_loader import Plugin, kind_of

__all__ = ["Check", "CheckError", "CheckResult", "checks_of"]


def checks_of(plugin: Plugin, settings: Mapping[str, Any] | None = None) -> list[Check]:
    """Return every check of a plugin's kind; call one to hold the plugin against it.

    Args:
        plugin: the plugin object, installed or not.
        settings: what to set differently from the defaults.

    Raises:
        ConfigError: for settings that the plugin does not take.
        PluginError: for a declared exception without a reason, or of a check that does not exist.
    """
    quiet_libraries.apply()
    try:
        config = plugin.config_class.model_validate(dict(settings or {}))
    except ValidationError as error:
        raise config_errors.sentence(error, plugin.config_class) from error
    rules = [*SettingsChecks(plugin, config).rules(), *_checks_of_kind(plugin, config).rules()]
    return list(with_exceptions(rules, plugin.exceptions))


class _Checks(Protocol):
    def rules(self) -> list[Rule]: ...


def _checks_of_kind(plugin: Any, settings: Any) -> _Checks:
    """Import the checks of one kind alone: a data source needs no torch."""
    kind = kind_of(plugin)
    if kind == "model":
        from pipeline.contract.model_checks import ModelChecks

        return ModelChecks(plugin, settings)
    if kind == "patch_embedding":
        from pipeline.contract.patch_embedding_checks import PatchEmbeddingChecks

        return PatchEmbeddingChecks(plugin, settings)
    if kind == "data_source":
        from pipeline.contract.data_source_checks import DataSourceChecks

        return DataSourceChecks(plugin, settings)
    from pipeline.contract.augmentation_checks import AugmentationChecks

    return AugmentationChecks(plugin, settings)
