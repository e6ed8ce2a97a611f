"""Every built-in plugin keeps the contract, or says why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import PluginEntry, installed
from patchline.plugin_checks import Check, checks_of
from tests.pipeline.plugin_system.contract.faults import SLOW

EXAMPLE_PIPELINE = Path(__file__).parents[4] / "examples" / "augmentation.yaml"
BUILT_IN = [entry for entry in installed() if entry.distribution == "patchline"]
_LARGE = {"torchvision", "timm", "hybrid"}
"""Plugins whose networks take seconds to build and run for each size of the images."""
_CLUSTER = {"ray"}
"""Plugins that need a cluster, on which other tests check them."""
_WHOLE = {"conv"}
"""Plugins that meet the checks of seconds in the fast tests; others meet them in the slow ones."""
VARIATIONS = [
    ("model", "vit", {"pooling": "attention", "positions": "sine_cosine", "head": "tanh"}),
    ("model", "vit", {"layer_scale": 0.1, "pooling": "average", "test_time_flip": True}),
    ("model", "vit", {"patch_dropout": 0.5, "embedding_norm": True, "activation": "quick_gelu"}),
    ("model", "rope_vit", {"frequencies": "axial", "absolute_positions": True}),
    ("model", "rope_vit", {"patch_dropout": 0.5}),
    ("model", "cct", {"positions": "none"}),
    ("model", "torchvision", {"architecture": "mobilenet_v3_small"}),
    ("model", "torchvision", {"architecture": "vit_b_16"}),
    ("model", "timm", {"architecture": "convnext_atto"}),
    ("patch_embedding", "flexi", {"patch_size": 4, "kernel_size": 8}),
    ("patch_embedding", "hybrid", {"backbone": "resnet50"}),
    ("patch_embedding", "cct", {"num_layers": 1, "kernel_size": 7}),
    ("patch_embedding", "whitened", {"mirror_equivariant": True, "early_pooling": True}),
    ("augmentation", "strong", {"policy": "randaugment", "erase": 1.0}),
]
_NEEDED = {"augmentation custom": {"file": str(EXAMPLE_PIPELINE)}}
"""Settings without which a plugin does not work."""


def _name(entry: PluginEntry) -> str:
    return f"{entry.kind} {entry.name}"


def _complaints(checks: list[Check]) -> list[str]:
    results = [check.result() for check in checks]
    assert len(results) >= 8
    return [f"{result.name}: {result.message}" for result in results if result.status == "failed"]


def _checks(entry: PluginEntry) -> list[Check]:
    plugin = plugin_loader.load(entry.kind, entry.name)
    return checks_of(plugin, _NEEDED.get(_name(entry)))


@pytest.mark.parametrize(
    "entry", [entry for entry in BUILT_IN if entry.name not in _LARGE | _CLUSTER], ids=_name
)
def test_keeps_the_contract(entry: PluginEntry) -> None:
    """The checks of its kind pass with default settings."""
    left_out = set() if entry.name in _WHOLE else SLOW
    assert _complaints([check for check in _checks(entry) if check.name not in left_out]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [entry for entry in BUILT_IN if entry.kind in ("model", "patch_embedding")], ids=_name
)
def test_keeps_the_whole_contract(entry: PluginEntry) -> None:
    """Every check passes: the plugin also learns a batch by heart, compiles and exports."""
    assert _complaints(_checks(entry)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    VARIATIONS,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_keeps_the_contract_with_other_settings(
    kind: plugin_loader.Kind, name: str, settings: dict[str, object]
) -> None:
    """Every check passes with settings that take other paths through the code."""
    assert _complaints(checks_of(plugin_loader.load(kind, name), settings)) == []


def test_all_of_them_are_checked() -> None:
    """The list holds the zoo."""
    assert len(BUILT_IN) == 38
    assert {entry.kind for entry in BUILT_IN} == set(plugin_loader.KINDS)


def test_the_one_exception_has_a_reason() -> None:
    """No built-in plugin but `none` is excused from anything."""
    excused = {
        _name(entry): dict(plugin_loader.load(entry.kind, entry.name).expected_failed_checks)
        for entry in BUILT_IN
        if plugin_loader.load(entry.kind, entry.name).expected_failed_checks
    }
    assert list(excused) == ["augmentation none"]
    assert list(excused["augmentation none"]) == ["changes_something"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [e for e in BUILT_IN if e.kind in ("model", "patch_embedding")],
    ids=_name,
)
def test_compiles_to_machine_code(entry: PluginEntry) -> None:
    """With torch's own back end, a compiled forward and backward pass give the same numbers."""
    from patchline.pipeline.plugin_system.contract import module_checks

    plugin = plugin_loader.load(entry.kind, entry.name)
    kinds = {"model": module_checks.Model, "patch_embedding": module_checks.PatchEmbedding}
    module, images = kinds[entry.kind](plugin, plugin.config_class()).sample(2)
    torch.compiler.reset()
    compiled = torch.compile(module)
    for run in (module, compiled):
        module.zero_grad()
        output = run(images)
        output.square().mean().backward()
        gradients = [p.grad.clone() for p in module.parameters() if p.grad is not None]
        if run is module:
            expected_output, expected_gradients = output.detach(), gradients
    torch.testing.assert_close(output, expected_output, atol=1e-4, rtol=1e-3)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-2)
