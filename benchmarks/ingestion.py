"""Reading and storing images: a folder of files, a manifest of a million rows, packed stores.

    python -m benchmarks.ingestion files [FOLDER] [--photographs N]
    python -m benchmarks.ingestion manifest [ROWS]
    python -m benchmarks.ingestion packed FOLDER [--side 224] [--batch 64] [--seconds 10]

`files` compares the rate of reading a folder with a bare loop in two processes over the same files,
which opens, reads, digests (SHA-256) and decodes each file with Pillow; for photographs it also
resizes it to 224 pixels. Patchline describes each file (digest, complete or not, size, mode, digest
of the pixels), splits the data and writes the manifest; then it decodes the prepared store. Without
FOLDER, 20,000 small JPEG files are made. N (2,000) photographs of 500 x 375 are made.

`manifest` prints time and memory of splits, fingerprint and inspection for made-up rows: 1,000
classes of different sizes, a twentieth of the images occurs twice, and one in a thousand is
damaged. Nothing is read from a disk but the memory of earlier splits.

`packed` builds the decoded and the packed store of the images of a folder: space on the disk, time
to build, and images per second of random batches, read from each in turn, three times, as medians.
It ends with an error if a pixel differs.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
from PIL import Image

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.labels.label_sets import SINGLE_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.pixel_values.pixel_mapping import PLAIN
from patchline.pipeline.data.splits import split
from patchline.pipeline.data.splits.leakage import find_given_splits
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.store.prepared_store import StoreKind, StoreSpec
from patchline.pipeline.evaluation.inspection.class_findings import findings_on_classes
from patchline.pipeline.evaluation.inspection.image_findings import (
    findings_on_duplicates,
    findings_on_size,
    findings_on_status,
)
from patchline.pipeline.evaluation.inspection.inspecting import summarize
from patchline.pipeline.workspace.files.stored_images import StoredImages

_SMALL, _FOLDERS = 20_000, 10
_FEWEST = 4 * _FOLDERS
_BARE_PROCESSES = 2
_SETTLED_SECONDS = 3
"""A file that was changed just before it is read is not remembered."""


def compare_files(given: argparse.Namespace) -> None:
    """Print the rates and the ratios of both kinds of images."""
    if given.photographs < _FEWEST:
        raise SystemExit(
            f"{given.photographs} photographs are too few for {_FOLDERS} classes with three "
            f"splits. Give at least {_FEWEST}."
        )
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        folder = given.folder or _images(Path(name) / "small", _SMALL, 32, 32)
        small = _compare(folder, Path(name) / "work", side=32, resized=False)
        photographs = _images(Path(name) / "photographs", given.photographs, 375, 500)
        large = _compare(photographs, Path(name) / "work", side=224, resized=True)
    record("reading_files", *small, *large)


def _images(folder: Path, count: int, height: int, width: int) -> Path:
    """Write JPEG files of smooth random patterns, which compress as photographs do."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        file = folder / f"class{number % _FOLDERS}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file, quality=90)
    time.sleep(_SETTLED_SECONDS)
    return folder


def _compare(folder: Path, work: Path, *, side: int, resized: bool) -> list[Value]:
    files = sorted(each for each in folder.rglob("*") if each.is_file())
    bare = _bare_rate(files, work, side if resized else 0)
    config = RunConfig.model_validate({"data": {"path": str(folder), "image_size": side}})
    began = time.perf_counter()
    data = ingestion.ingest(config, work)
    first = time.perf_counter() - began
    began = time.perf_counter()
    rows = manifests.usable(manifests.load(data.manifest_file))
    spec = StoreSpec(3, side, side, "crop")
    prepared_store.prepare(rows, data.root, spec, work / "prepared")
    stored = time.perf_counter() - began
    began = time.perf_counter()
    ingestion.ingest(config, work)
    again = time.perf_counter() - began
    print(f"{len(files):,} files of {data.median_side} pixels")
    count = len(files)
    rates = {
        "bare loop": bare,
        "ingestion, first time": count / first,
        "ingestion and prepared store": count / (first + stored),
        "ingestion, nothing changed": count / again,
    }
    for what, rate in rates.items():
        print(f"  {what:<28} {rate:8,.0f} files/s, {rate / bare:.2f} of the bare loop", flush=True)
    kind = f"{count:,} files of {data.median_side} pixels"
    return [
        Value(name=f"{kind}: {what}", value=rate, unit="files/s", n=1)
        for what, rate in rates.items()
    ]


def _bare_rate(files: list[Path], work: Path, side: int) -> float:
    work.mkdir(parents=True, exist_ok=True)
    running = []
    for part in range(_BARE_PROCESSES):
        listed = work / f"part-{part}.json"
        listed.write_text(json.dumps([str(file) for file in files[part::_BARE_PROCESSES]]))
        command = [sys.executable, "-m", "benchmarks.ingestion", "bare", str(listed), str(side)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    return len(files) / max(float(each.communicate()[0]) for each in running)


def _bare(listed: Path, side: int) -> float:
    """Return the seconds for the files of a list, without the start of the process."""
    files = json.loads(listed.read_text())
    began = time.perf_counter()
    for file in files:
        content = Path(file).read_bytes()
        hashlib.sha256(content).hexdigest()
        image = Image.open(io.BytesIO(content)).convert("RGB")
        if side:
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        np.asarray(image)
    return time.perf_counter() - began


_CLASSES = 1000
Result = TypeVar("Result")


class _Timer:
    def __init__(self) -> None:
        self.total = 0.0

    def measured(self, name: str, work: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        self.total += seconds
        print(f"{name:<28} {seconds:6.1f} s   peak {_peak_gb():.2f} GB", flush=True)
        return result


def time_manifest(given: argparse.Namespace) -> None:
    """Print the seconds of each part and the peak memory of the process."""
    print(machine(), flush=True)
    manifest = make_manifest(given.rows)
    gc.collect()
    print(f"{'manifest of ' + format(given.rows, ',') + ' rows':<28}          {_peak_gb():.2f} GB")
    config = config_files.validate_config({"name": "large", "data": {"source": "image_folder"}})
    data, timer = config.data, _Timer()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        wanted = split.split_fractions(manifest, data.validation_fraction, data.test_fraction)

        def splits() -> pd.DataFrame:
            splitting = ingestion.Splitting(wanted, "large", SINGLE_LABEL)
            return ingestion.assign_splits(manifest, config, splitting, Path(name), remember=True)[
                0
            ]

        timer.measured("splits", splits)
        assigned = timer.measured("splits, all remembered", splits)
    timer.measured("fingerprint", lambda: manifests.fingerprint(assigned))
    rows = manifests.usable(assigned)
    given_split = find_given_splits(manifest).reset_index(drop=True)
    found = timer.measured("files and sizes", lambda: [
        *findings_on_status(manifest), *findings_on_size(rows),
    ])  # fmt: skip
    near = np.arange(len(rows))
    found += timer.measured("duplicates", lambda: findings_on_duplicates(rows, given_split, near))
    divided, splits_made = given_split == "train", len(wanted) + 1
    found += timer.measured("classes", lambda: findings_on_classes(rows, divided, (), splits_made))
    timer.measured("summary", lambda: summarize(assigned, PLAIN, SINGLE_LABEL))
    print(f"{'together':<28} {timer.total:6.1f} s   peak {_peak_gb():.2f} GB; found "
          + ", ".join(f"{each.kind} {each.count:,}" for each in found))  # fmt: skip


def make_manifest(count: int) -> pd.DataFrame:
    """Return a manifest of made-up images, as a scan returns one."""
    generator = np.random.default_rng(0)
    content = np.arange(count)
    twice = generator.random(count) < 0.05  # noqa: PLR2004 - documented above
    content[twice] = generator.integers(0, count, int(twice.sum()))
    label = (_CLASSES * generator.random(count) ** 1.5).astype(int)
    ok = generator.random(count) > 0.001  # noqa: PLR2004 - documented above
    digests = [f"{each * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4 for each in content.tolist()]
    table = pd.DataFrame(
        {
            "path": [f"class_{k:04d}/{i:07d}.jpg" for i, k in enumerate(label.tolist())],
            "label": [f"class_{k:04d}" for k in label.tolist()],
            "split": "",
            "group": "",
            "sha256": digests,
            "pixels": [each[:32] for each in digests],
            "width": generator.integers(300, 700, count),
            "height": generator.integers(300, 700, count),
            "mode": "RGB",
            "values": "",
            "bytes": generator.integers(20_000, 200_000, count),
            "status": np.where(ok, "ok", "damaged"),
            "reason": np.where(ok, "", "the file ends too early"),
        }
    )
    return table[manifests.COLUMNS].sort_values("path", ignore_index=True)


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


_TURNS = 3
_KINDS: tuple[StoreKind, ...] = ("decoded", "packed")


def compare_stores(given: argparse.Namespace) -> None:
    """Print a line for each kind of store."""
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
            stores[kind], _ = prepared_store.prepare(
                rows, data.root, spec, work / "prepared", kind=kind
            )
            built[kind] = time.perf_counter() - began
        sizes = {
            kind: sum(file.stat().st_size for file in store.iterdir())
            for kind, store in stores.items()
        }
        opened = {kind: prepared_store.open_images(store) for kind, store in stores.items()}
        _check_pixels(opened["decoded"], opened["packed"], given.batch)
        rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
        for _ in range(_TURNS):
            for kind in _KINDS:
                rates[kind].append(_read_rate(opened[kind], given.batch, given.seconds))
    print(f"{len(rows):,} images, {given.side} pixels")
    for kind in _KINDS:
        size = sizes[kind] / len(rows)
        print(
            f"  {kind:8} {size / 1000:8.1f} kB an image, built in {built[kind]:6.1f} s, "
            f"{statistics.median(rates[kind]):9,.0f} images/s"
        )


def _check_pixels(one: StoredImages, other: StoredImages, batch: int) -> None:
    for start in range(0, len(one), batch):
        if not np.array_equal(one[start : start + batch], other[start : start + batch]):
            raise SystemExit(f"the images from {start} on differ")


def _read_rate(images: StoredImages, batch: int, seconds: float) -> float:
    """Return how many images of random batches are read in a second."""
    generator, count, began = np.random.default_rng(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        np.array(images[generator.integers(len(images), size=batch)])
        count += batch
    return count / (time.perf_counter() - began)


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    files = commands.add_parser("files")
    files.add_argument("folder", nargs="?", type=Path)
    files.add_argument("--photographs", type=int, default=2000)
    files.set_defaults(measure=compare_files)
    manifest = commands.add_parser("manifest")
    manifest.add_argument("rows", nargs="?", type=int, default=1_000_000)
    manifest.set_defaults(measure=time_manifest)
    packed = commands.add_parser("packed")
    packed.add_argument("folder", type=Path)
    packed.add_argument("--side", type=int, default=224)
    packed.add_argument("--batch", type=int, default=64)
    packed.add_argument("--seconds", type=float, default=10)
    packed.set_defaults(measure=compare_stores)
    bare = commands.add_parser("bare", help="internal: a process of the bare loop")
    bare.add_argument("list", type=Path)
    bare.add_argument("side", type=int)
    bare.set_defaults(measure=lambda given: print(_bare(given.list, given.side)))
    given = parser.parse_args()
    quiet_libraries.apply()
    given.measure(given)


if __name__ == "__main__":
    main()
