"""How long a network takes after its training: evaluation and packaging, from its measured speed.

Each has a fixed part, which takes longer where other programs use the processor, and passes of
images through the network. Explanations and the check of the package are computed on the CPU.
"""

from __future__ import annotations

import psutil

from patchline.pipeline.config import RunConfig
from patchline.pipeline.workers.host.processors import default_threads

LARGE_MODEL = 3_000_000
"""Parameters from which a model is too slow to be run hundreds of times."""
_EXPLAINING, _EXPLAINING_LARGE = 900, 165
"""Passes of the explanations: maps of the worst errors, images with covered parts, two pages."""
_CHECKING = 120
"""Passes of the package beside those of the test images: inner values, and the time of batches."""
_EVALUATION_SECONDS, _PACKAGING_SECONDS = 5.0, 9.0
"""Fixed parts, measured on two idle cores: processes and imports, the report; the export, the
version, the decision about the champion."""
_LOADING, _EXPORTING = 0.05e-6, 0.2e-6
"""The same for each parameter."""
PREDICTING_IS_FASTER = 3
"""Than training: it has no backward pass."""
_HALF_IS_FASTER = 1.6
"""bfloat16 than float32, in which images are predicted; measured on two cores with AMX."""

_SLOWEST = 3.0


def slowdown() -> float:
    """Return how many times longer fixed work takes because of other programs, 1 to 3.

    The load counts programs of low priority, too, which hardly slow others down.
    """
    return min(_SLOWEST, max(1.0, psutil.getloadavg()[0] / default_threads()))


def fixed_seconds() -> float:
    """Return about how many seconds evaluation and packaging take, apart from the images."""
    return slowdown() * (_EVALUATION_SECONDS + _PACKAGING_SECONDS)


def estimate_evaluation(
    images: float, images_per_second: float, parameters: int, slower: float, *, explains: bool
) -> float:
    """Return about how many seconds an evaluation takes.

    Args:
        images: number of images that are predicted.
        images_per_second: images that the network predicts in a second, in float32.
        parameters: number of parameters of the network; 0 if it is small.
        slower: how many times longer the fixed part takes.
        explains: whether predictions are explained.
    """
    passes = _EXPLAINING_LARGE if parameters > LARGE_MODEL else _EXPLAINING
    fixed = _EVALUATION_SECONDS + _LOADING * parameters
    return slower * fixed + (images + explains * passes) / max(1e-9, images_per_second)


def estimate_packaging(
    images: float, images_per_second: float, parameters: int, slower: float
) -> float:
    """Return about how many seconds packaging and registering take.

    Args:
        images: number of test images, on which the package is checked.
        images_per_second: images that the network predicts in a second, in float32.
        parameters: number of parameters of the network; 0 if it is small.
        slower: how many times longer the fixed part takes.
    """
    fixed = _PACKAGING_SECONDS + _EXPORTING * parameters
    return slower * fixed + (images + _CHECKING) / max(1e-9, images_per_second)


def predicting_rate(config: RunConfig, images_per_second: float, precision: str) -> float:
    """Return about how many images are predicted in a second in float32, from a training's speed.

    Args:
        config: the run's settings.
        images_per_second: training images in a second.
        precision: the precision of the training.
    """
    views = 2 if config.model.settings.get("test_time_flip") else 1
    half = 1.0 if precision in ("", "float32") else _HALF_IS_FASTER
    return images_per_second * PREDICTING_IS_FASTER / views / half
