"""Wait for the device, and make the computation reproducible."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.deterministic

_WORKSPACE, _OF_ONE_STREAM = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
_NO_KERNEL = "does not have a deterministic implementation"


def make_repeatable(threads: int | None, device: torch.device | None = None) -> int:
    """Enable deterministic algorithms, set the number of threads, and return it.

    Args:
        threads: number of threads on the CPU; None leaves torch's own number.
        device: what is computed on, unless it is the CPU.
    """
    # `use_deterministic_algorithms` also imports torch's compiler, two seconds that nobody needs
    torch.set_deterministic_debug_mode("warn")
    # Otherwise every new tensor is filled first, which finds reads of memory that nobody has set;
    # on a GPU that is one more kernel for each operation.
    deterministic: Any = torch.utils.deterministic  # whose types lack the setting
    deterministic.fill_uninitialized_memory = False
    if device is not None and device.type == "cuda" and _WORKSPACE not in os.environ:
        _settle_products(device)
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def _settle_products(device: torch.device) -> None:
    """Let torch see that matrix products on a GPU are deterministic.

    They are, as torch gives each stream a workspace of its own; but it accepts only a variable of
    the environment as proof. It asks once, and then parses the variable in each product again,
    which takes longer than to start a product: a training step of a small ViT took 30 ms with the
    variable and 19 ms without (H100, torch 2.11).
    """
    os.environ[_WORKSPACE] = _OF_ONE_STREAM
    try:
        one_11 = torch.ones(1, 1, device=device)
        torch.mm(one_11, one_11)
    finally:
        del os.environ[_WORKSPACE]


@dataclass
class DeterministicKernels:
    """Deterministic kernels on a GPU, such as for attention, as long as all operations have one.

    Torch's own choice are faster ones, whose sums are rounded differently in each run; it warns.

    Attributes:
        device: what is computed on.
        insist: whether to do so; false once an operation had none.
    """

    device: torch.device
    insist: bool = True

    @contextmanager
    def chosen(self) -> Iterator[None]:
        """Choose them inside the block.

        Raises:
            RuntimeError: for an operation without one; see `missing`.
        """
        if self.device.type != "cuda" or not self.insist:
            yield
            return
        torch.set_deterministic_debug_mode("error")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode("warn")

    def missing(self, error: RuntimeError) -> str:
        """Return the operation that failed as it has none, and stop insisting; else nothing."""
        if _NO_KERNEL not in str(error):
            return ""
        self.insist = False
        return str(error).split(maxsplit=1)[0]


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done everything it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
