"""The patch embeddings against references; their defaults, and which images they refuse.

That tokens go row by row, get gradients and fill the grid is part of their contract.

Shapes: B batch, C channels, N patches, D embedding.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import event, given, settings
from hypothesis import strategies as st
from timm.layers import resample_patch_embed
from torch import nn
from torch.nn import functional

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import load_patch_embedding
from patchline.plugin_api import DataTraits, PatchEmbeddingContext, PatchTokens
from patchline.plugins.patch_embeddings.conv_stem import stem_widths

D = 16
Shape = tuple[int, int, int]
"""Channels, height and width."""
_close = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)


def _built(name: str, shape: Shape, embed_dim: int = D, **given: Any) -> Any:
    torch.manual_seed(0)
    plugin = load_patch_embedding(name)
    return plugin.build(plugin.config_class(**given), PatchEmbeddingContext(*shape, embed_dim))


def _resolved(name: str, height: int, width: int, **given: Any) -> Any:
    traits = DataTraits(1, height, width, num_classes=2, mirror_symmetric=True)
    return load_patch_embedding(name).config_class.model_validate(given).resolved_for(traits)


# -- all of them -------------------------------------------------------------------------------

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
    "hybrid": {"stage": st.none() | st.integers(1, 4)},
}


@pytest.mark.parametrize("name", OPEN_SETTINGS)
@settings(max_examples=5)
@given(st.data())
def test_what_is_not_refused_works(name: str, data: st.DataObject) -> None:
    """Any settings are either refused for an image, or built with the grid that they promise."""
    height, width = data.draw(_SIDES), data.draw(_SIDES)
    values = data.draw(st.fixed_dictionaries(OPEN_SETTINGS[name]))
    try:
        resolved = _resolved(name, height, width, **values)
    except ConfigError:
        event("refused")
        return
    found = resolved.model_dump()
    assert _resolved(name, height, width, **found) == resolved
    with torch.device("meta"):  # without memory for weights and values
        embedding = _built(name, (1, height, width), **found)
        image = torch.zeros(1, 1, height, width)
    answer: PatchTokens = embedding(image)  # in training, where flexi draws a size
    rows, columns = answer.grid
    assert answer.tokens_BND.shape == (1, rows * columns, D)
    assert embedding.eval()(image).grid == embedding.grid


@pytest.mark.parametrize(
    ("name", "side", "given", "expected"),
    [
        ("conv", 224, {}, {"patch_size": 16}),
        ("conv_stem", 30, {}, {"patch_size": 2}),
        ("overlap", 31, {}, {"patch_size": 4, "kernel_size": 7}),
        ("cct", 127, {}, {"num_layers": 4, "kernel_size": 3}),
        ("cct", 128, {}, {"num_layers": 2, "kernel_size": 7}),
        ("cct", 224, {"kernel_size": 3}, {"num_layers": 4, "kernel_size": 3}),
        ("hybrid", 96, {}, {"stage": 3}),
        ("hybrid", 128, {}, {"stage": 2}),
        ("flexi", 192, {"patch_sizes": (12, 48)}, {"patch_size": 12, "kernel_size": 48}),
        ("flexi", 96, {"patch_size": 48, "kernel_size": 16}, {"kernel_size": 16}),
    ],
)
def test_the_default_gives_about_eight_tokens_a_side(
    name: str, side: int, given: dict[str, Any], expected: dict[str, int]
) -> None:
    """Patches have at most 16 pixels, and large images may have 14 tokens a side."""
    assert _resolved(name, side, side, **given).model_dump().items() >= expected.items()


@pytest.mark.parametrize(
    ("name", "size", "given", "words"),
    [
        ("conv", (8, 24), {"patch_size": 5}, r"5 does not divide the 8x24 image.* one of 2, 4, 8,"),
        ("shifted", (31, 37), {}, "No patch_size from 2 to 16 divides .* data.image_size to an"),
        ("conv_stem", (31, 37), {}, "No power of two divides the 31x37 image.* such as 32"),
        ("conv_stem", (24, 24), {"patch_size": 12}, "not a power of two .* one of 2, 4, 8, or"),
        ("conv_stem", (32, 32), {"patch_size": 32}, "makes one token .* or norm group"),
        ("overlap", (32, 24), {"patch_size": 25}, "larger than the 32x24 image. Choose at most 24"),
        ("overlap", (32, 32), {"patch_size": 4, "kernel_size": 3}, "does not overlap .* as 7"),
        ("cct", (32, 32), {"kernel_size": 4}, "kernel_size 4 is even.* Choose 3 or 5"),
        ("hybrid", (16, 16), {"stage": 4}, "stage 4 is too deep .* at most 3"),
        ("hybrid", (2, 2), {}, r"stage 1 is too deep .* halve\. Raise data.image_size"),
        ("flexi", (28, 28), {"patch_sizes": (4, 6)}, "The 6 in patch_sizes does not .* 7, 14, 28"),
        ("whitened", (4, 4), {}, "at least 5"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, size: tuple[int, int], given: dict[str, Any], words: str
) -> None:
    """The error says the value, the rule and what to do instead."""
    with pytest.raises(ConfigError, match=words):
        _resolved(name, *size, **given)


# -- each of them ------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("patch_size", "shape"), [(1, (1, 8, 8)), (4, (3, 24, 8))])
def test_linear_and_conv_are_the_same_map(patch_size: int, shape: Shape) -> None:
    """From the same weights, cutting and projecting equals the strided convolution."""
    cutting, convolving = (
        _built(name, shape, patch_size=patch_size) for name in ("linear", "conv")
    )
    weight = cutting.projection.weight
    convolving.projection.weight.copy_(weight.view_as(convolving.projection.weight))
    convolving.projection.bias.copy_(cutting.projection.bias.normal_())
    images = torch.randn(3, *shape)
    ours, theirs = cutting(images), convolving(images)
    _close(ours.tokens_BND, theirs.tokens_BND)
    assert ours.grid == theirs.grid


def test_the_stem_has_the_published_widths() -> None:
    """With D = 192 and 16 pixels the stem is the paper's, weight for weight; 8 is the least."""
    assert (stem_widths(16, 192), stem_widths(16, 24)) == ((24, 48, 96, 192), (8, 8, 12, 24))
    stem = _built("conv_stem", (3, 32, 32), 192, patch_size=16)
    convolutions = 9 * (3 * 24 + 24 * 48 + 48 * 96 + 96 * 192)
    norms_and_projection = 2 * (24 + 48 + 96 + 192) + 192 * 192 + 192
    assert sum(p.numel() for p in stem.parameters()) == convolutions + norms_and_projection


@torch.no_grad()
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_stem_is_convolution_norm_relu(norm: str) -> None:
    """In torch's functions, the same tokens come out in training; weights start as He et al."""
    stem = _built("conv_stem", (3, 16, 24), 64, patch_size=4, norm=norm)
    assert float(stem.features[3].weight.std()) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.03)
    features = images = torch.randn(5, 3, 16, 24)
    for convolution in (stem.features[0], stem.features[3]):
        features = functional.conv2d(features, convolution.weight, stride=2, padding=1)
        dims = (0, 2, 3) if norm == "batch" else (1, 2, 3)
        variance, mean = torch.var_mean(features, dim=dims, correction=0, keepdim=True)
        features = ((features - mean) / torch.sqrt(variance + 1e-5)).relu()
    expected = functional.conv2d(features, stem.projection.weight).flatten(2).transpose(1, 2)
    _close(stem(images).tokens_BND, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("given", "shape", "grid", "kernel_size"),
    [
        ({"patch_size": 4}, (1, 31, 37), (8, 10), 7),
        ({"patch_size": 7, "kernel_size": 9}, (3, 20, 29), (3, 5), 9),
        ({"patch_size": 1}, (1, 5, 6), (5, 6), 3),
    ],
)
def test_overlap_is_one_convolution_and_a_norm(
    given: dict[str, int], shape: Shape, grid: tuple[int, int], kernel_size: int
) -> None:
    """With zeros around the image, one token stands at every S-th pixel, edges included."""
    embedding, images = _built("overlap", shape, **given), torch.randn(2, *shape)
    kernel, half = embedding.projection.weight, kernel_size // 2
    convolved = functional.conv2d(images, kernel, stride=given["patch_size"], padding=half)
    expected = functional.layer_norm(convolved.flatten(2).transpose(1, 2), (D,))
    answer = embedding(images)
    assert answer.grid == embedding.grid == grid
    _close(answer.tokens_BND, expected)


@torch.no_grad()
@pytest.mark.parametrize(("patch_size", "shape"), [(4, (3, 8, 12)), (3, (1, 9, 6))])
def test_shifted_is_the_naive_loop(patch_size: int, shape: Shape) -> None:
    """Each patch of the image and its four moved copies, flattened, normalised and projected."""
    embedding = _built("shifted", shape, patch_size=patch_size)
    nn.init.normal_(embedding.projection.bias)
    images, shift, (_, height, width) = torch.randn(2, *shape), patch_size // 2, shape
    padded = functional.pad(images, (shift,) * 4).numpy()
    stacked = np.concatenate(
        [
            padded[:, :, shift - down * shift :, shift - right * shift :][:, :, :height, :width]
            for down, right in [(0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]
        ],
        axis=1,
    )
    patches = [
        stacked[:, :, top : top + patch_size, left : left + patch_size].reshape(2, -1)
        for top in range(0, height, patch_size)
        for left in range(0, width, patch_size)
    ]
    patches_BNP = torch.from_numpy(np.stack(patches, 1))
    expected = embedding.projection(functional.layer_norm(patches_BNP, patches_BNP.shape[2:]))
    _close(embedding(images).tokens_BND, expected)


@torch.no_grad()
@pytest.mark.parametrize(
    ("backbone", "stage", "grid"), [("resnet18", 4, (1, 2)), ("resnet50", 2, (4, 5))]
)
def test_hybrid_is_torchvisions_feature_map(
    backbone: str, stage: int, grid: tuple[int, int]
) -> None:
    """With the standardised weights in it, torchvision's own ResNet gives the same features."""
    embedding = _built("hybrid", (3, 31, 37), backbone=backbone, stage=stage).double()
    network = getattr(torchvision.models, backbone)(norm_layer=partial(nn.GroupNorm, 32)).double()
    reference = nn.Sequential(*list(network.children())[: 4 + stage])
    state = embedding.features.state_dict()
    for name, weight in state.items():
        if weight.ndim == 4:
            variance, mean = torch.var_mean(weight, (1, 2, 3), correction=0, keepdim=True)
            state[name] = (weight - mean) / variance.sqrt()
        else:
            state[name] = weight.normal_(1.0, 0.2)
    reference.load_state_dict(state)
    images = torch.randn(2, 3, 31, 37, dtype=torch.float64)
    projected = functional.conv2d(reference(images), embedding.projection.weight)
    answer = embedding(images)
    assert answer.grid == embedding.grid == grid
    _close(answer.tokens_BND, projected.flatten(2).transpose(1, 2))


@torch.no_grad()
@pytest.mark.parametrize(("kernel_size", "patch_size"), [(32, 4), (8, 12), (5, 5), (1, 5)])
def test_flexi_resizes_its_kernel_as_timm_does(kernel_size: int, patch_size: int) -> None:
    """The kernel of a patch size equals timm's pseudo-inverse resize of the stored one."""
    embedding = _built("flexi", (3, 60, 60), patch_size=patch_size, kernel_size=kernel_size)
    expected = resample_patch_embed(
        embedding.kernel_DCKK, [patch_size, patch_size], interpolation="bilinear", antialias=True
    )
    _close(embedding.resized_kernel(patch_size), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_flexi_draws_among_its_patch_sizes_in_training() -> None:
    """Torch's seed decides; each size gives the tokens of an embedding made for it alone."""
    embedding, images = (
        _built("flexi", (3, 24, 24), patch_sizes=(2, 6, 8)),
        torch.randn(1, 3, 24, 24),
    )

    def drawn() -> list[PatchTokens]:
        torch.manual_seed(3)
        return [embedding(images) for _ in range(30)]

    tokens = {answer.grid: answer.tokens_BND for answer in drawn()}
    assert set(tokens) == {(12, 12), (4, 4), (3, 3)}
    assert [answer.grid for answer in drawn()] == [answer.grid for answer in drawn()]
    for (rows, _), tokens_BND in tokens.items():
        fixed = _built("flexi", (3, 24, 24), patch_size=24 // rows, kernel_size=32)
        fixed.load_state_dict(embedding.state_dict())
        torch.testing.assert_close(tokens_BND, fixed(images).tokens_BND)
    embedding.eval()
    assert {answer.grid for answer in drawn()} == {embedding.grid}
