"""Stores with photos and small registered versions, for tests of commands and the Python API."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.data.manifests.scanning import scan
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import write_photos
from tests.pipeline.registry.made_versions import CLASSES


@contextmanager
def entered_store(folder: Path, empty_store: Path, **variables: str) -> Iterator[None]:
    """Work in a folder with a new store, and with these variables."""
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        variables["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder / 'mlflow.db'}"
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def class_photos(folder: Path, images: int, side: int = 32) -> Path:
    """Write so many photos for each class of the made versions."""
    drawn = write_photos(folder / "drawn", images=images, side=side)
    for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
        (folder / "photos").mkdir(exist_ok=True)
        (drawn / old).rename(folder / "photos" / new)
    return folder / "photos"


def manifest_of(photos: Path, train: int, validation: int) -> pd.DataFrame:
    """Return the manifest of photos of which the first of each class were trained on."""
    listed = [
        ListedImage(path=file.relative_to(photos).as_posix(), label=file.parent.name)
        for file in sorted(photos.rglob("*.png"))
    ]
    manifest = scan(ImageListing(name="photos", root=photos, images=listed))
    number = manifest["path"].str.extract(r"(\d+)\.png")[0].astype(int)
    ends = [("train", train), ("validation", train + validation)]
    manifest["split"] = [next((split for split, end in ends if n < end), "test") for n in number]
    return manifest
