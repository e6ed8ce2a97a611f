"""Loading and augmenting batches on one core, against torchvision and by augmentation.

    python -m benchmarks.loader rate [--side 32] [--batch 128] [--seconds 10]
    python -m benchmarks.loader augmentations [--side 32] [--batch 256] [--repeats 20]

`rate` compares images per second with a torch `DataLoader` without workers over the same stored
images, with the operations of `light` from torchvision.transforms.v2 on each image: flip, shift,
scale, rotation, brightness. Both run in turn, three times, in one thread; the medians are compared.

`augmentations` prints the processor time of a batch for each built-in augmentation, in
milliseconds: median and minimum, in one thread, without data-loader workers.
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
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.loader import TrainingImages, training_batches
from patchline.plugin_api import ImageSpec

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


def compare_rates(given: argparse.Namespace) -> None:
    """Print the rates of both, and how many times faster Patchline is."""
    images = _random_images(given.side)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as folder:
        np.save(Path(folder) / "images.npy", images)
        sides: dict[str, Callable[[], Iterator[Any]]] = {
            "patchline": lambda: _ours(Path(folder), given.side, given.batch),
            "torchvision": lambda: _peers(images, given.batch),
        }
        rates: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(_TURNS):
            for name, batches in sides.items():
                rates[name].append(_rate(batches(), given.batch, given.seconds))
    medians = {name: statistics.median(each) for name, each in rates.items()}
    for name, each in rates.items():
        print(f"{name:<12} {medians[name]:9,.0f} images/s  ({min(each):,.0f} to {max(each):,.0f})")
    print(f"ratio        {medians['patchline'] / medians['torchvision']:9.2f}")


def _ours(folder: Path, side: int, batch: int) -> Iterator[Any]:
    source = _source(folder, side, {"name": "light", **_LIGHT})
    return training_batches(BatchOrder(source.rows, batch, 0, 0), source, workers=0)


def _random_images(side: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 256, (_IMAGES, side, side, 3), np.uint8)


def _source(folder: Path, side: int, augmentation: dict[str, Any]) -> TrainingImages:
    return TrainingImages(
        store=folder,
        rows=np.arange(_IMAGES),
        targets=np.zeros(_IMAGES, np.int64),
        augmentation=PluginChoice.model_validate(augmentation),
        image=ImageSpec(
            channels=3, height=side, width=side, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
        ),
        seed=0,
    )


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


_AUGMENTATIONS: tuple[dict[str, Any], ...] = (
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


def time_augmentations(given: argparse.Namespace) -> None:
    """Measure every augmentation on the same images."""
    print(f"batch of {given.batch}, {given.side}x{given.side} pixels, n = {given.repeats}")
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "images.npy", _random_images(given.side))
        for choice in _AUGMENTATIONS:
            settings = {} if choice["name"] == "none" else {"horizontal_flip": True}
            source = _source(Path(folder), given.side, {**settings, **choice})
            times = _milliseconds(source, given.batch, given.repeats)
            name = ", ".join(str(value) for value in choice.values())
            print(f"{name:<16} {statistics.median(times):8.2f} ms   minimum {min(times):8.2f} ms")


def main() -> None:
    """Measure what the command names, in one thread."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    rate = commands.add_parser("rate")
    rate.add_argument("--seconds", type=float, default=10.0)
    rate.set_defaults(measure=compare_rates)
    augmentations = commands.add_parser("augmentations")
    augmentations.add_argument("--repeats", type=int, default=20)
    augmentations.set_defaults(measure=time_augmentations)
    for command, batch in ((rate, 128), (augmentations, 256)):
        command.add_argument("--side", type=int, default=32)
        command.add_argument("--batch", type=int, default=batch)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(machine(), flush=True)
    given.measure(given)


if __name__ == "__main__":
    main()
