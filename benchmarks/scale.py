"""What each part costs as the data grows, and how fast the cost grows.

    python -m benchmarks.scale [--sizes 10000 100000 1000000] [--parts PART …] [--longest 600]

For each part: seconds of processor time at each size (wall time says little on a busy machine), and
the exponent of growth between the last two sizes, 1 for n, about 1.05 for n log n, 2 for n².
Everything is made up, so that only Patchline's own work is measured: the reading of files, their
manifest, splits, fingerprint, duplicates, the search for near duplicates, an epoch's order, the
report, the paired comparison of a promotion, and the listing of versions and runs. Reading takes a
tenth of the files, and the registry holds a hundredth of the size in runs and versions, at least
100. A size is left out once the next would take longer than `--longest` seconds, as the growth so
far tells.
"""

from __future__ import annotations

import argparse
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd

from benchmarks.evaluation import build_report, class_names, make_table
from benchmarks.ingestion import make_manifest
from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.batches.batch_order import BatchOrder, ShuffleWindows
from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.near_duplicates.matching import matches
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.data.splits import split
from patchline.pipeline.evaluation.comparison import ComparisonSubject, compare
from patchline.pipeline.evaluation.inspection.class_findings import findings_on_classes
from patchline.pipeline.evaluation.inspection.image_findings import findings_on_duplicates
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.registry import registered_models
from patchline.pipeline.workspace.tracking.tracking_store import client

Work = Callable[[], object]
_CLASSES, _VERSIONS = 10, 100


def reading(size: int) -> Iterator[Work]:
    """Read a folder of small JPEG files: digest, wholeness, size, pixels, splits, manifest."""
    generator, count = np.random.default_rng(0), max(_VERSIONS, size // 10)
    with _folder() as folder:
        for number in range(count):
            image = generator.integers(0, 256, (32, 32, 3), np.uint8)
            file = folder / "images" / f"class_{number % _CLASSES}" / f"{number:07d}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
        config = config_files.build_config(str(folder / "images"))
        yield lambda: ingestion.ingest(config, folder / "workspace")


def splitting(size: int) -> Iterator[Work]:
    """Divide the rows into splits, and remember them."""
    manifest = _manifest(size)
    config = config_files.validate_config({"name": "large", "data": {"source": "image_folder"}})
    fractions = config.data.validation_fraction, config.data.test_fraction
    wanted = split.split_fractions(manifest, *fractions)
    how = ingestion.Splitting(wanted, "large", SINGLE_LABEL)
    with _folder() as folder:
        yield lambda: ingestion.assign_splits(manifest, config, how, folder, remember=True)


def fingerprint(size: int) -> Iterator[Work]:
    """Digest the manifest."""
    manifest = _manifest(size)
    yield lambda: manifests.fingerprint(manifest)


def findings(size: int) -> Iterator[Work]:
    """Find exact duplicates, leakage, and classes that are small or missing."""
    rows = manifests.usable(_manifest(size))
    parts = np.random.default_rng(0).choice(["train", "test"], len(rows), p=[0.85, 0.15])
    rows["split"] = parts
    divided, near = rows["split"] == "train", np.arange(len(rows))
    yield lambda: (
        findings_on_duplicates(rows, rows["split"], near),
        findings_on_classes(rows, divided, (), 3),
    )


def near_duplicates(size: int) -> Iterator[Work]:
    """Search the thumbnails of smooth random images for images that are nearly the same."""
    generator = np.random.default_rng(0)
    luma = np.empty((size, 32, 32), np.uint8)
    chroma = np.empty((size, 8, 8, 2), np.uint8)
    for row in range(size):
        coarse = generator.integers(0, 256, (6, 6), np.uint8)
        luma[row] = cv2.resize(coarse, (32, 32), interpolation=cv2.INTER_CUBIC)
        chroma[row] = 128
    thumbnails = Thumbnails(luma, chroma)
    yield lambda: sum(len(values) for _, values in matches(thumbnails))


def order(size: int) -> Iterator[Work]:
    """Draw one epoch in ten windows."""
    rows = np.arange(size, dtype=np.int64)
    windows = ShuffleWindows.of(0.1, size, 3 * 224 * 224)
    batches = BatchOrder(rows, 256, 0, 0, windows)

    def draw() -> None:
        each = iter(batches)
        for _ in range(batches.steps_per_epoch):
            next(each)

    yield draw


def report(size: int) -> Iterator[Work]:
    """Compute the report of so many test images in ten classes."""
    table, _ = make_table(_CLASSES, size)
    predictions = Predictions.of(table)
    yield lambda: build_report(predictions, _CLASSES)


def promotion(size: int) -> Iterator[Work]:
    """Compare two models on so many test images, with the paired test."""
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(_CLASSES), size).astype(np.float32)
    labels = generator.integers(0, _CLASSES, size)
    paths = [f"{number:08d}.jpg" for number in range(size)]
    yield lambda: compare(
        ComparisonSubject(
            champion="large/1", challenger="large/2", classes=class_names(_CLASSES), left_out={}
        ),
        paths=paths,
        labels_N=labels,
        champion_NK=probabilities,
        challenger_NK=np.roll(probabilities, 1, axis=0),
    )


def listing(size: int) -> Iterator[Work]:
    """List the versions of a model in a local MLflow store."""
    count = max(_VERSIONS, size // 100)
    with _folder() as folder:
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        store = client()
        experiment = store.create_experiment("large")
        store.create_registered_model("large")
        for _ in range(count):
            run = store.create_run(experiment)
            store.log_metric(run.info.run_id, "test/accuracy", 0.9)
            store.create_model_version("large", str(folder), run.info.run_id)
        yield lambda: registered_models.summaries("large")


PARTS: dict[str, Callable[[int], Iterator[Work]]] = {
    "reading": reading,
    "splitting": splitting,
    "fingerprint": fingerprint,
    "findings": findings,
    "near-duplicates": near_duplicates,
    "order": order,
    "report": report,
    "promotion": promotion,
    "listing": listing,
}


def _manifest(size: int) -> pd.DataFrame:
    """Return a manifest of made-up images in ten classes."""
    manifest = make_manifest(size)
    numbers = manifest["label"].str[-1:]
    return manifest.assign(label="class_" + numbers)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        yield Path(name)


def measure(part: Callable[[int], Iterator[Work]], size: int) -> float:
    """Return the processor seconds of a part, those of its child processes included."""
    prepared = part(size)
    work = next(prepared)
    before = _processor_seconds()
    work()
    seconds = _processor_seconds() - before
    next(prepared, None)  # cleans up
    return seconds


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the power of the size with which the last step grew."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def main() -> None:
    """Print a row for each part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--longest", type=float, default=600.0)
    given: Any = parser.parse_args()
    quiet_libraries.apply()
    print(machine())
    print(f"{'':<16}" + "".join(f"{size:>14,}" for size in given.sizes) + "      exponent")
    for name in given.parts:
        sizes: list[int] = []
        seconds: list[float] = []
        for size in given.sizes:
            if len(sizes) > 1:
                growth = max(1.0, exponent(sizes, seconds))
                if seconds[-1] * (size / sizes[-1]) ** growth > given.longest:
                    break
            seconds.append(max(1e-4, measure(PARTS[name], size)))
            sizes.append(size)
        cells = "".join(f"{each:>12.2f} s" for each in seconds)
        cells += f"{'-':>14}" * (len(given.sizes) - len(sizes))
        power = f"{exponent(sizes, seconds):14.2f}" if len(sizes) > 1 else f"{'-':>14}"
        print(f"{name:<16}{cells}{power}", flush=True)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
