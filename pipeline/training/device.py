"""Choose where and how precisely to compute, and make it repeatable."""

from __future__ import annotations

import os

import torch

from pipeline.errors import ConfigError
from pipeline.training.config import TrainingConfig


def choose_device(config: TrainingConfig) -> torch.device:
    """Return the device to train on.

    Raises:
        ConfigError: if the machine does not have the device that was asked for.
    """
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not available[name]:
        have = ", ".join(device for device, there in available.items() if there)
        raise ConfigError(
            f"training.device is '{name}', but this machine has {have}. Choose one of these."
        )
    return torch.device(name)


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
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
