"""How long a package takes for one batch, measured where and when it is packaged.

Shapes: N, H, W and C of the images.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.onnx_session import open_session
from patchline.pipeline.workers.host.processors import default_threads, this_processor

Array = np.ndarray[Any, Any]
BATCH_SIZES = (1, 4, 16)
_FEWEST_ROUNDS, _MOST_ROUNDS = 3, 20
_SECONDS, _MOST_SECONDS = 0.5, 10.0
"""That a batch size usually takes, and beyond which it is not measured."""


class BatchTime(FrozenModel):
    """The time of one batch in the network; decoding is not included."""

    batch_size: int
    milliseconds: float
    """Median time of the rounds."""
    rounds: int


class PackageLatency(FrozenModel):
    """The times of several batch sizes, and what computed them."""

    batches: tuple[BatchTime, ...]
    """Times by rising batch size; a size that would take too long is absent."""
    processor: str
    threads: int

    def sentence(self) -> str:
        """Return the times in words, without a full stop."""
        sizes = ", ".join(str(each.batch_size) for each in self.batches)
        times = ", ".join(f"{each.milliseconds:.3g}" for each in self.batches)
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        return (
            f"batches of {sizes} take {times} ms in onnxruntime (median of at least "
            f"{min(each.rounds for each in self.batches)}, decoding not included; "
            f"{self.processor}, {threads}; other work on the machine counts, too)"
        )


def package_latency(onnx_file: Path, images_NHWC: Array) -> PackageLatency:
    """Measure a package with as many threads as it uses unless told otherwise.

    Args:
        onnx_file: the ONNX file of the package.
        images_NHWC: images that the batches are taken from, uint8; they repeat if there are too
            few.
    """
    session = open_session(onnx_file)
    name, first = session.get_inputs()[0].name, session.get_outputs()[0].name

    def compute(batch_BHWC: Array) -> None:
        session.run([first], {name: batch_BHWC})

    return PackageLatency(
        batches=tuple(_batch_times(compute, images_NHWC)),
        processor=this_processor().name,
        threads=default_threads(),
    )


def _batch_times(compute: Callable[[Array], None], images_NHWC: Array) -> Iterator[BatchTime]:
    seconds_per_image = 0.0
    for size in BATCH_SIZES:
        if (_FEWEST_ROUNDS + 1) * size * seconds_per_image > _MOST_SECONDS:
            return
        batch = np.ascontiguousarray(np.resize(images_NHWC, (size, *images_NHWC.shape[1:])))
        compute(batch)  # the first call of a batch size allocates
        seconds: list[float] = []
        while len(seconds) < _FEWEST_ROUNDS or (
            len(seconds) < _MOST_ROUNDS and sum(seconds) < _SECONDS
        ):
            start = time.perf_counter()
            compute(batch)
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        seconds_per_image = median / size
        yield BatchTime(batch_size=size, milliseconds=1000 * median, rounds=len(seconds))
