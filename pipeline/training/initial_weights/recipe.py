"""The settings with which training starts from initial weights, unless the user sets others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from patchline.pipeline.workspace.files.paths import expand_user

_SUFFIXES = {".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".npz"}

FINE_TUNING: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-4, "layer_decay": 0.75},
    "training": {"epochs": 10, "batch_size": 32},
}
"""Settings for all weights of a model that was trained on other data (arXiv 2106.08254, appendix);
a larger batch of a ViT-B at 224 pixels needs more than 10 GB."""

LAST_BLOCKS: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 2e-4, "layer_decay": 0.75},
    "training": {"epochs": 10, "batch_size": 32},
}
"""Settings for the last blocks of a model that was trained on other data, from the fitted head
(docs/how_to/fine_tune.md)."""

WARM_START: dict[str, dict[str, Any]] = {
    "optimizer": {"learning_rate": 1e-3},
    "training": {"epochs": 20},
}
"""Settings for a model that was trained on an earlier version of the data, and to continue
pre-training."""

WARM_SHARE = 1 / 3
"""Length of a warm start, as a share of the length from random weights, in which it reaches their
accuracy (docs/reference/performance.md)."""

_NAME = re.compile(r"(timm|torchvision|hf):(.+)")


def is_name(reference: str) -> bool:
    """Return whether initial weights are named as published ones, such as `timm:NAME`."""
    return _NAME.fullmatch(reference) is not None


def split_name(reference: str) -> tuple[str, str]:
    """Return the library of published weights, and their name there.

    Raises:
        ValueError: if the reference is none.
    """
    match = _NAME.fullmatch(reference)
    if match is None:
        raise ValueError(f"{reference} does not name published weights")
    return match[1], match[2]


def is_file(reference: str, setting: str = "model.init") -> bool:
    """Return whether initial weights are named as a file, not as a model version or a run.

    A folder is none: `digits/3` is a version, also where a folder has this path.
    """
    path = expand_user(reference, setting)
    return path.suffix.lower() in _SUFFIXES or path.is_file()


def is_published(reference: str) -> bool:
    """Return whether initial weights are a file or published ones, not a model of Patchline's."""
    return is_file(reference) or is_name(reference)


def settings_for(
    reference: str, trainable: object, *, labelled: bool = True, taught: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the settings for initial weights, as nested settings.

    Args:
        reference: the weights, as `model.init` names them.
        trainable: the value of `training.trainable`; None if it is not set.
        labelled: whether the objective uses labels; without them, pre-training continues.
        taught: whether there is a teacher, whose predictions are targets for images, not for stored
            features.
    """
    if not labelled or not is_published(reference):
        return {} if trainable == "head" else WARM_START
    if trainable is None and taught:
        training = {**FINE_TUNING["training"], "trainable": "all"}
        return {**FINE_TUNING, "training": training}
    if trainable in (None, "head"):
        return {"training": {"trainable": "head"}}
    return LAST_BLOCKS if trainable == "last_blocks" else FINE_TUNING


def display_name(reference: str) -> str:
    """Return initial weights as pages name them: a file without its folder."""
    return reference if is_name(reference) or not is_file(reference) else Path(reference).name
