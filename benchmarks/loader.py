"""Rate of loading and augmenting batches on one core, against torchvision's transforms.

    python -m benchmarks.loader [--side 32] [--batch 128] [--seconds 10]

The peer is a torch `DataLoader` without workers over the same stored images, with the operations of
`light` from torchvision.transforms.v2 on each image: flip, shift, scale, rotation, brightness. Both
run in turn, three times, in one thread; the medians are compared.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.measured_runs import machine
from pipeline.config import PluginChoice
from pipeline.data.batch_order import BatchOrder
from pipeline.data.loader import TrainingImages, training_batches
from pipeline.plugin_api import ImageSpec

_IMAGES, _TURNS = 8192, 3
_LIGHT: dict[str, Any] = {
    "horizontal_flip": True, "shift": 0.12, "scale": 0.15, "rotation": 15.0, "brightness": 0.1,
}  # fmt: skip


class _Stored(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, images: np.ndarray[Any, Any]) -> None:
        self._images = torch.from_numpy(images).permute(0, 3, 1, 2)
        self._transform = v2.Compose(
            [
                v2.RandomHorizontalFlip(),
                v2.RandomAffine(
                    _LIGHT["rotation"],
                    (_LIGHT["shift"],) * 2,
                    (1 - _LIGHT["scale"], 1 + _LIGHT["scale"]),
                    interpolation=v2.InterpolationMode.BILINEAR,
                ),
                v2.ColorJitter(brightness=_LIGHT["brightness"]),
            ]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self._transform(self._images[row]), 0


def main() -> None:
    """Print the rates of both, and how many times faster Patchline is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), flush=True)
    shape = (_IMAGES, asked.side, asked.side, 3)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        np.save(Path(folder) / "images.npy", images)
        sides: dict[str, Callable[[], Iterator[Any]]] = {
            "patchline": lambda: _ours(Path(folder), asked.side, asked.batch),
            "torchvision": lambda: _peers(images, asked.batch),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(_TURNS):
            for name, batches in sides.items():
                rates[name].append(_rate(batches(), asked.batch, asked.seconds))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, each in rates.items():
        print(f"{name:<12} {medians[name]:9,.0f} images/s  ({min(each):,.0f} to {max(each):,.0f})")
    print(f"ratio        {medians['patchline'] / medians['torchvision']:9.2f}")


def _ours(folder: Path, side: int, batch: int) -> Iterator[Any]:
    source = TrainingImages(
        store=folder,
        rows=np.arange(_IMAGES),
        labels=np.zeros(_IMAGES, np.int64),
        augmentation=PluginChoice.model_validate({"name": "light", **_LIGHT}),
        image=ImageSpec(
            channels=3, height=side, width=side, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
        ),
        seed=0,
    )
    return training_batches(BatchOrder(source.rows, batch, 0, 0), source, workers=0)


def _peers(images: np.ndarray[Any, Any], batch: int) -> Iterator[Any]:
    loader = DataLoader(_Stored(images), batch, shuffle=True, drop_last=True)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _rate(batches: Iterator[Any], batch: int, seconds: float) -> float:
    """Return images per second, without the first batch."""
    next(batches)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        next(batches)
        count += batch
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
