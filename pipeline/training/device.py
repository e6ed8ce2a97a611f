"""Wait for the device, make the computation reproducible, and say when memory is short."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pipeline.errors import RunError


def make_repeatable(threads: int | None) -> int:
    """Enable deterministic algorithms, set the number of threads, and return it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` also imports torch's compiler, two seconds that nobody needs
    torch.set_deterministic_debug_mode("warn")
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done everything it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextmanager
def memory_named() -> Iterator[None]:
    """Say what to change if a device is out of memory where batches are not divided.

    Raises:
        RunError: if it is.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise RunError(
            "The device has too little memory for the images of a batch, or for the state of the "
            "optimizer. Lower training.batch_size, or choose a smaller model."
        ) from error
