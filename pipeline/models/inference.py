"""Run a model over stored images, in smaller batches when the memory of the device is short.

Predictions and features are computed in batches that are halved until they fit. In training, the
gradients of a batch are divided into micro-batches, after what the failed step began is undone:
`patchline.pipeline.training.out_of_memory`.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.plugin_api import ImageSpec

Result = TypeVar("Result")


def compute_fitting_batches(
    count: int, batch_size: int, compute: Callable[[slice], Result]
) -> Iterator[tuple[int, Result]]:
    """Compute in batches; one that does not fit is halved, and so are the next ones.

    Args:
        count: the number of all rows.
        batch_size: the number of rows in a batch, while they fit.
        compute: computes the rows of a slice.

    Yields:
        The number of rows that are done, and the result of the latest batch.

    Raises:
        torch.OutOfMemoryError: if a single row does not fit.
    """
    done = 0
    while done < count:
        stop = min(done + batch_size, count)
        try:
            result = compute(slice(done, stop))
        except torch.OutOfMemoryError:
            if batch_size == 1:
                raise
            batch_size = max(1, min(batch_size, count - done) // 2)
            continue
        done = stop
        yield done, result


HALF_PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""What autocast multiplies in, by the name of a precision; in float32 it is off."""


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context in which a forward pass has a precision."""
    half = HALF_PRECISIONS.get(precision)
    return torch.autocast(device.type, half or torch.bfloat16, enabled=half is not None)


def normalize(images_BHWC: torch.Tensor, image: ImageSpec) -> torch.Tensor:
    """Normalise uint8 images (B, H, W, C) for a model: float32 (B, C, H, W), channels last.

    Tokens, which are floating-point numbers, are not normalised: they become float32.
    """
    if images_BHWC.is_floating_point():
        return images_BHWC.float()
    device = images_BHWC.device
    # On an accelerator, creating the tensors again would wait for it in each training step.
    statistics = _statistics if device.type == "cpu" else _keep_statistics
    mean_C, std_C = statistics(image, device)
    return ((images_BHWC.float() - mean_C) / std_C).permute(0, 3, 1, 2)


def _statistics(image: ImageSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    mean_C = torch.tensor(image.mean, device=device) * 255
    std_C = torch.tensor(image.std, device=device) * 255
    return mean_C, std_C


@functools.lru_cache(maxsize=8)
def _keep_statistics(image: ImageSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.inference_mode(mode=False):  # training uses them too
        return _statistics(image, device)


def logits_of_batch(
    model: nn.Module, images_BHWC: torch.Tensor, image: ImageSpec, precision: str
) -> torch.Tensor:
    """Return the logits (B, K) of uint8 images, in the model's mode and on its device.

    Args:
        model: the model, on the device of the images.
        images_BHWC: the images, uint8, not normalised.
        image: the normalisation.
        precision: float32, bfloat16 or float16.
    """
    with autocast(images_BHWC.device, precision):
        logits_BK: torch.Tensor = model(normalize(images_BHWC, image))
    return logits_BK


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Compute in float32 on an NVIDIA GPU, too, whose convolutions otherwise round to TF32.

    TF32 has 10 bits of precision, so probabilities would differ from the package's.
    """
    if device.type != "cuda":
        yield
        return
    cudnn: Any = torch.backends.cudnn  # whose types lack the setting
    products = (cudnn.conv, torch.backends.cuda.matmul)
    before = [each.fp32_precision for each in products]
    try:
        for each in products:
            each.fp32_precision = "ieee"
        yield
    finally:
        for each, precision in zip(products, before, strict=True):
            each.fp32_precision = precision


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Let what a thread starts on a GPU without naming one be on this one, such as an event."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


_MOST_AHEAD = 2
"""Batches that are copied to a GPU before it has computed the ones before them."""


class Transfers:
    """Copies to and from a device; those of a GPU overlap with what it computes.

    Args:
        device: any device; copies of all but CUDA devices are done when the methods return.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._unfinished: deque[torch.cuda.Event] = deque()

    def to_device(self, values: np.ndarray[Any, Any]) -> torch.Tensor:
        """Return a tensor on the device."""
        tensor = torch.from_numpy(np.array(values))
        if self.device.type != "cuda":
            return tensor.to(self.device)
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the CPU, whose values are there after `wait`."""
        if self.device.type != "cuda":
            return values.cpu()
        on_cpu = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        on_cpu.copy_(values, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        copied.record()
        self._unfinished.append(copied)
        while len(self._unfinished) > _MOST_AHEAD:
            self._unfinished.popleft().synchronize()
        return on_cpu

    def wait(self) -> None:
        """Wait for all copies."""
        while self._unfinished:
            self._unfinished.popleft().synchronize()


PREDICTED_TOGETHER = 256
"""Images of a batch."""


def whole_batches(count: int, parts: int) -> list[slice]:
    """Divide so many images into at most so many parts, of whole batches each.

    So an image is predicted in the same batch as by `predict_logits` for all of them.
    """
    batches = max(1, -(-count // PREDICTED_TOGETHER))
    used = min(parts, batches)
    ends = [min(count, PREDICTED_TOGETHER * (batches * n // used)) for n in range(used + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


@torch.inference_mode()
def predict_logits(
    model: nn.Module,
    images: StoredImages,
    rows: np.ndarray[Any, np.dtype[np.int64]],
    image: ImageSpec,
    *,
    batch_size: int = PREDICTED_TOGETHER,
    device: torch.device | None = None,
    precision: str = "float32",
    on_progress: Callable[[int, int], None] | None = None,
    on_batch: Callable[[slice], None] | None = None,
) -> torch.Tensor:
    """Return float32 logits (N, K) of the given rows, in their order, on the CPU.

    All numbers that are reported about a finished model come from these logits in float32: its
    package computes the same, and packaging compares the two on all test images. Runs the model in
    evaluation mode and restores its mode afterwards. A batch that does not fit the memory of the
    device is divided, and so are the next ones.

    `on_batch` is called with the positions of each batch, right after the model was.
    """
    device = device or torch.device("cpu")
    transfers = Transfers(device)
    exact = exact_float32(device) if precision == "float32" else nullcontext()
    was_training = model.training
    model.eval()

    def compute(batch: slice) -> torch.Tensor:
        images_BHWC = transfers.to_device(images[rows[batch]])
        logits_BK = logits_of_batch(model, images_BHWC, image, precision).float()
        if on_batch:
            on_batch(batch)
        return transfers.to_host(logits_BK)

    logits = []
    with exact:
        for done, logits_BK in compute_fitting_batches(len(rows), batch_size, compute):
            logits.append(logits_BK)
            if on_progress:
                on_progress(done, len(rows))
        transfers.wait()
    model.train(was_training)
    return torch.cat(logits)
