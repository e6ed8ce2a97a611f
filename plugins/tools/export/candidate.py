"""A form of a model before it is compared: its files, and a function that answers with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.plugins.tools.export.agreement import Bounds

Array = np.ndarray[Any, Any]
Answers = Callable[[Array], Array]
"""Maps uint8 images (N, H, W, C) to probabilities (N, K)."""


def _unchecked(images_NHWC: Array, expected_NK: Array) -> None:
    """Check nothing: the comparison covers all of most forms."""
    del images_NHWC, expected_NK


@dataclass(frozen=True)
class FormInputs:
    """What the forms of a model are made from."""

    package_folder: Path
    """Holds `model.onnx`, `model.json` and `model.safetensors`."""
    package: PackagedModel
    name: str
    """Of the registered model."""
    version: str
    calibration_NHWC: Array
    """Images that the ranges of int8 activations are taken from; may be empty."""
    calibration_origin: str
    scratch: Path
    """An empty folder."""


@dataclass(frozen=True)
class ExportCandidate:
    """A form that may be written if it agrees with the package."""

    name: str
    """Such as `int8, static`."""
    folder: Path
    """Holds the files of the form, and nothing else."""
    model_files: tuple[str, ...]
    """Those whose size is compared with that of `model.onnx`."""
    open: Callable[[int], Answers]
    """Opens the files that were written, with a number of threads; 0 for one per core."""
    bounds: Bounds
    details: Mapping[str, str] = field(default_factory=dict)
    """How it was made, for its record."""
    libraries: tuple[str, ...] = ("onnxruntime",)
    """Distributions whose versions determine its answers."""
    is_bound_to_processor: bool = False
    """Whether other processors may answer differently, so that a server has to check."""

    is_timed: bool = True
    """Whether its latency may differ from the package's."""
    check: Callable[[Array, Array], None] = _unchecked
    """Checks whatever else belongs to it on images (N, H, W, C) with the package's probabilities
    (N, K); raises a PackagingError."""

    @property
    def bytes(self) -> int:
        """Size of the model files."""
        return sum((self.folder / name).stat().st_size for name in self.model_files)
