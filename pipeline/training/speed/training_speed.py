"""The speed of a training run: its rate, and its share of the machine's matrix-product rate.

A training step counts as three forward passes; a multiplication with its addition as two
floating-point operations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from patchline.pipeline.models.inference import HALF_PRECISIONS, normalize
from patchline.pipeline.training.device import wait_for
from patchline.pipeline.training.recipe.progressive_learning import ProgressiveSize
from patchline.plugin_api import ImageSpec

_WINDOW_SECONDS = 10.0
_APART_SECONDS = 0.2


class RecentRate:
    """Images per second over the last ten seconds of training steps."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, images: int) -> float:
        """Return the current rate; 0 before there is one.

        Args:
            seconds: the time that training steps have taken so far.
            images: number of images that were trained on so far.
        """
        marks = self._marks
        if marks and seconds < marks[-1][0]:  # training went back to an earlier step
            marks.clear()
        while len(marks) > 1 and seconds - marks[1][0] >= _WINDOW_SECONDS:
            marks.popleft()
        if not marks:
            marks.append((seconds, images))
            return images / seconds if seconds > 0 else 0.0
        since, before = marks[0]
        rate = (images - before) / (seconds - since) if seconds > since else 0.0
        if seconds - marks[-1][0] >= _APART_SECONDS:
            marks.append((seconds, images))
        return rate


_PASSES_PER_STEP = 3
_ROUNDS = 4
_SIDE = {"cpu": 1024, "mps": 2048, "cuda": 8192}


class ComputeShare:
    """Measured once, in about a quarter of a second; changes neither weights nor random numbers.

    Args:
        model: the model that is trained.
        image: the images at their full size.
        sizes: the size of the images at each progress.
        device: the device that trains.
        precision: the precision of the matrix products.
    """

    def __init__(
        self,
        model: nn.Module,
        image: ImageSpec,
        sizes: ProgressiveSize,
        device: torch.device,
        precision: str,
    ) -> None:
        height, width = sizes.small_size
        small = image.model_copy(update={"height": height, "width": width})
        self._flops = forward_flops(model, image, device)
        self._flops_of_small = forward_flops(model, small, device)
        self._sizes = sizes
        self._rate = matrix_product_rate(device, precision)

    def at(self, images_per_second: float, progress: float) -> float:
        """Return the share at a training rate, the mean since the start of the training.

        Args:
            images_per_second: mean rate since the start of the training.
            progress: the progress of the training, from 0 to 1.
        """
        small = self._sizes.share_of_small(progress)
        flops = small * self._flops_of_small + (1 - small) * self._flops
        return _PASSES_PER_STEP * flops * images_per_second / self._rate


@torch.inference_mode()
def forward_flops(model: nn.Module, image: ImageSpec, device: torch.device) -> int:
    """Return the floating-point operations of one image's forward pass in a training step.

    They are counted in evaluation mode, without the second view of a model with a test-time flip.
    """
    from torch.utils.flop_counter import FlopCounterMode

    image_BHWC = torch.zeros(
        1, image.height, image.width, image.channels, dtype=torch.uint8, device=device
    )
    with _one_view_in_evaluation(model), FlopCounterMode(display=False) as counter:
        model(normalize(image_BHWC, image))
    return int(counter.get_total_flops())


@contextmanager
def _one_view_in_evaluation(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    flipping: Any = model if getattr(model, "test_time_flip", False) else None
    model.eval()
    if flipping is not None:
        flipping.test_time_flip = False
    try:
        yield
    finally:
        model.train(was_training)
        if flipping is not None:
            flipping.test_time_flip = True


@torch.inference_mode()
def matrix_product_rate(device: torch.device, precision: str) -> float:
    """Return the floating-point operations per second of a large matrix product; the best of 4."""
    side = _SIDE.get(device.type, 1024)
    dtype = HALF_PRECISIONS.get(precision, torch.float32)
    square = torch.ones(side, side, dtype=dtype, device=device)
    best = float("inf")
    for _ in range(_ROUNDS):
        wait_for(device)
        began = time.perf_counter()
        square @ square
        wait_for(device)
        best = min(best, time.perf_counter() - began)
    return 2 * side**3 / best
