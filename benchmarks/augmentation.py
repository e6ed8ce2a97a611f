"""Processor time of loading and augmenting a batch, for each built-in augmentation.

    python -m benchmarks.augmentation [--side 32] [--batch 256] [--repeats 20]

One thread, no data-loader workers, a store of random images. Prints the median and the minimum in
milliseconds of processor time for a batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pipeline.config import PluginChoice
from pipeline.data.batch_order import BatchOrder
from pipeline.data.loader import TrainingImages, training_batches
from pipeline.plugin_api import ImageSpec

_IMAGES = 4096
_CHOICES: tuple[dict[str, Any], ...] = (
    {"name": "none"},
    {"name": "light"},
    {"name": "standard"},
    {"name": "standard", "erase": 0.25},
    {"name": "resized_crop"},
    {"name": "trivialaugment"},
    {"name": "randaugment"},
    {"name": "strong"},
)


def _milliseconds(source: TrainingImages, batch: int, repeats: int) -> list[float]:
    batches = training_batches(BatchOrder(source.rows, batch, 0, 0), source, workers=0)
    next(batches)
    times = []
    for _ in range(repeats):
        began = time.process_time()
        next(batches)
        times.append(1000 * (time.process_time() - began))
    return times


def main() -> None:
    """Measure every augmentation on the same images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    spec = ImageSpec(
        channels=3,
        height=asked.side,
        width=asked.side,
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        resize="crop",
    )
    images = np.random.default_rng(0).integers(
        0, 256, (_IMAGES, asked.side, asked.side, 3), dtype=np.uint8
    )
    print(f"batch of {asked.batch}, {asked.side}x{asked.side} pixels, n = {asked.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "images.npy", images)
        for choice in _CHOICES:
            settings = {} if choice["name"] == "none" else {"horizontal_flip": True}
            source = TrainingImages(
                store=Path(folder),
                rows=np.arange(_IMAGES),
                labels=np.zeros(_IMAGES, np.int64),
                augmentation=PluginChoice.model_validate({**settings, **choice}),
                image=spec,
                seed=0,
            )
            times = _milliseconds(source, asked.batch, asked.repeats)
            name = ", ".join(str(value) for value in choice.values())
            print(f"{name:<16} {statistics.median(times):8.2f} ms   minimum {min(times):8.2f} ms")


if __name__ == "__main__":
    main()
