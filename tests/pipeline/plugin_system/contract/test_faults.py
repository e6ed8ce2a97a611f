"""Each check of a kind finds the faults that it is there for, and no fault in a sound plugin."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.plugin_system.contract import (
    faulty_augmentations,
    faulty_embeddings,
    faulty_launchers,
    faulty_models,
    faulty_objectives,
    faulty_sources,
)
from tests.pipeline.plugin_system.contract.faults import (
    OF_SETTINGS,
    Fault,
    assert_found,
    failures,
    names_of,
)

KINDS = (
    faulty_augmentations,
    faulty_embeddings,
    faulty_launchers,
    faulty_models,
    faulty_objectives,
    faulty_sources,
)
FAULTS = [fault for kind in KINDS for fault in kind.FAULTS]
SOUND = [
    *(pytest.param(kind.SOUND, id=kind.__name__.rpartition("_")[2]) for kind in KINDS),
    pytest.param(faulty_augmentations.SOUND_BATCHED, id="batches"),
    # each network that is compiled and exported takes seconds
    pytest.param(faulty_models.FED, id="fed", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_found_in_its_own_words(fault: Fault) -> None:
    """The check of the rule that it breaks fails and names it."""
    assert_found(fault)


@pytest.mark.parametrize("plugin", SOUND)
def test_what_the_faulty_ones_derive_from_passes(plugin: Any) -> None:
    """A plugin without a fault keeps the contract."""
    assert failures(plugin, names_of(plugin)) == {}


def test_every_check_finds_a_fault() -> None:
    """No check is without a plugin that breaks it in words of its own."""
    names = {name for kind in KINDS for name in names_of(kind.SOUND)}
    assert names - OF_SETTINGS == {fault.check for fault in FAULTS}
