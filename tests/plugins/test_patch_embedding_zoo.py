"""Every built-in patch embedding: its grid, its gradients, and which images it refuses."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import installed, load_patch_embedding
from patchline.plugin_api import (
    DataTraits,
    PatchEmbeddingContext,
    PatchEmbeddingPlugin,
    PatchTokens,
    PluginConfig,
)
from patchline.plugin_checks import checks_of
from patchline.plugins.patch_embeddings.patch_grid import default_patch_size

D = 16
NAMES = ["linear", "conv", "conv_stem", "overlap", "cct", "shifted", "flexi", "hybrid"]
NAMES += ["whitened"]
SHAPES = [(3, 32, 32), (1, 28, 28), (3, 32, 48)]
SIZES = [
    *((side, side) for side in (5, 6, 7, 8, 11, 13, 16, 23, 28, 31, 32, 40)),
    *((4, 64), (7, 12), (31, 37), (37, 31), (40, 24)),
]
_SIDES = st.integers(4, 40) | st.integers(2, 20).map(lambda half: 2 * half)
_PATCH_SIZES = st.sampled_from([None, 2, 3, 4, 8, 12, 40])
OPEN_SETTINGS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "linear": {"patch_size": _PATCH_SIZES},
    "conv": {"patch_size": _PATCH_SIZES},
    "conv_stem": {
        "patch_size": st.sampled_from([None, 2, 4, 12]),
        "norm": st.sampled_from(["batch", "group"]),
    },
    "overlap": {"patch_size": _PATCH_SIZES, "kernel_size": st.none() | st.integers(3, 60)},
    "cct": {
        "num_layers": st.none() | st.integers(1, 8),
        "kernel_size": st.none() | st.integers(1, 15),
        "channels": st.integers(1, 8),
    },
    "shifted": {"patch_size": _PATCH_SIZES},
    "flexi": {
        "patch_size": _PATCH_SIZES,
        "patch_sizes": st.none() | st.lists(st.integers(1, 8), min_size=1, max_size=3),
        "kernel_size": st.none() | st.integers(1, 16),
    },
    "whitened": {
        "num_halvings": st.none() | st.integers(1, 5),
        "width_factor": st.sampled_from([0.5, 1.0, 3.0]),
    },
    "hybrid": {
        "stage": st.none() | st.integers(1, 4),
        "backbone": st.sampled_from(["resnet18", "resnet34"]),
    },
}


@cache
def _plugin(name: str) -> PatchEmbeddingPlugin[Any]:
    return load_patch_embedding(name)


def _traits(channels: int, height: int, width: int) -> DataTraits:
    return DataTraits(channels, height, width, num_classes=2, mirror_symmetric=True)


def _built(name: str, shape: tuple[int, int, int], config: PluginConfig | None = None) -> Any:
    torch.manual_seed(0)
    plugin = _plugin(name)
    config = config or plugin.config_class().resolved_for(_traits(*shape))
    return plugin.build(config, PatchEmbeddingContext(*shape, D))


def _check_promised_grid(name: str, height: int, width: int, config: PluginConfig) -> None:
    """Build and run one image in training, without memory for either."""
    with torch.device("meta"):
        embedding = _built(name, (1, height, width), config)
    image = torch.zeros(1, 1, height, width, device="meta")
    answer: PatchTokens = embedding(image)
    rows, columns = answer.grid
    assert answer.tokens_BND.shape == (1, rows * columns, D)
    assert rows * columns >= 1
    embedding.eval()
    assert embedding(image).grid == embedding.grid


def test_all_are_installed() -> None:
    """They are found by their names, and each says in the listing what it is."""
    found = {entry.name: entry for entry in installed("patch_embedding")}
    assert set(NAMES) <= set(found)
    for name in NAMES:
        plugin = _plugin(name)
        assert found[name].summary == plugin.summary
        assert plugin.paper.startswith("arXiv ")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_the_grid_is_known_before_an_image(name: str, shape: tuple[int, int, int]) -> None:
    """The promised grid holds, about 8 tokens a side, from resolved and from open settings."""
    embedding = _built(name, shape)
    answer: PatchTokens = embedding(torch.randn(2, *shape))
    rows, columns = embedding.grid
    assert answer.grid == (rows, columns)
    assert answer.tokens_BND.shape == (2, rows * columns, D)
    assert rows in ((6, 7, 8) if name == "whitened" else (7, 8))  # it does not pad
    assert columns == pytest.approx(rows * shape[2] / shape[1], abs=0.5)
    unresolved = _built(name, shape, _plugin(name).config_class())
    assert unresolved.grid == embedding.grid


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_weight_and_every_pixel_counts(name: str, channels: int) -> None:
    """Each parameter gets a gradient, and so does each pixel of each channel."""
    embedding = _built(name, (channels, 24, 32))
    images = torch.randn(4, channels, 24, 32, requires_grad=True)
    tokens_BND = embedding(images).tokens_BND
    (tokens_BND * torch.randn_like(tokens_BND)).sum().backward()
    for parameter_name, parameter in embedding.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.abs().max() > 0, parameter_name
    assert images.grad is not None
    assert (images.grad.abs().amax(0) > 0).all()


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_tokens_go_row_by_row(name: str) -> None:
    """A bright corner changes the tokens of that corner, whatever the shape of the grid."""
    embedding = _built(name, (3, 32, 48)).eval()
    rows, columns = embedding.grid
    images = torch.randn(8, 3, 32, 48)
    before = embedding(images).tokens_BND
    for row, column in [(0, 0), (0, columns - 1), (rows - 1, 0), (rows - 1, columns - 1)]:
        changed = images.clone()
        top, left = (0 if row == 0 else 28), (0 if column == 0 else 44)
        changed[:, :, top : top + 4, left : left + 4] += 3.0
        difference_N = (embedding(changed).tokens_BND - before).square().sum((0, 2))
        share_hw = (difference_N / difference_N.sum()).reshape(rows, columns)
        centre_row = float(share_hw.sum(1) @ torch.arange(rows, dtype=torch.float32))
        centre_column = float(share_hw.sum(0) @ torch.arange(columns, dtype=torch.float32))
        assert centre_row == pytest.approx(row, abs=rows / 4)
        assert centre_column == pytest.approx(column, abs=columns / 4)


@pytest.mark.parametrize("name", NAMES)
def test_which_images_fit(name: str) -> None:
    """With open settings an image is refused only by the embeddings that must halve or shift."""
    config = _plugin(name).config_class()
    for height, width in SIZES:
        refused = {
            "conv_stem": height % 2 != 0 or width % 2 != 0,
            "shifted": default_patch_size(height, width) == 1,
            "whitened": min(height, width) < 5,
        }.get(name, False)
        if refused:
            with pytest.raises(ConfigError, match=f"{height}x{width} image.*data.image_size"):
                config.resolved_for(_traits(1, height, width))
        else:
            resolved = config.resolved_for(_traits(1, height, width))
            _check_promised_grid(name, height, width, resolved)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=6, deadline=None)
@given(st.data())
def test_what_is_not_refused_works(name: str, data: st.DataObject) -> None:
    """Any settings are either refused for an image, or built with the grid that they promise."""
    height, width = data.draw(_SIDES), data.draw(_SIDES)
    values = data.draw(st.fixed_dictionaries(OPEN_SETTINGS[name]))
    config = _plugin(name).config_class.model_validate(values)
    try:
        resolved = config.resolved_for(_traits(1, height, width))
    except ConfigError:
        event("refused")
        return
    assert resolved.resolved_for(_traits(1, height, width)) == resolved
    _check_promised_grid(name, height, width, resolved)


def test_random_patch_sizes_keep_the_contract() -> None:
    """What holds for one patch size holds for several; they break the graph in training."""
    left_out = {"compiles", "exports_to_onnx"}  # the latter takes seconds, and is the same
    for check in checks_of(_plugin("flexi"), {"patch_sizes": (2, 4)}):
        if check.name not in left_out:
            check()
