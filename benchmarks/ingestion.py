"""Rate of reading a folder of images, against a bare loop in two processes over the same files.

    python -m benchmarks.ingestion [FOLDER] [--photographs N]

The bare loop opens, reads, digests (SHA-256) and decodes each file with Pillow; for photographs it
also resizes it to 224 pixels. Patchline describes each file (digest, complete or not, size, mode,
digest of the pixels), splits the data and writes the manifest; then it decodes the prepared store.
Without FOLDER, 20,000 small JPEG files are made. N (2,000) photographs of 500 x 375 are made.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.config import RunConfig
from pipeline.data import ingestion, prepared_store
from pipeline.data import manifest as manifests
from pipeline.data.prepared_store import StoreSpec

_SMALL, _CLASSES = 20_000, 10
_FEWEST = 4 * _CLASSES
_BARE_PROCESSES = 2
_SETTLED_SECONDS = 3
"""A file that was changed just before it is read is not remembered."""


def main() -> None:
    """Print the rates and the ratios of both kinds of images."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--photographs", type=int, default=2000)
    parser.add_argument("--bare", nargs=2, metavar=("LIST", "SIDE"), help="internal")
    given = parser.parse_args()
    if given.photographs < _FEWEST:
        parser.error(f"{given.photographs} photographs are too few for {_CLASSES} classes with "
                     f"three splits; give at least {_FEWEST}")  # fmt: skip
    if given.bare:
        print(_bare(Path(given.bare[0]), int(given.bare[1])))
        return
    quiet_libraries.apply()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        folder = given.folder or _images(Path(name) / "small", _SMALL, 32, 32)
        _compare(folder, Path(name) / "work", side=32, resized=False)
        photographs = _images(Path(name) / "photographs", given.photographs, 375, 500)
        _compare(photographs, Path(name) / "work", side=224, resized=True)


def _images(folder: Path, count: int, height: int, width: int) -> Path:
    """Write JPEG files of smooth random patterns, which compress as photographs do."""
    rng = np.random.default_rng(0)
    for number in range(count):
        coarse = rng.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        file = folder / f"class{number % _CLASSES}" / f"{number:06d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file, quality=90)
    time.sleep(_SETTLED_SECONDS)
    return folder


def _compare(folder: Path, work: Path, *, side: int, resized: bool) -> None:
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
    rate = len(files) / first
    both = len(files) / (first + stored)
    print(f"{len(files):,} files of {data.median_side} pixels")
    print(f"  bare loop in {_BARE_PROCESSES} processes   {bare:8,.0f} files/s")
    print(f"  ingestion, first time      {rate:8,.0f} files/s, {rate / bare:.2f} of the bare loop")
    print(f"  with the store of {side:3d}       {both:8,.0f} files/s, {both / bare:.2f}")
    print(f"  ingestion, nothing changed {len(files) / again:8,.0f} files/s, "
          f"{again / first:.3f} of the first time", flush=True)  # fmt: skip


def _bare_rate(files: list[Path], work: Path, side: int) -> float:
    work.mkdir(parents=True, exist_ok=True)
    running = []
    for part in range(_BARE_PROCESSES):
        listed = work / f"part-{part}.json"
        listed.write_text(json.dumps([str(file) for file in files[part::_BARE_PROCESSES]]))
        command = [sys.executable, "-m", "benchmarks.ingestion", "--bare", str(listed), str(side)]
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


if __name__ == "__main__":
    main()
