"""A fault that a plugin may have, and what the checks of the contract say about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """A plugin that breaks a rule.

    `failing` holds every check that fails with a part of its sentence. The empty part stands for
    checks that fail as a consequence, whatever they say.
    """

    name: str
    plugin: Any
    failing: Mapping[str, str]

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


def assert_found(fault: Fault, names: Iterable[str]) -> None:
    """Assert that exactly the checks that the fault breaks fail, each with the expected message."""
    wanted = set(names)
    found = failures(fault.plugin, wanted)
    assert set(found) == set(fault.failing) & wanted, f"{fault}: failed with {found}"
    for name, message in found.items():
        expected = fault.failing[name]
        assert expected in message, f"{fault}: {name} says {message!r}, without {expected!r}"
        assert message.strip(), f"{fault}: {name} fails without a message"
