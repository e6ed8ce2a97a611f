"""Wait for the device, and make the computation reproducible."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.utils.deterministic


def make_repeatable(threads: int | None) -> int:
    """Enable deterministic algorithms, set the number of threads, and return it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` also imports torch's compiler, two seconds that nobody needs
    torch.set_deterministic_debug_mode("warn")
    # Otherwise every new tensor is filled first, which finds reads of memory that nobody has set;
    # on a GPU that is one more kernel for each operation.
    deterministic: Any = torch.utils.deterministic  # whose types lack the setting
    deterministic.fill_uninitialized_memory = False
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def wait_for(device: torch.device) -> None:
    """Wait until an accelerator has done everything it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
