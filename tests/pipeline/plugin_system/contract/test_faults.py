"""Each check of a kind finds the faults that it is there for."""

from __future__ import annotations

import pytest

from patchline.plugin_checks import checks_of
from tests.pipeline.plugin_system.contract import (
    faulty_augmentations,
    faulty_launchers,
    faulty_modules,
    faulty_objectives,
    faulty_settings,
    faulty_sources,
)
from tests.pipeline.plugin_system.contract.faults import Faults, failures

FAULTS: Faults = {
    **faulty_augmentations.FAULTS,
    **faulty_launchers.FAULTS,
    **faulty_modules.FAULTS,
    **faulty_objectives.FAULTS,
    **faulty_settings.FAULTS,
    **faulty_sources.FAULTS,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_in_its_own_words(fault: str) -> None:
    """The check of the rule that it breaks fails and names it."""
    plugin, check, words = FAULTS[fault]
    found = failures(plugin, {check})
    assert words in found.get(check, ""), found


def test_every_check_finds_a_fault() -> None:
    """No check is without a plugin that breaks it."""
    names = {check.name for plugin, _, _ in FAULTS.values() for check in checks_of(plugin)}
    assert names - {"imports_only_the_public_api"} == {check for _, check, _ in FAULTS.values()}
