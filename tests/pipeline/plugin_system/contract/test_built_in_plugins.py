"""Every built-in plugin keeps the contract, or says why it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import KINDS, Kind, list_installed
from patchline.plugin_checks import checks_of
from tests.pipeline.plugin_system.contract.faults import SLOW

BUILT_IN = [
    (entry.kind, entry.name) for entry in list_installed() if entry.distribution == "patchline"
]
_ELSEWHERE = {"torchvision", "timm", "hybrid", "ray", "s3", "gs", "az"}
"""Plugins with large networks, which the slow tests check, and that need a cluster or server."""
_MODULES = {"model", "patch_embedding"}
_IN_MODELS = {"conv", "shifted"}
"""Patch embeddings that are compiled and exported as parts of models."""
EXAMPLE = Path(__file__).parents[4] / "examples" / "augmentation.yaml"
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("augmentation", "custom"): {"file": str(EXAMPLE)},
    ("augmentation", "strong"): {"policy": "randaugment", "erase": 1.0},
    ("model", "simple_vit"): {"depth": 1},
    ("model", "vit_registers"): {"depth": 1},
    ("model", "vit_small_data"): {"depth": 1},
    ("model", "vit"): {
        "depth": 1, "pooling": "attention", "positions": "sine_cosine", "head": "tanh",
        "layer_scale": 0.1, "patch_dropout": 0.5, "embedding_norm": True,
        "activation": "quick_gelu", "test_time_flip": True,
    },
    ("model", "rope_vit"): {
        "depth": 1, "frequencies": "axial", "absolute_positions": True, "patch_dropout": 0.5,
    },
    ("model", "cct"): {"depth": 1, "positions": "none"},
    ("model", "timm"): {"architecture": "test_efficientnet"},
    ("patch_embedding", "flexi"): {"patch_size": 4, "kernel_size": 8},
    ("patch_embedding", "cct"): {"num_layers": 1, "kernel_size": 7},
    ("patch_embedding", "whitened"): {"mirror_equivariant": True, "early_pooling": True},
}  # fmt: skip
"""Settings that take other paths through the code than the default ones, or that are needed.

One block shows what compiles and exports: the others are like it.
"""


def _complaints(kind: Kind, name: str, settings: dict[str, Any], left_out: set[str]) -> list[str]:
    checks = checks_of(plugin_loader.load(kind, name), settings)
    assert len(checks) >= 5
    results = [check.result() for check in checks if check.name not in left_out]
    return [f"{result.name}: {result.message}" for result in results if result.status == "failed"]


@pytest.mark.parametrize(("kind", "name"), [each for each in BUILT_IN if each[1] not in _ELSEWHERE])
def test_keeps_the_contract(kind: Kind, name: str) -> None:
    """The checks of its kind pass with default settings, but for those of seconds."""
    settings = SETTINGS[kind, name] if name == "custom" else {}
    assert _complaints(kind, name, settings, SLOW) == []


@pytest.mark.slow  # each network is trained, compiled and exported
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        each
        for each in BUILT_IN
        if (each[0] in _MODULES and each[1] not in _IN_MODELS) or each in SETTINGS
    ],
)
def test_keeps_the_whole_contract(kind: Kind, name: str) -> None:
    """Every check passes, with settings that take other paths through the code."""
    assert _complaints(kind, name, SETTINGS.get((kind, name), {}), set()) == []


def test_the_one_exception_has_a_reason() -> None:
    """No built-in plugin but `none`, which changes nothing, is excused from anything."""
    excused = {
        (kind, name): list(expected)
        for kind, name in BUILT_IN
        if (expected := plugin_loader.load(kind, name).expected_failed_checks)
    }
    assert excused == {("augmentation", "none"): ["changes_something"]}
    assert {kind for kind, _ in BUILT_IN} == set(KINDS)
