"""The flexi embedding: one kernel, resized as the paper says, and random patch sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from patchline.pipeline.errors import ConfigError
from patchline.plugin_api import DataTraits, PatchEmbeddingContext
from patchline.plugins.patch_embeddings import flexi
from patchline.plugins.patch_embeddings.flexi import FlexiConfig
from patchline.plugins.patch_embeddings.flexi_module import resize_matrix

D, C = 7, 3


def _built(side: int, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = FlexiConfig(**settings)
    embedding: Any = flexi.build(config, PatchEmbeddingContext(C, side, side, D))
    torch.nn.init.normal_(embedding.bias)
    return embedding


def _resolved(side: int, **settings: Any) -> FlexiConfig:
    return FlexiConfig(**settings).resolved_for(DataTraits(C, side, side, 2, mirror_symmetric=True))


def _resized(images_BCHW: torch.Tensor, side: int) -> torch.Tensor:
    return functional.interpolate(images_BCHW, size=(side, side), mode="bilinear", antialias=True)


@torch.no_grad()
@pytest.mark.parametrize(
    ("kernel_size", "patch_size"), [(32, 4), (32, 16), (32, 31), (8, 12), (8, 32), (5, 1), (1, 5)]
)
def test_the_kernel_is_resized_as_by_timm(kernel_size: int, patch_size: int) -> None:
    """The kernel of a patch size equals timm's pseudo-inverse resize of the stored one."""
    timm_layers = pytest.importorskip("timm.layers")
    embedding = _built(2 * patch_size, patch_size=patch_size, kernel_size=kernel_size)
    expected = timm_layers.resample_patch_embed(
        embedding.kernel_DCKK, [patch_size, patch_size], interpolation="bilinear", antialias=True
    )
    torch.testing.assert_close(embedding.resized_kernel(patch_size), expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("kernel_size", "patch_size"), [(8, 12), (8, 9), (4, 16), (5, 5)])
def test_enlarged_patches_keep_their_tokens(kernel_size: int, patch_size: int) -> None:
    """A patch of the stored size and the same one enlarged give the same token (section 3.4)."""
    embedding = _built(patch_size, patch_size=patch_size, kernel_size=kernel_size)
    patches = torch.randn(6, C, kernel_size, kernel_size)
    expected = functional.conv2d(patches, embedding.kernel_DCKK, embedding.bias).flatten(1)
    tokens_BND = embedding(_resized(patches, patch_size)).tokens_BND
    torch.testing.assert_close(tokens_BND[:, 0], expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize(("kernel_size", "patch_size"), [(12, 8), (32, 4)])
def test_patches_that_survive_shrinking_keep_their_tokens(
    kernel_size: int, patch_size: int
) -> None:
    """A patch of the stored size and the same one shrunk agree if shrinking loses nothing.

    Such a patch is a combination of the shrinking's own weights; any other has lost detail.
    """
    embedding = _built(patch_size, patch_size=patch_size, kernel_size=kernel_size)
    matrix_PK = resize_matrix(kernel_size, patch_size).float()
    surviving = matrix_PK.T @ torch.randn(6, C, patch_size, patch_size) @ matrix_PK
    expected = functional.conv2d(surviving, embedding.kernel_DCKK, embedding.bias).flatten(1)
    tokens_BND = embedding(_resized(surviving, patch_size)).tokens_BND
    torch.testing.assert_close(tokens_BND[:, 0], expected, atol=2e-4, rtol=2e-4)


@torch.no_grad()
def test_training_draws_among_the_patch_sizes() -> None:
    """In training every size comes up, in an order that torch's seed decides."""
    embedding = _built(24, patch_size=4, patch_sizes=(2, 6, 8))
    images = torch.randn(1, C, 24, 24)

    def drawn() -> list[tuple[int, int]]:
        torch.manual_seed(3)
        answers = [embedding(images) for _ in range(30)]
        for tokens_BND, (rows, columns) in answers:
            assert tokens_BND.shape == (1, rows * columns, D)
        return [answer.grid for answer in answers]

    first = drawn()
    assert set(first) == {(12, 12), (4, 4), (3, 3)}
    assert drawn() == first
    embedding.eval()
    assert set(drawn()) == {(6, 6)} == {embedding.grid}


@torch.no_grad()
def test_a_drawn_size_uses_the_stored_kernel() -> None:
    """A random patch size gives the tokens of an embedding made for that size alone."""
    flexible = _built(24, patch_size=4, patch_sizes=(2, 6, 8))
    images = torch.randn(2, C, 24, 24)
    torch.manual_seed(1)
    for _ in range(8):
        tokens_BND, (rows, _columns) = flexible(images)
        fixed = _built_like(flexible, 24 // rows)
        torch.testing.assert_close(tokens_BND, fixed(images).tokens_BND)


def _built_like(flexible: Any, patch_size: int) -> Any:
    with torch.random.fork_rng():
        fixed = _built(24, patch_size=patch_size, kernel_size=32)
    fixed.load_state_dict(flexible.state_dict())
    return fixed


def test_only_kernel_and_bias_are_stored() -> None:
    """Weights of one patch size load into any other: the resize matrices are not among them."""
    embedding = _built(24, patch_size=4, patch_sizes=(2, 6, 8))
    assert set(embedding.state_dict()) == {"kernel_DCKK", "bias"}
    assert embedding.kernel_DCKK.shape == (D, C, 32, 32)


def test_every_size_trains_the_same_kernel() -> None:
    """Each random size sends a gradient to the stored kernel and the bias."""
    for patch_size in (2, 6, 8, 32):
        embedding = _built(96, patch_size=4, patch_sizes=(patch_size,))
        embedding(torch.randn(1, C, 96, 96)).tokens_BND.square().sum().backward()
        assert embedding.kernel_DCKK.grad.abs().max() > 0
        assert embedding.bias.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("side", "given", "patch_size", "kernel_size"),
    [
        (32, {}, 4, 32),
        (224, {}, 16, 32),
        (192, {"patch_sizes": (12, 48)}, 12, 48),
        (32, {"patch_sizes": (2, 8)}, 2, 32),
        (32, {"patch_sizes": (4, 8), "patch_size": 16}, 16, 32),
        (96, {"patch_size": 48}, 48, 48),
        (96, {"patch_size": 48, "kernel_size": 16}, 48, 16),
    ],
)
def test_the_default_sizes(
    side: int, given: dict[str, Any], patch_size: int, kernel_size: int
) -> None:
    """Evaluation takes a size that was trained; the stored kernel is as large as any patch."""
    resolved = _resolved(side, **given)
    assert (resolved.patch_size, resolved.kernel_size) == (patch_size, kernel_size)
    assert resolved.patch_sizes == given.get("patch_sizes")
    assert FlexiConfig.model_validate(resolved.model_dump(mode="json")) == resolved


def test_a_random_size_that_does_not_divide_is_refused() -> None:
    """The error names the size, the setting, the image, and what would do."""
    with pytest.raises(ConfigError) as caught:
        _resolved(28, patch_sizes=(4, 6))
    assert str(caught.value) == (
        "The 6 in patch_sizes does not divide the 28x28 image. Choose one of 2, 4, 7, 14, 28, or "
        "change data.image_size."
    )
