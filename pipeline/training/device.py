"""Choose how precisely to compute, and make it repeatable."""

from __future__ import annotations

import os

import torch

from pipeline.training.config import TrainingConfig

_WORTH_CASTING = 1_000_000
"""Parameters below which casting costs a CPU more than bfloat16 saves: see docs/performance.md."""


def choose_precision(config: TrainingConfig, device: torch.device, parameters: int) -> str:
    """Return `float32` or `bfloat16`.

    `auto` takes bfloat16 where the hardware multiplies it; on a CPU only for a model that is large
    enough to gain.
    """
    if config.precision != "auto":
        return config.precision
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    fast = device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001 - no public name
    return "bfloat16" if fast and parameters >= _WORTH_CASTING else "float32"


def make_repeatable(threads: int | None) -> int:
    """Ask torch for deterministic algorithms, set its threads, and return their number."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # `use_deterministic_algorithms` also imports torch's compiler, two seconds that nobody needs
    torch.set_deterministic_debug_mode("warn")
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
