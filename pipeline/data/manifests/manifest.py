"""The manifest: one row for each file, and a fingerprint that is the data's version.

Columns: path (relative, with forward slashes), label (of multi-label data, a set as in
`patchline.pipeline.data.labels.label_sets`), split, group, sha256 (of the file), pixels
(digest of the decoded image), width, height, mode, values (JSON of a `FileSummary`; empty for most
images of 8 bits), bytes, status (`ok`, `damaged`, `foreign`, `excluded`), reason. Further columns
of a table are kept as `column:NAME`.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pandas as pd

from patchline.pipeline.data.config import OWN_COLUMN
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import label_pairs
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.table_cells import printable
from patchline.plugin_api import ImageListing

COLUMNS = [
    "path", "label", "split", "group", "sha256", "pixels", "width", "height", "mode", "values",
    "bytes", "status", "reason",
]  # fmt: skip

_FINGERPRINTED = ["path", "label", "split", "group", "sha256", "status"]
_TASK = "task"
_ROWS_AT_ONCE = 1 << 16


Progress = Callable[[int, int], None]
"""Called with the number of files done and the number of all files."""


def fingerprint(manifest: pd.DataFrame, mapping: PixelMapping | None = None) -> str:
    """Return the data's version: 32 hexadecimal digits over paths, labels, splits and contents.

    Args:
        manifest: the data.
        mapping: what becomes of values that are not of 8 bits; it is part of the version.
    """
    digest = hashlib.sha256()
    if mapping and not mapping.is_plain:
        digest.update(repr(mapping).encode())
    for start in range(0, len(manifest), _ROWS_AT_ONCE):
        part = manifest.iloc[start : start + _ROWS_AT_ONCE]
        columns = [map(str, part[name].to_numpy(object)) for name in _FINGERPRINTED]
        rows = ["\0".join(values) for values in zip(*columns, strict=True)]
        digest.update("".join(f"{row}\n" for row in rows).encode())
    return digest.hexdigest()[:32]


def contents_fingerprint(rows: pd.DataFrame) -> str:
    """Return 32 hexadecimal digits over contents and labels, wherever the files are.

    Two models with the same digits of their test images were tested on the same ones.
    """
    pairs = sorted(zip(rows["sha256"], rows["label"], strict=True))
    lines = (f"{sha256}\0{label}\n" for sha256, label in pairs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def save(
    manifest: pd.DataFrame,
    file: Path,
    mapping: PixelMapping | None = None,
    task: label_sets.Task | None = None,
) -> None:
    """Write a manifest as Parquet, atomically.

    Args:
        manifest: the data.
        file: the Parquet file to write.
        mapping: what becomes of values that are not of 8 bits; kept in the file's metadata.
        task: whether the labels are sets, which is kept there too; None leaves what is said there.
    """
    if task is not None:
        manifest = with_task(manifest, task)
    if mapping and not mapping.is_plain:
        manifest = manifest.copy()
        manifest.attrs["pixel_values"] = mapping.json()
    with replace_file(file) as temporary:
        manifest.to_parquet(temporary, index=False)


def save_version(
    manifest: pd.DataFrame,
    folder: Path,
    mapping: PixelMapping | None = None,
    task: label_sets.Task | None = None,
) -> Path:
    """Write a manifest to a file that its fingerprint names, and return the file; see `save`."""
    file = folder / f"{fingerprint(manifest, mapping)}.parquet"
    save(manifest, file, mapping, task)
    return file


def load(file: Path) -> pd.DataFrame:
    """Read a manifest."""
    return pd.read_parquet(file)


def with_task(manifest: pd.DataFrame, task: label_sets.Task) -> pd.DataFrame:
    """Return a manifest that says whether its labels are sets."""
    if task == task_of(manifest):
        return manifest
    manifest = manifest.copy()
    manifest.attrs[_TASK] = task
    return manifest


def in_one_form(*tables: pd.DataFrame) -> tuple[list[pd.DataFrame], label_sets.Task]:
    """Return manifests whose labels can be compared: sets in all of them if some has sets.

    Returns:
        The manifests, and the task of all.
    """
    if all(task_of(each) == label_sets.SINGLE_LABEL for each in tables):
        return list(tables), label_sets.SINGLE_LABEL
    return [_with_sets(each) for each in tables], label_sets.MULTI_LABEL


def _with_sets(manifest: pd.DataFrame) -> pd.DataFrame:
    if task_of(manifest) == label_sets.MULTI_LABEL:
        return manifest
    labels = manifest["label"].map(lambda label: label_sets.encode_labels([label]) if label else "")
    return with_task(manifest.assign(label=labels), label_sets.MULTI_LABEL)


def task_of(manifest: pd.DataFrame) -> label_sets.Task:
    """Return whether a manifest that was saved has one label for each image, or sets."""
    is_multi = manifest.attrs.get(_TASK) == label_sets.MULTI_LABEL
    return label_sets.MULTI_LABEL if is_multi else label_sets.SINGLE_LABEL


def usable(manifest: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a usable image, in manifest order: row i is row i of the store."""
    return manifest[manifest["status"] == "ok"].reset_index(drop=True)


def classes(manifest: pd.DataFrame, task: label_sets.Task = label_sets.SINGLE_LABEL) -> list[str]:
    """Return the class names, sorted; their order is the order of the model's outputs."""
    return list(label_pairs(usable(manifest)["label"], task).names)


def class_images(manifest: pd.DataFrame, classes: Sequence[str]) -> tuple[int, ...]:
    """Return the number of usable training images of each class, in the order of the classes."""
    rows = usable(manifest)
    counts = rows.loc[rows["split"] == "train", "label"].value_counts()
    return tuple(int(counts.get(name, 0)) for name in classes)


def own_columns(names: Iterable[str]) -> list[str]:
    """Return those of some names that a data source has added."""
    return [name for name in names if name.startswith(OWN_COLUMN)]


def list_columns(listing: ImageListing) -> list[str]:
    """Return the names that the columns of a source get in the manifest."""
    return [f"{OWN_COLUMN}{printable(name)}" for name in listing.columns]


def check_slices(slices: Iterable[str], there: Iterable[str]) -> None:
    """Refuse to slice the images by a column that the data does not have.

    Args:
        slices: the value of `evaluation.slices`.
        there: the columns of the manifest.

    Raises:
        ConfigError: naming the columns that are there.
    """
    columns = own_columns(there)
    for name in own_columns(slices):
        if name in columns:
            continue
        close = difflib.get_close_matches(name, columns, n=1, cutoff=0.5)
        nearest = f"did you mean {close[0]}? " if close else ""
        none = "only tables and shards have such columns, so remove it"
        remedy = f"choose from: {', '.join(columns)}" if columns else none
        raise ConfigError(
            f"evaluation.slices names '{name}', but the data has no such column; {nearest}{remedy}."
        )
