"""Read images with LitData's `StreamingDataset`: the other side of `benchmarks.streaming`.

It runs in the Python of an environment with LitData, and imports nothing of Patchline. `write`
converts an array (N, H, W, C) into LitData's chunks of 64 MB; `read` prints a JSON object with the
images and the seconds of each epoch.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial
from typing import Any

import numpy as np


def _image(array: str, row: int) -> dict[str, Any]:
    """Return one image to be stored."""
    images = np.load(array, mmap_mode="r")
    return {"image": np.array(images[row]), "label": row % 10}


def write(array: str, folder: str) -> None:
    """Convert an array of images."""
    import litdata

    count = len(np.load(array, mmap_mode="r"))
    litdata.optimize(
        partial(_image, array),
        list(range(count)),
        folder,
        chunk_bytes="64MB",
        num_workers=1,
        verbose=False,
    )


def read(address: str, cache: str, batch: int, workers: int, epochs: int) -> None:
    """Read all images once for each epoch, shuffled."""
    import litdata
    from litdata.streaming import downloader

    # Its client takes no setting for this, and refuses servers without encryption.
    options = "_OBSTORE_CLIENT_OPTIONS"
    setattr(downloader, options, {**(getattr(downloader, options) or {}), "allow_http": True})
    dataset = litdata.StreamingDataset(
        address,
        cache_dir=cache,
        shuffle=True,
        seed=0,
        max_cache_size="150MB",
        storage_options={
            "endpoint_url": os.environ["AWS_ENDPOINT_URL"],
            "aws_access_key_id": os.environ["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": os.environ["AWS_SECRET_ACCESS_KEY"],
            "region_name": os.environ["AWS_REGION"],
        },
    )
    loader = litdata.StreamingDataLoader(dataset, batch_size=batch, num_workers=workers)
    counts, seconds = [], []
    for _ in range(epochs):
        began, count = time.perf_counter(), 0
        for each in loader:
            count += len(each["image"])
        counts.append(count)
        seconds.append(time.perf_counter() - began)
    print(json.dumps({"version": litdata.__version__, "images": counts, "seconds": seconds}))


def main(arguments: list[str]) -> None:
    """Do what `benchmarks.streaming` asks for."""
    if arguments[0] == "write":
        write(arguments[1], arguments[2])
    else:
        batch, workers, epochs = map(int, arguments[3:])
        read(arguments[1], arguments[2], batch, workers, epochs)
