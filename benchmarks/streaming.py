"""Images per second from S3: a store that stays on the object store, beside LitData's dataset.

    python -m benchmarks.streaming --litdata PYTHON [--images 800] [--side 224] [--rounds 1]

PYTHON is the interpreter of an environment with LitData, which is no dependency of Patchline:

    python -m venv litdata && litdata/bin/pip install litdata==0.2.76 torch

Both read the same random images from moto, which runs on this machine and is the limit of both, in
batches of uint8 tensors, shuffled: Patchline in ten windows, LitData chunk by chunk. They take
turns, each with a cold cache, and read the data twice: Patchline's holds at most 40% of the images,
LitData's at most 150 MB, about two of its chunks. The first epoch includes the start of the
data-loader workers (`--workers`), which LitData forks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data.batches.batch_order import BatchOrder, ShuffleWindows, StreamedOrder
from patchline.pipeline.data.batches.loader import TrainingImages, training_batches
from patchline.pipeline.data.store.prepared_store import StoreSpec, prepare
from patchline.pipeline.data.store.streamed_images import PagesFolder, StreamedImages
from patchline.pipeline.workspace import cache_limit, chosen
from patchline.pipeline.workspace.address import parse_address
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import ImageSpec
from patchline.plugins.stores.objects import RemoteStore
from tests.object_server import ObjectServer, object_server

_EPOCHS = 2
_FILE = "images.npy"
_LITDATA = "import sys; from benchmarks.litdata_reading import main; main(sys.argv[1:])"


def _write_images(folder: Path, count: int, side: int) -> pd.DataFrame:
    """Write random images as PNG files and as one array; return their manifest."""
    import cv2

    generator = np.random.default_rng(0)
    shape = (count, side, side, 3)
    images = np.lib.format.open_memmap(folder / _FILE, mode="w+", dtype=np.uint8, shape=shape)
    rows = []
    (folder / "photos").mkdir()
    for number in range(count):
        small_HWC = generator.integers(0, 256, (8, 8, 3), np.uint8)
        images[number] = cv2.resize(small_HWC, (side, side), interpolation=cv2.INTER_CUBIC)
        file = folder / "photos" / f"{number:06}.png"
        cv2.imwrite(str(file), images[number][:, :, ::-1])
        rows.append((file.name, digest_of(file).sha256, "train"))
    return pd.DataFrame(rows, columns=["path", "sha256", "split"])


def _read_ours(store: Path, batch: int, workers: int) -> tuple[list[float], int]:
    """Read the store twice; return the seconds of each epoch, and the bytes that were received."""
    images = StreamedImages(store)
    count, height, width, channels = images.shape
    rows = np.arange(count, dtype=np.int64)
    order = BatchOrder(rows, batch, 0, 0, ShuffleWindows.of(0.1, count, height * width * channels))
    steps = order.steps_per_epoch
    pages = PagesFolder()
    half = (0.5,) * channels
    spec = ImageSpec(
        channels=channels, height=height, width=width, mean=half, std=half, resize="crop"
    )
    source = TrainingImages(
        store=store,
        rows=rows,
        targets=rows % 10,
        augmentation=PluginChoice.model_validate({"name": "none"}),
        image=spec,
        seed=0,
        pages=pages.folder,
    )
    streamed = StreamedOrder(order, order, images, pages, lambda: _EPOCHS * steps)
    seconds = []
    began = time.perf_counter()
    batches = training_batches(streamed, source, workers, torch.device("cpu"))
    for _ in range(_EPOCHS):
        for _ in range(steps):
            next(batches)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    del batches
    pages.close()
    return seconds, images.records.bytes_read


def _read_litdata(python: str, address: str, batch: int, workers: int) -> tuple[list[float], str]:
    with tempfile.TemporaryDirectory(prefix="patchline-litdata-") as folder:
        arguments = (address, folder, str(batch), str(workers), str(_EPOCHS))
        done = _litdata(python, "read", *arguments)
    answer = json.loads(done.splitlines()[-1])
    return answer["seconds"], answer["version"]


def _litdata(python: str, *arguments: str) -> str:
    """Run the part that LitData does; its progress goes to standard error."""
    done = subprocess.run(
        [python, "-c", _LITDATA, *arguments],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _measure(given: argparse.Namespace, server: ObjectServer) -> None:
    """Write the images for both, and let them read in turn."""
    os.environ.update(server.environment)
    bucket = server.new_bucket()
    size = given.images * given.side * given.side * 3
    os.environ[cache_limit.LIMIT_VARIABLE] = str(int(size * 0.8))  # pages take at most half of it
    chosen.use(f"s3://{bucket}/team")
    folder = Path.cwd()
    rows = _write_images(folder, given.images, given.side)
    spec = StoreSpec(3, given.side, given.side, "crop")
    stores = WORKSPACE.resolve() / "prepared"
    store, _ = prepare(rows, folder / "photos", spec, stores, shared=chosen.find_shared_files())
    _litdata(given.litdata, "write", str(folder / _FILE), str(folder / "litdata"))
    remote = RemoteStore(parse_address(f"s3://{bucket}/litdata", "x"))
    for file in sorted((folder / "litdata").iterdir()):
        remote.upload(file, file.name)
    print(f"{given.images:,} images, {size / 1e6:,.0f} MB decoded; {given.workers} workers")
    names = {0: "first epoch", 1: "second epoch"}
    rates: dict[tuple[str, int], list[float]] = {}
    version = ""
    for turn in range(given.rounds):
        ours, received = _read_ours(store, given.batch, given.workers)
        theirs, version = _read_litdata(given.litdata, remote.uri, given.batch, given.workers)
        for name, seconds in (("Patchline", ours), ("LitData", theirs)):
            for epoch, each in enumerate(seconds):
                rates.setdefault((name, epoch), []).append(given.images / each)
        print(f"round {turn + 1}: {received / (_EPOCHS * size):.3f} times the data an epoch")
    values = [
        Value.median(f"{name}, {names[epoch]}", measured, "images/s")
        for (name, epoch), measured in sorted(rates.items(), key=lambda item: item[0][1])
    ]
    for value in values:
        print(
            f"{value.name:<24} {value.value:8,.0f} images/s ({value.low:,.0f} to {value.high:,.0f})"
        )
    record("streaming_s3_workers" if given.workers else "streaming_s3", *values)
    print(f"LitData {version}")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--litdata", required=True, help="Python of an environment with litdata")
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    given.litdata = str(Path(given.litdata).absolute())
    print(machine())
    with (
        tempfile.TemporaryDirectory(prefix="patchline-streaming-", dir=Path.cwd()) as folder,
        contextlib.chdir(folder),
        object_server(Path(folder)) as server,
    ):
        _measure(given, server)


if __name__ == "__main__":
    main()
