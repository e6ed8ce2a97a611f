"""What follows the progress: the learning rate and the size of images."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.training.config import TrainingConfig
from patchline.pipeline.training.recipe.progressive_learning import ProgressiveSize
from patchline.pipeline.training.recipe.schedule import learning_rate_factor
from tests.pipeline.training.trained_jobs import Make, opened
from tests.plugins.model_parity import built, image_spec

warmups = st.floats(0, 0.99)
progresses = st.floats(0, 1)


@given(progress=progresses, warmup=warmups)
def test_rises_linearly_and_falls_as_a_cosine(progress: float, warmup: float) -> None:
    """The factor is the share of the warm-up that is done, and 1 where that ends."""
    way = (progress - warmup) / (1 - warmup)
    expected = (1 + math.cos(math.pi * way)) / 2 if way >= 0 else progress / warmup
    assert learning_rate_factor(progress, warmup) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("wsd", [0.5, 1.0, 1.0, 1.0, 1.0, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_schedule_decides_what_follows_the_warm_up(
    schedule: str, expected: list[float]
) -> None:
    """At a tenth, the end of the warm-up, each quarter of the rest, and the end."""
    progress = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
    factors = [learning_rate_factor(each, 0.2, schedule) for each in progress]
    assert factors == pytest.approx(expected)


def _sizes(scale: float) -> ProgressiveSize:
    config = TrainingConfig(initial_image_scale=scale)
    model = built("vit", 32, depth=1, embedding={"name": "conv", "patch_size": 4})
    return ProgressiveSize(config, image_spec(32), model)


@pytest.mark.parametrize(("scale", "small"), [(1.0, 32), (0.7, 24), (0.65, 20), (0.01, 8)])
def test_the_small_size_is_a_whole_number_of_patches(scale: float, small: int) -> None:
    """It is the nearest multiple of the patch size, and at least two patches."""
    assert _sizes(scale).at(0.0) == (small, small)


def test_without_padding_the_stride_is_that_of_the_pooling() -> None:
    """A whitened stem has 3 tokens a side of 32 pixels, but steps of 8 pixels."""
    model = built("vit", 32, depth=1, embedding={"name": "whitened", "num_halvings": 3})
    config = TrainingConfig(initial_image_scale=0.75)
    assert ProgressiveSize(config, image_spec(32), model).at(0.0) == (24, 24)


def test_the_full_size_begins_at_its_progress() -> None:
    """Images are small for the first 60 %, and have their full size from there to the end."""
    sizes = _sizes(0.5)
    assert [sizes.at(progress)[0] for progress in (0.0, 0.599, 0.6, 1.0)] == [16, 16, 32, 32]


def test_resizing_equals_torchvision() -> None:
    """Small images are those of torchvision's antialiased bilinear resizing; full ones the same."""
    sizes, images = _sizes(0.75), torch.randn(2, 3, 32, 32)
    expected = v2.functional.resize(images, [24, 24], antialias=True)
    torch.testing.assert_close(sizes.resized(images, 0.1), expected)
    assert sizes.resized(images, 0.9) is images


def test_a_model_of_one_size_is_refused(make: Make) -> None:
    """The error names the setting, the size and the remedy, before the first step."""
    job = make(
        model={"name": "timm", "architecture": "deit_tiny_patch16_224"},
        training={"initial_image_scale": 0.5},
    )
    with pytest.raises(ConfigError, match=r"initial_image_scale is 0\.5, .* Set it to 1"):
        opened(job)
