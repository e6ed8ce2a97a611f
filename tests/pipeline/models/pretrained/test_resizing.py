"""Resizing patch kernels, against timm and against what must stay the same."""

from __future__ import annotations

import pytest
import torch
from timm.layers.patch_embed import resample_patch_embed
from torch.nn import functional

from patchline.pipeline.models.pretrained.resizing import adapt_channels, resize_kernel


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("new_size", [(14, 14), (32, 32), (8, 8), (16, 24)])
def test_a_kernel_equals_timms(new_size: tuple[int, int]) -> None:
    """The pseudo-inverse resize gives timm's kernel."""
    kernel_DChw = _random(6, 3, 16, 16)
    expected = resample_patch_embed(kernel_DChw, list(new_size))
    torch.testing.assert_close(resize_kernel(kernel_DChw, new_size), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("present", "channels"), [(3, 1), (1, 3), (1, 4)])
def test_a_grey_image_keeps_its_tokens(present: int, channels: int) -> None:
    """A grey image has the same tokens, whether it is given once or repeated over channels."""
    kernel_DChw, grey_B1hw = _random(6, present, 8, 8), _random(5, 1, 8, 8)
    expected = functional.conv2d(grey_B1hw.expand(-1, present, -1, -1), kernel_DChw)
    adapted = adapt_channels(kernel_DChw, channels)
    found = functional.conv2d(grey_B1hw.expand(-1, channels, -1, -1), adapted)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
