"""The checks of a plugin by name, and what those say that fail."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from patchline.plugin_checks import checks_of

SLOW = {"overfits_one_batch", "compiles", "exports_to_onnx"}
"""Checks of seconds."""
OF_SETTINGS = {
    "says_what_it_is",
    "rejects_unknown_settings",
    "explains_every_setting",
    "settings_survive_json",
    "imports_only_the_public_api",
}
"""The checks that all kinds share."""
Faults = dict[str, tuple[Any, str, str]]
"""Plugins that break a rule by what is wrong: the check that finds it, a part of what it says."""


def failures(plugin: Any, names: Iterable[str]) -> dict[str, str]:
    """Run the named checks and return what the failed ones say."""
    results = [check.result() for check in checks_of(plugin) if check.name in names]
    return {result.name: result.message for result in results if result.status == "failed"}
