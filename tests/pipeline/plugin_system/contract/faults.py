"""A fault that a plugin may have, and what the checks of the contract say about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from patchline.plugin_checks import checks_of

SLOW = {"overfits_one_batch", "compiles", "exports_to_onnx"}
"""Checks of seconds; a fault that they need not find meets them in the slow tests alone."""
OF_SETTINGS = {
    "says_what_it_is",
    "rejects_unknown_settings",
    "explains_every_setting",
    "settings_survive_json",
    "imports_only_the_public_api",
}
"""The checks that all kinds share."""


@dataclass(frozen=True)
class Fault:
    """A plugin that breaks a rule, the check that finds it, and a part of what it says."""

    name: str
    plugin: Any
    check: str
    words: str

    def __str__(self) -> str:
        return self.name


def names_of(plugin: Any) -> list[str]:
    """Return the names of a plugin's checks."""
    return [check.name for check in checks_of(plugin)]


def failures(plugin: Any, names: Iterable[str]) -> dict[str, str]:
    """Run the named checks and return what the failed ones say."""
    wanted = set(names)
    results = [check.result() for check in checks_of(plugin) if check.name in wanted]
    return {result.name: result.message for result in results if result.status == "failed"}


def assert_found(fault: Fault) -> None:
    """Assert that the check fails and says what is wrong."""
    found = failures(fault.plugin, {fault.check})
    assert fault.words in found.get(fault.check, ""), found
