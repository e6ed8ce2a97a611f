"""Adapt a patch kernel to another patch size or number of channels.

Shapes: D embedding, C channels; h, w a patch.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def resize_kernel(kernel_DChw: torch.Tensor, new_size: tuple[int, int]) -> torch.Tensor:
    """Resize a patch kernel by the pseudo-inverse of resizing (arXiv 2212.08013, eq. 4 and 5).

    The tokens of patches that are resized by bicubic interpolation stay the same: exactly for
    larger patches, in the least-squares sense for smaller ones.
    """
    old_size = kernel_DChw.shape[2:]
    if tuple(old_size) == tuple(new_size):
        return kernel_DChw
    old_pixels = old_size[0] * old_size[1]
    units = torch.eye(old_pixels, dtype=torch.float64).reshape(old_pixels, 1, *old_size)
    resized = functional.interpolate(
        units, size=new_size, mode="bicubic", antialias=True, align_corners=False
    )
    inverse = torch.linalg.pinv(resized.flatten(1))  # (new pixels, old pixels)
    resampled_DCn = kernel_DChw.double().flatten(2) @ inverse.T
    resampled_DChw: torch.Tensor = resampled_DCn.reshape(*kernel_DChw.shape[:2], *new_size)
    return resampled_DChw.to(kernel_DChw.dtype)


def adapt_channels(kernel_DChw: torch.Tensor, channels: int) -> torch.Tensor:
    """Adapt a patch kernel to another number of channels.

    The tokens of a grey image that is repeated over the channels stay the same: one channel gets
    the sum of the others, and several channels share the weights of one.

    Raises:
        ValueError: unless one of the two numbers is 1, or both are equal.
    """
    present = kernel_DChw.shape[1]
    if present == channels:
        return kernel_DChw
    if channels == 1:
        return kernel_DChw.sum(dim=1, keepdim=True)
    if present == 1:
        return kernel_DChw.repeat(1, channels, 1, 1) / channels
    raise ValueError(f"a kernel for {present} channels cannot be adapted to {channels}")
