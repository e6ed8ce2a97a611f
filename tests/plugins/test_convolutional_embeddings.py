"""conv_stem, overlap, cct and shifted against references; what each embedding refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system.plugin_loader import load_patch_embedding
from patchline.plugin_api import DataTraits, PatchEmbeddingContext
from patchline.plugins.patch_embeddings.conv_stem import stem_widths
from patchline.plugins.patch_embeddings.flattened_patches import with_shifted_copies


def _built(name: str, shape: tuple[int, int, int], embed_dim: int, **given: Any) -> Any:
    torch.manual_seed(0)
    plugin = load_patch_embedding(name)
    context = PatchEmbeddingContext(*shape, embed_dim)
    return plugin.build(plugin.config_class(**given), context)


def _resolved(name: str, height: int, width: int, **given: Any) -> Any:
    traits = DataTraits(3, height, width, num_classes=2, mirror_symmetric=True)
    return load_patch_embedding(name).config_class(**given).resolved_for(traits)


# -- conv_stem ---------------------------------------------------------------------------------


def test_the_stem_has_the_published_widths() -> None:
    """With D = 192 and 16 pixels the stem is the paper's, weight for weight."""
    assert stem_widths(16, 192) == (24, 48, 96, 192)
    assert stem_widths(16, 384) == (48, 96, 192, 384)
    stem = _built("conv_stem", (3, 32, 32), 192, patch_size=16)
    convolutions = 9 * (3 * 24 + 24 * 48 + 48 * 96 + 96 * 192)
    norms = 2 * (24 + 48 + 96 + 192)
    projection = 192 * 192 + 192
    assert sum(p.numel() for p in stem.parameters()) == convolutions + norms + projection


def test_a_narrow_stem_keeps_eight_channels() -> None:
    """No convolution gets fewer than 8 channels, however small D is."""
    assert stem_widths(16, 24) == (8, 8, 12, 24)
    assert stem_widths(4, 4) == (8, 8)


@torch.no_grad()
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_the_stem_is_convolution_norm_relu(norm: str) -> None:
    """Step by step in torch's functions, the same tokens come out in training."""
    stem = _built("conv_stem", (3, 16, 24), 20, patch_size=4, norm=norm)
    images = torch.randn(5, 3, 16, 24)
    features = images
    for convolution in (stem.features[0], stem.features[3]):
        features = functional.conv2d(features, convolution.weight, stride=2, padding=1)
        dims = (0, 2, 3) if norm == "batch" else (1, 2, 3)
        variance, mean = torch.var_mean(features, dim=dims, correction=0, keepdim=True)
        features = ((features - mean) / torch.sqrt(variance + 1e-5)).relu()
    projection = stem.projection.weight[:, :, 0, 0]
    expected = torch.einsum("bchw,dc->bhwd", features, projection).flatten(1, 2)
    torch.testing.assert_close(stem(images).tokens_BND, expected, atol=1e-4, rtol=1e-4)


def test_the_stem_starts_as_he_et_al() -> None:
    """The 3x3 weights have variance 2 / (9 output channels)."""
    stem = _built("conv_stem", (3, 32, 32), 128, patch_size=4)
    assert float(stem.features[3].weight.detach().std()) == pytest.approx(
        (2 / (9 * 128)) ** 0.5, rel=0.02
    )


@pytest.mark.parametrize(
    ("side", "patch_size"), [(28, 4), (32, 4), (224, 16), (24, 4), (30, 2), (512, 16)]
)
def test_the_default_stem(side: int, patch_size: int) -> None:
    """By default the power of two that comes closest to eight tokens a side, at most 16."""
    assert _resolved("conv_stem", side, side).patch_size == patch_size


# -- overlap -----------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    ("given", "shape", "grid"),
    [
        ({"patch_size": 4}, (3, 32, 48), (8, 12)),
        ({"patch_size": 4}, (1, 31, 37), (8, 10)),
        ({"patch_size": 7, "kernel_size": 9}, (3, 20, 29), (3, 5)),
        ({"patch_size": 1}, (1, 5, 6), (5, 6)),
    ],
)
def test_overlap_is_one_convolution_and_a_norm(
    given: dict[str, int], shape: tuple[int, int, int], grid: tuple[int, int]
) -> None:
    """With zeros around the image, one token stands at every S-th pixel, edges included."""
    embedding = _built("overlap", shape, 10, **given)
    images = torch.randn(2, *shape)
    stride = given["patch_size"]
    kernel = embedding.projection.weight
    assert kernel.shape[-1] == given.get("kernel_size", max(3, 2 * stride - 1))
    half = kernel.shape[-1] // 2
    padded = functional.pad(images, (half, half, half, half))
    convolved = functional.conv2d(padded, kernel, stride=stride)
    expected = functional.layer_norm(convolved.flatten(2).transpose(1, 2), (10,))
    answer = embedding(images)
    assert answer.grid == embedding.grid == grid
    torch.testing.assert_close(answer.tokens_BND, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_neighbours_share_pixels() -> None:
    """A pixel between two centres belongs to both; the centre itself to one token alone."""
    embedding = _built("overlap", (1, 16, 16), 8, patch_size=4)
    images = torch.randn(1, 1, 16, 16)
    before = embedding(images).tokens_BND

    def changed_by(row: int, column: int) -> list[int]:
        changed = images.clone()
        changed[0, 0, row, column] += 1.0
        difference_N = (embedding(changed).tokens_BND - before)[0].abs().amax(1)
        return [int(index) for index in (difference_N > 1e-5).nonzero().flatten()]

    assert changed_by(4, 4) == [5]
    assert changed_by(4, 6) == [5, 6]
    assert changed_by(6, 6) == [5, 6, 9, 10]


@pytest.mark.parametrize(
    ("side", "patch_size"), [(32, 4), (28, 4), (224, 16), (31, 4), (97, 12), (227, 16)]
)
def test_the_default_stride(side: int, patch_size: int) -> None:
    """By default a divisor as for linear patches, or eight tokens a side where there is none."""
    resolved = _resolved("overlap", side, side)
    assert (resolved.patch_size, resolved.kernel_size) == (patch_size, 2 * patch_size - 1)


# -- cct ---------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(
    ("given", "shape", "num_tokens"),
    [
        ({"num_layers": 2, "kernel_size": 3}, (3, 32, 32), 64),
        ({"num_layers": 2, "kernel_size": 7}, (3, 224, 224), 196),
        ({"num_layers": 1, "kernel_size": 3}, (1, 28, 28), 196),
        ({"num_layers": 3, "kernel_size": 5, "channels": 24}, (3, 31, 37), 20),
        ({"num_layers": 1, "kernel_size": 1}, (3, 9, 9), 36),
        ({"num_layers": 1, "kernel_size": 15}, (1, 40, 30), 12),
    ],
)
def test_cct_is_the_reference_tokenizer(
    given: dict[str, int], shape: tuple[int, int, int], num_tokens: int
) -> None:
    """From the same weights, vit-pytorch's tokenizer gives the same tokens."""
    cct = pytest.importorskip("vit_pytorch.cct")
    kernel_size, num_layers = given["kernel_size"], given["num_layers"]
    embedding = _built("cct", shape, 20, **given)
    reference = cct.Tokenizer(
        kernel_size=kernel_size,
        stride=max(1, kernel_size // 2 - 1),
        padding=max(1, kernel_size // 2),
        n_conv_layers=num_layers,
        n_input_channels=shape[0],
        n_output_channels=20,
        in_planes=given.get("channels", 64),
        activation=nn.ReLU,
    )
    for layer in range(num_layers):
        reference.conv_layers[layer][0].weight.copy_(embedding.projection[3 * layer].weight)
    images = torch.randn(2, *shape)
    answer = embedding(images)
    assert answer.tokens_BND.shape == (2, num_tokens, 20)
    assert answer.grid[0] * answer.grid[1] == num_tokens
    torch.testing.assert_close(answer.tokens_BND, reference(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("side", "given", "num_layers", "kernel_size"),
    [
        (5, {}, 1, 3),
        (16, {}, 1, 3),
        (28, {}, 2, 3),
        (32, {}, 2, 3),
        (64, {}, 3, 3),
        (127, {}, 4, 3),
        (128, {}, 2, 7),
        (224, {}, 2, 7),
        (512, {}, 2, 7),
        (224, {"kernel_size": 3}, 4, 3),
        (32, {"kernel_size": 7}, 1, 7),
        (224, {"num_layers": 1}, 1, 7),
    ],
)
def test_the_default_tokenizer(
    side: int, given: dict[str, int], num_layers: int, kernel_size: int
) -> None:
    """Large images get two layers of 7x7, others so many of 3x3 that 8 tokens a side are left."""
    resolved = _resolved("cct", side, side, **given)
    assert (resolved.num_layers, resolved.kernel_size) == (num_layers, kernel_size)


# -- shifted -----------------------------------------------------------------------------------


def _moved(images: np.ndarray[Any, Any], down: int, right: int) -> np.ndarray[Any, Any]:
    """Move every pixel on its own; what leaves the image is lost."""
    moved = np.zeros_like(images)
    height, width = images.shape[2:]
    for row in range(height):
        for column in range(width):
            if 0 <= row + down < height and 0 <= column + right < width:
                moved[:, :, row + down, column + right] = images[:, :, row, column]
    return moved


@pytest.mark.parametrize("shift", [1, 2, 8])
def test_copies_are_moved_along_the_diagonals(shift: int) -> None:
    """After the image come its copies moved left-up, right-up, left-down and right-down."""
    images = np.random.default_rng(0).normal(size=(2, 3, 8, 12))
    expected = [images] + [
        _moved(images, down, right) for down in (-shift, shift) for right in (-shift, shift)
    ]
    stacked = with_shifted_copies(torch.from_numpy(images), shift)
    assert np.array_equal(stacked.numpy(), np.concatenate(expected, axis=1))


@torch.no_grad()
@pytest.mark.parametrize(("patch_size", "shape"), [(4, (3, 8, 12)), (3, (1, 9, 6)), (2, (1, 4, 4))])
def test_shifted_is_the_naive_loop(patch_size: int, shape: tuple[int, int, int]) -> None:
    """Each patch of all five images, flattened and normalised, times the weights."""
    embedding = _built("shifted", shape, 6, patch_size=patch_size)
    nn.init.normal_(embedding.projection.bias)
    images, shift = torch.randn(2, *shape), patch_size // 2
    signs = [(0, 0), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    stacked = np.concatenate(
        [_moved(images.double().numpy(), shift * down, shift * right) for down, right in signs], 1
    )
    expected = []
    for top in range(0, shape[1], patch_size):
        for left in range(0, shape[2], patch_size):
            patch = stacked[:, :, top : top + patch_size, left : left + patch_size].reshape(2, -1)
            centred = patch - patch.mean(1, keepdims=True)
            normalised = centred / np.sqrt(patch.var(1, keepdims=True) + 1e-5)
            weight = embedding.projection.weight.double().numpy()
            expected.append(normalised @ weight.T + embedding.projection.bias.double().numpy())
    tokens_BND = embedding(images).tokens_BND.double()
    torch.testing.assert_close(
        tokens_BND, torch.from_numpy(np.stack(expected, 1)), atol=1e-5, rtol=1e-5
    )


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "given", "text"),
    [
        (
            "conv_stem",
            (31, 37),
            {},
            (
                "No power of two divides the 31x37 image, and each convolution halves it. Set "
                "data.image_size to an even number, such as 32."
            ),
        ),
        (
            "conv_stem",
            (24, 24),
            {"patch_size": 12},
            (
                "patch_size 12 is not a power of two that divides the 24x24 image. Choose one "
                "of 2, 4, 8, or change data.image_size."
            ),
        ),
        (
            "conv_stem",
            (28, 28),
            {"patch_size": 8},
            (
                "patch_size 8 does not divide the 28x28 image. Choose one of 2, 4, or change "
                "data.image_size."
            ),
        ),
        (
            "conv_stem",
            (32, 32),
            {"patch_size": 32},
            (
                "patch_size 32 makes one token of the 32x32 image, too few for norm batch. "
                "Choose a smaller patch_size, or norm group."
            ),
        ),
        (
            "overlap",
            (32, 24),
            {"patch_size": 25},
            (
                "patch_size 25 is larger than the 32x24 image. Choose at most 24, or change "
                "data.image_size."
            ),
        ),
        (
            "overlap",
            (32, 32),
            {"patch_size": 4, "kernel_size": 3},
            (
                "kernel_size 3 does not overlap with patch_size 4. Choose an odd number larger "
                "than 4, such as 7."
            ),
        ),
        (
            "overlap",
            (32, 32),
            {"patch_size": 4, "kernel_size": 8},
            ("kernel_size 8 is even. Choose an odd number larger than patch_size 4, such as 7."),
        ),
        (
            "cct",
            (32, 32),
            {"kernel_size": 4},
            ("kernel_size 4 is even, but the convolution needs a centre. Choose 3 or 5."),
        ),
        (
            "cct",
            (32, 32),
            {"num_layers": 6},
            (
                "num_layers 6 is too many for the 32x32 image: layer 6 would not make it "
                "smaller. Choose at most 5, or raise data.image_size."
            ),
        ),
        (
            "shifted",
            (31, 37),
            {},
            (
                "No patch_size from 2 to 16 divides the 31x37 image, and a patch of 1 pixel has "
                "no half to shift by. Set data.image_size to an even number, such as 32."
            ),
        ),
        (
            "shifted",
            (28, 28),
            {"patch_size": 8},
            (
                "patch_size 8 does not divide the 28x28 image. Choose one of 2, 4, 7, 14, 28, or "
                "change data.image_size."
            ),
        ),
        (
            "hybrid",
            (16, 16),
            {"stage": 4},
            (
                "stage 4 is too deep for the 16x16 image: stage 4 would find one pixel to halve. "
                "Choose at most 3, or raise data.image_size."
            ),
        ),
        (
            "hybrid",
            (2, 2),
            {},
            (
                "stage 1 is too deep for the 2x2 image: stage 1 would find one pixel to halve. "
                "Raise data.image_size."
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, size: tuple[int, int], given: dict[str, Any], text: str
) -> None:
    """The error says the value, the rule and what to do instead, before anything is built."""
    with pytest.raises(ConfigError) as caught:
        _resolved(name, *size, **given)
    assert str(caught.value) == text
    with pytest.raises(ConfigError):
        _built(name, (3, *size), 8, **given)
