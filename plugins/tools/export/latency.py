"""Measure two forms of a model in turn, so that other work on the machine meets both alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel

Array = np.ndarray[Any, Any]
Answers = Callable[[Array], Array]

BATCH_SIZES = (1, 8, 32)
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 50
SECONDS = 2.0
"""That the rounds of one batch size take, unless three rounds take longer."""


class BatchLatency(FrozenModel):
    """Median time of one batch, decoding not included."""

    batch_size: int
    package_milliseconds: float
    form_milliseconds: float
    rounds: int

    @property
    def speedup(self) -> float:
        """How many times as fast the form is."""
        return self.package_milliseconds / self.form_milliseconds


def measured_latency(
    package: Answers, form: Answers, images_NHWC: Array, seconds: float = SECONDS
) -> tuple[BatchLatency, ...]:
    """Time the package and a form in turn at each batch size.

    Args:
        package: maps images to probabilities.
        form: the same, in another form.
        images_NHWC: images to take the batches from; they repeat if there are too few.
        seconds: budget for each batch size.
    """
    return tuple(_of_batch(package, form, images_NHWC, size, seconds) for size in BATCH_SIZES)


def _of_batch(
    package: Answers, form: Answers, images_NHWC: Array, size: int, seconds: float
) -> BatchLatency:
    batch = np.ascontiguousarray(np.resize(images_NHWC, (size, *images_NHWC.shape[1:])))
    times: tuple[list[float], list[float]] = ([], [])
    package(batch)  # the first call of a batch size allocates
    form(batch)
    began = time.perf_counter()
    while len(times[0]) < _FEWEST_ROUNDS or (
        len(times[0]) < _MOST_ROUNDS and time.perf_counter() - began < seconds
    ):
        order = (0, 1) if len(times[0]) % 2 == 0 else (1, 0)
        for which in order:
            start = time.perf_counter()
            (package, form)[which](batch)
            times[which].append(time.perf_counter() - start)
    return BatchLatency(
        batch_size=size,
        package_milliseconds=1000 * statistics.median(times[0]),
        form_milliseconds=1000 * statistics.median(times[1]),
        rounds=len(times[0]),
    )
