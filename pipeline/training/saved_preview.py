"""The picture of training images before and after augmentation, with titles, as a file."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.errors import DataError
from patchline.pipeline.training.augmentation_preview import (
    GAP,
    Column,
    enlarge,
    preview_columns,
)
from patchline.pipeline.training.training_data import class_labels, preview_rows
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.fonts import font_showing
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugin_api import ImageSpec

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFont import FreeTypeFont, ImageFont

    Font = FreeTypeFont | ImageFont

Integers = np.ndarray[Any, Any]

_LABELLED_CELL = 96
_FONT_SIZE = 13
_LINE = 17
_MARGIN = 10
_LONGEST_NAME = 18


def draw_labelled_picture(
    title: str, columns: Sequence[Column], names: Sequence[str]
) -> Image.Image:
    """Return the preview with a title, a heading for each column and a name for each line.

    Args:
        title: one line.
        columns: the columns of images that `preview_columns` has returned.
        names: the class of each image.
    """
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_FONT_SIZE)
    shown = [_shorten(name) if font_showing(name) else "?" for name in names]
    fonts = [_font_of(name, font) for name in shown]
    lengths = [each.getlength(name) for each, name in zip(fonts, shown, strict=True)]
    left = 2 * _MARGIN + int(max(lengths))
    mixed = any(column.mix for column in columns)
    top = 2 * _MARGIN + (3 if mixed else 2) * _LINE
    cells = [[enlarge(i, _LABELLED_CELL) for i in column.images_NHWC] for column in columns]
    cell_height, cell_width = cells[0][0].shape[:2]
    width = left + len(columns) * (cell_width + GAP) + _MARGIN
    size = (
        max(width, int(font.getlength(title)) + 2 * _MARGIN),
        top + len(names) * (cell_height + GAP) + _MARGIN,
    )
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    draw.text((_MARGIN, _MARGIN), title, "black", font)
    for number, column in enumerate(columns):
        x = left + number * (cell_width + GAP)
        draw.text((x, _MARGIN + _LINE + 4), column.title, "black", font)
        draw.text((x, _MARGIN + 2 * _LINE + 2), column.mix, "dimgrey", font)
        for line, cell in enumerate(cells[number]):
            picture.paste(Image.fromarray(cell), (x, top + line * (cell_height + GAP)))
    for line, name in enumerate(shown):
        y = top + line * (cell_height + GAP) + cell_height // 2
        draw.text((_MARGIN, y), name, "black", fonts[line], anchor="lm")
    return picture


def _font_of(name: str, default: Font) -> Font:
    """Return the font that shows a name: the default, which has Latin letters only, or another."""
    from PIL import ImageFont

    file = None if name.isascii() else font_showing(name)
    return default if file is None else ImageFont.truetype(str(file), _FONT_SIZE)


def _shorten(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def save_preview(
    config: RunConfig, data: IngestedData, file: Path, *, images: int = 8, epochs: int = 8
) -> None:
    """Write a picture of training images, as stored and in the first epochs.

    Only the images that are shown are decoded. Training with the same config sees the same images.

    Args:
        config: the run's settings, resolved against the data.
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
    labels, sets_NK = class_labels(table["label"], data.classes, data.task)
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
    names = list(table["label"].iloc[rows]) if data.classes else [""] * len(rows)
    if sets_NK is not None:
        names = [", ".join(label_sets.decode_labels(name)) for name in names]
    picture = draw_labelled_picture(_title(config), columns, names)
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
