"""Draw what the augmentation of a config does to images of a data set, without training."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.errors import DataError
from patchline.pipeline.files.atomic_files import storage_errors
from patchline.pipeline.training.previews.augmentation_preview import (
    labelled_picture,
    preview_columns,
)
from patchline.pipeline.training.training_data import preview_rows
from patchline.pipeline.workspace import make_folder
from patchline.plugin_api import ImageSpec


def save_preview(
    config: RunConfig, data: IngestedData, file: Path, *, images: int = 8, epochs: int = 8
) -> None:
    """Write a picture of training images, as stored and in the first epochs.

    Only the images that are shown are decoded. Training with the same config sees the same images.

    Args:
        config: resolved.
        data: the manifest.
        file: PNG file to write; missing folders are created.
        images: number of images, starting with one of each class, if there are classes.
        epochs: number of epochs.

    Raises:
        DataError: if an image has changed since it was scanned.
        StorageError: if the file cannot be written.
    """
    size, channels = config.data.image_size, config.data.channels
    if size is None or channels is None:
        raise DataError("The image size is unknown. Resolve the config first.")
    table = manifests.usable(manifests.load(data.manifest_file))
    index = {label: number for number, label in enumerate(data.classes)}
    numbers = table["label"].map(index) if data.classes else np.zeros(len(table))
    labels = np.asarray(numbers).astype(np.int64)
    rows = preview_rows(labels, np.flatnonzero(table["split"] == "train"), images)
    spec = prepared_store.StoreSpec(channels, size, size, config.data.resize, data.mapping)
    with tempfile.TemporaryDirectory() as folder:
        chosen = table.iloc[rows]
        store, _ = prepared_store.prepare(chosen, data.root, spec, Path(folder))
        originals = prepared_store.open_images(store)[:].copy()
    zeros = (0.0,) * channels  # the augmentation sees pixels that are not normalised
    image = ImageSpec(
        channels=channels,
        height=size,
        width=size,
        mean=zeros,
        std=(1.0,) * channels,
        resize=config.data.resize,
    )
    augmentation = SeededAugmentation(config.augmentation, image, config.seed)
    columns = preview_columns(
        augmentation, originals, [int(row) for row in rows], epochs, config.training
    )
    names = [data.classes[labels[row]] if data.classes else "" for row in rows]
    picture = labelled_picture(_title(config), columns, names)
    with storage_errors(file):
        make_folder(file.parent)
        picture.save(file, "PNG")


def _title(config: RunConfig) -> str:
    settings = {
        key: value
        for key, value in config.augmentation.settings.items()
        if value is not None and key != "sha256"
    }
    named = ", ".join(f"{key} {_words(value)}" for key, value in settings.items())
    name = config.augmentation.name
    size = f"{config.data.image_size}x{config.data.image_size} pixels"
    title = f"{name}: {named}; {size}" if named else f"{name}; {size}"
    mixed = config.training.mixup or config.training.cutmix
    return f"{title}; % is an image's own share" if mixed else title


def _words(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
