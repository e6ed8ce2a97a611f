"""Packed images against decoded ones: space on the disk, time to build, and images read per second.

    python -m benchmarks.packed_images FOLDER [--side 224] [--batch 64] [--seconds 10]

Both stores are built from the images of a folder; then random batches are read from each in turn,
three times, and the medians are compared. The program ends with an error if a pixel differs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.config import RunConfig
from pipeline.data import ingestion
from pipeline.data import manifest as manifests
from pipeline.data.prepared_store import StoreKind, StoreSpec, open_images, prepare
from pipeline.files.stored_images import StoredImages

_TURNS = 3
_KINDS: tuple[StoreKind, ...] = ("decoded", "packed")


def main() -> None:
    """Print a line for each kind of store."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        work = Path(name)
        config = RunConfig.model_validate({"data": {"path": str(given.folder)}})
        data = ingestion.ingest(config, work)
        rows = manifests.usable(manifests.load(data.manifest_file))
        spec = StoreSpec(3, given.side, given.side, "crop")
        stores, built = {}, {}
        for kind in _KINDS:
            began = time.perf_counter()
            stores[kind], _ = prepare(rows, data.root, spec, work / "prepared", kind=kind)
            built[kind] = time.perf_counter() - began
        sizes = {
            kind: sum(file.stat().st_size for file in store.iterdir())
            for kind, store in stores.items()
        }
        opened = {kind: open_images(store) for kind, store in stores.items()}
        _check(opened["decoded"], opened["packed"], given.batch)
        rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        for _ in range(_TURNS):
            for kind in _KINDS:
                rates[kind].append(_rate(opened[kind], given.batch, given.seconds))
    print(f"{len(rows):,} images, {given.side} pixels")
    for kind in _KINDS:
        size = sizes[kind] / len(rows)
        print(
            f"  {kind:8} {size / 1000:8.1f} kB an image, built in {built[kind]:6.1f} s, "
            f"{statistics.median(rates[kind]):9,.0f} images/s"
        )


def _check(one: StoredImages, other: StoredImages, batch: int) -> None:
    for start in range(0, len(one), batch):
        if not np.array_equal(one[start : start + batch], other[start : start + batch]):
            raise SystemExit(f"the images from {start} on differ")


def _rate(images: StoredImages, batch: int, seconds: float) -> float:
    """Return how many images of random batches are read in a second."""
    generator, count, began = np.random.default_rng(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        np.array(images[generator.integers(len(images), size=batch)])
        count += batch
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
