"""The settings with which training starts from initial weights, unless the user sets others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SUFFIXES = {".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz"}

FINE_TUNING: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-4, "layer_decay": 0.75},
    "training": {"epochs": 10},
}
"""For all weights of a model that was trained on other data (arXiv 2106.08254, appendix)."""

WARM_START: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-3},
    "training": {"epochs": 20},
}
"""For a model that was trained on an earlier version of the data."""


def is_file(reference: str) -> bool:
    """Return whether initial weights are named as a file, not as a model version or a run."""
    path = Path(reference).expanduser()
    return path.suffix.lower() in _SUFFIXES or path.exists()


def settings_for(reference: str, trainable: object) -> dict[str, dict[str, Any]]:
    """Return the settings for initial weights, as nested settings.

    Args:
        reference: as in `model.init`.
        trainable: as in `training.trainable`, None if it is not set.
    """
    if not is_file(reference):
        return {} if trainable == "head" else WARM_START
    return {"training": {"trainable": "head"}} if trainable in (None, "head") else FINE_TUNING


def shown(reference: str) -> str:
    """Return initial weights as pages name them: a file without its folder."""
    return Path(reference).name if is_file(reference) else reference
