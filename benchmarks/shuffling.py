"""Shuffling in windows against shuffling all images together: accuracy, and reading from a disk.

    python -m benchmarks.shuffling accuracy DATA [--seeds 5] [--epochs 6] [--window 0.1]
    python -m benchmarks.shuffling reading [--gigabytes 4] [--side 224] [--batch 128]

`accuracy` plans a training run on DATA once, as the preset quick does, and trains with both, in
turn for each seed, with equal steps and all else equal. It prints the mean of the differences of
the test accuracies with its 95% interval.

`reading` draws an epoch from a store that is not in memory, with both. In windows, the next one is
read ahead. Between the two, the system is told to forget the file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.measured_runs import PATCHLINE, machine, measured_run
from patchline.pipeline.data.batches.batch_order import BatchOrder
from patchline.pipeline.data.batches.shuffle_windows import Rows, ShuffleWindows
from patchline.pipeline.data.store.decoded_files import IMAGES_FILE
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.data.store.read_ahead import ReadAhead


def compare_accuracy(given: argparse.Namespace) -> None:
    """Train with both for each seed, and print the difference."""
    folder = Path(tempfile.mkdtemp(prefix="patchline-shuffling-"))
    planned = folder / "planned.yaml"
    planned.write_text(_plan(given, folder), encoding="utf-8")
    differences = []
    for seed in range(given.seeds):
        accuracies = []
        for window in (1.0, given.window):
            flags = ("--seed", str(seed), "--training.shuffle-window", str(window))
            summary = measured_run("--config", str(planned), *flags, folder=folder)
            accuracies.append(100 * summary["metrics"]["test/accuracy"]["value"])
        whole, windows = accuracies
        differences.append(windows - whole)
        print(f"seed {seed}: {whole:.2f}% together, {windows:.2f}% in windows", flush=True)
    mean = statistics.mean(differences)
    if len(differences) > 1:
        error = statistics.stdev(differences) / len(differences) ** 0.5
        half = float(stats.t.ppf(0.975, len(differences) - 1)) * error
        print(
            f"difference {mean:+.2f} points, 95% interval {mean - half:+.2f} to {mean + half:+.2f}"
        )


def _plan(given: argparse.Namespace, folder: Path) -> str:
    """Return the config of the planned run, with the threads and precision of its speed."""
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
    accuracy.add_argument("--epochs", type=int, default=6)
    accuracy.set_defaults(measure=compare_accuracy)
    reading = commands.add_parser("reading")
    reading.add_argument("--gigabytes", type=float, default=4.0)
    reading.add_argument("--side", type=int, default=224)
    reading.add_argument("--batch", type=int, default=128)
    reading.set_defaults(measure=compare_reading)
    for each in (accuracy, reading):
        each.add_argument("--window", type=float, default=0.1)
    given = parser.parse_args()
    print(machine())
    given.measure(given)


if __name__ == "__main__":
    main()
