"""Choose the precision, and make the computation reproducible."""

from __future__ import annotations

import os

import torch

from pipeline.training.config import TrainingConfig

_WORTH_CASTING = 1_000_000
"""With fewer parameters, casting costs a CPU more than bfloat16 saves: see the performance page."""


def choose_precision(config: TrainingConfig, device: torch.device, parameters: int) -> str:
    """Return `float32` or `bfloat16`.

    `auto` uses bfloat16 if the hardware supports it, on a CPU only for a model that is large enough
    to benefit.
    """
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    fast = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001 - no public name
    return "bfloat16" if fast and parameters >= _WORTH_CASTING else "float32"


def make_repeatable(threads: int | None) -> int:
    """Enable deterministic algorithms, set the number of threads, and return it."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` also imports torch's compiler, two seconds that nobody needs
    torch.set_deterministic_debug_mode("warn")
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
