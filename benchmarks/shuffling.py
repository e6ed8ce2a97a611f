"""Shuffling in windows against shuffling all images together: accuracy, and reading from a disk.

    python -m benchmarks.shuffling accuracy DATA [--seeds 5] [--first 0] [--epochs 6] [--window 0.1]
    python -m benchmarks.shuffling order DATA [--seeds 20] [--epochs 4] [--window 0.1]
    python -m benchmarks.shuffling reading [--gigabytes 4] [--side 224] [--batch 128]

`accuracy` plans a training run on DATA once, as the preset quick does, and trains with both, in
turn for each seed, with equal steps and all else equal. It prints the mean of the differences of
the test accuracies with its 95% interval.

`order` does the same with a perceptron of three layers on images of 8 pixels, which takes seconds,
so that many seeds show small differences. Its batches are those of a training run.

`reading` draws an epoch from a store that is not in memory, with both. In windows, the next one is
read ahead. Between the two, the system is told to forget the file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import yaml
from torch import nn
from torch.nn import functional

from benchmarks.measured_runs import PATCHLINE, machine, measure_run
from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.batches.batch_order import BatchOrder, Rows, ShuffleWindows, row_of
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.opened_images import ReadAhead
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.data.store.store_shards import IMAGES_FILE
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats

_SIDE = 8
"""Pixels of a small image."""


def compare_accuracy(given: argparse.Namespace) -> None:
    """Train with both for each seed, and print the difference."""
    folder = Path(tempfile.mkdtemp(prefix="patchline-shuffling-"))
    planned, config = yaml.safe_load(_plan(given, folder)), folder / "planned.yaml"
    differences = []
    for seed in range(given.first, given.first + given.seeds):
        accuracies = []
        for window in (1.0, given.window):
            planned["record"]["shuffle_window"] = window
            config.write_text(yaml.safe_dump(planned), encoding="utf-8")
            flags = ("--config", str(config), "--seed", str(seed))
            summary = measure_run(*flags, folder=folder)
            accuracies.append(100 * summary["metrics"]["test/accuracy"]["value"])
        whole, windows = accuracies
        differences.append(windows - whole)
        print(f"seed {seed}: {whole:.2f}% together, {windows:.2f}% in windows", flush=True)
    _print_mean(differences)


def _print_mean(differences: list[float]) -> None:
    mean = mean_of_repeats(differences, (-100.0, 100.0))
    print(f"difference {mean.value:+.2f} points, 95% interval {mean.low:+.2f} to {mean.high:+.2f}")


def _plan(given: argparse.Namespace, folder: Path) -> str:
    """Return the config of the planned run, whose threads and precision the plan has measured."""
    done = subprocess.run(
        [
            *(str(PATCHLINE), "run", str(Path(given.data).resolve()), "--preset", "quick"),
            *("--training.epochs", str(given.epochs), "--dry-run"),
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def compare_order(given: argparse.Namespace) -> None:
    """Train a perceptron with both for each seed, and print the difference."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="patchline-shuffling-") as name:
        images = _small_images(given, Path(name))
    differences = []
    for seed in range(given.seeds):
        whole, windows = (_accuracy(images, seed, each, given) for each in (1.0, given.window))
        differences.append(windows - whole)
        print(f"seed {seed}: {whole:.2f}% together, {windows:.2f}% in windows", flush=True)
    _print_mean(differences)


class _SmallImages(NamedTuple):
    """Images of a few pixels, in the rows of their store."""

    pixels_ND: torch.Tensor
    labels_N: torch.Tensor
    training: Rows
    tests: Rows
    image_bytes: int
    """Of each image of the store."""


def _small_images(given: argparse.Namespace, workspace: Path) -> _SmallImages:
    side = {"data": {"image_size": _SIDE * 4}}
    config = config_files.build_config(given.data, preset_name="none", flags=side)
    data = ingestion.ingest(config, workspace)
    prepared = ingestion.prepare(ingestion.resolve(config, data), data, workspace)
    rows = manifests.usable(manifests.load(data.manifest_file))
    stored = open_images(prepared.store)
    height, width, channels = stored.shape[1:]
    shape = (-1, _SIDE, height // _SIDE, _SIDE, width // _SIDE, channels)
    parts = [
        stored[start : start + 4096].reshape(shape).mean((2, 4), dtype=np.float32)
        for start in range(0, len(rows), 4096)
    ]
    pixels_ND = torch.from_numpy(np.concatenate(parts)).flatten(1)
    training, tests = (np.flatnonzero(rows["split"] == split) for split in ("train", "test"))
    deviation_D, mean_D = torch.std_mean(pixels_ND[training], 0)
    classes = {label: number for number, label in enumerate(data.classes)}
    return _SmallImages(
        pixels_ND=(pixels_ND - mean_D) / deviation_D,
        labels_N=torch.from_numpy(rows["label"].map(classes).to_numpy(np.int64, copy=True)),
        training=training,
        tests=tests,
        image_bytes=height * width * channels,
    )


def _accuracy(images: _SmallImages, seed: int, fraction: float, given: argparse.Namespace) -> float:
    """Return the test accuracy of a perceptron, in percent."""
    torch.manual_seed(seed)
    pixels_ND, labels_N, stored = images.pixels_ND, images.labels_N, len(images.labels_N)
    model = nn.Sequential(
        *(nn.Linear(pixels_ND.shape[1], 256), nn.GELU()),
        *(nn.Linear(256, 256), nn.GELU()),
        nn.Linear(256, int(labels_N.max()) + 1),
    )
    windows = ShuffleWindows.of(fraction, stored, images.image_bytes)
    order = BatchOrder(images.training, 256, seed, 0, windows)
    steps = given.epochs * order.steps_per_epoch
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    for batch in itertools.islice(order, steps):
        chosen = row_of(np.array([draw for _, draw in batch]), stored)
        loss = functional.cross_entropy(model(pixels_ND[chosen]), labels_N[chosen])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = model(pixels_ND[images.tests]).argmax(1) == labels_N[images.tests]
    return 100 * float(right.float().mean())


def compare_reading(given: argparse.Namespace) -> None:
    """Read an epoch of a store with both."""
    row_bytes = given.side * given.side * 3
    rows = int(given.gigabytes * 1e9 / row_bytes)
    with tempfile.TemporaryDirectory(prefix="patchline-reading-", dir=Path.cwd()) as folder:
        file = Path(folder) / IMAGES_FILE
        _write(file, (rows, given.side, given.side, 3))
        for name, fraction in {"together": 1.0, "in windows": given.window}.items():
            _forget(file)
            seconds, read = _epoch(Path(folder), rows, given.batch, fraction)
            rate = rows / seconds
            print(
                f"{name:<11} {rate:8,.0f} images/s, {rate * row_bytes / 1e6:6,.0f} MB/s; "
                f"{read / (rows * row_bytes):.2f} times the store read",
                flush=True,
            )


def _epoch(store: Path, rows: int, batch: int, fraction: float) -> tuple[float, int]:
    """Draw every image once; return the seconds and the bytes that were read from the disk."""
    images = open_images(store)
    windows = ShuffleWindows.of(fraction, rows, int(np.prod(images.shape[1:])))
    order = BatchOrder(np.arange(rows, dtype=np.int64), batch, 0, 0, windows)
    if windows:
        order.on_window = ReadAhead(images)
    before, began = _read_bytes(), time.perf_counter()
    batches = iter(order)
    for _ in range(order.steps_per_epoch):
        chosen: Rows = np.array([draw for _, draw in next(batches)])
        images[chosen].sum(dtype=np.int64)
    return time.perf_counter() - began, _read_bytes() - before


def _write(file: Path, shape: tuple[int, ...]) -> None:
    images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
    generator = np.random.default_rng(0)
    for start in range(0, shape[0], 1024):
        part = images[start : start + 1024]
        part[:] = generator.integers(0, 256, part.shape, np.uint8)
    images.flush()


def _forget(file: Path) -> None:
    """Let the system forget what it has read of a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_bytes() -> int:
    """Return the bytes that this process has caused to be read from disks (Linux)."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    accuracy = commands.add_parser("accuracy")
    accuracy.add_argument("data")
    accuracy.add_argument("--seeds", type=int, default=5)
    accuracy.add_argument("--first", type=int, default=0, help="seed")
    accuracy.add_argument("--epochs", type=int, default=6)
    accuracy.set_defaults(measure=compare_accuracy)
    order = commands.add_parser("order")
    order.add_argument("data")
    order.add_argument("--seeds", type=int, default=20)
    order.add_argument("--epochs", type=int, default=4)
    order.set_defaults(measure=compare_order)
    reading = commands.add_parser("reading")
    reading.add_argument("--gigabytes", type=float, default=4.0)
    reading.add_argument("--side", type=int, default=224)
    reading.add_argument("--batch", type=int, default=128)
    reading.set_defaults(measure=compare_reading)
    for each in (accuracy, order, reading):
        each.add_argument("--window", type=float, default=0.1)
    given = parser.parse_args()
    print(machine())
    given.measure(given)


if __name__ == "__main__":
    main()
