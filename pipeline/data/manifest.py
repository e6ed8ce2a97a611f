"""The manifest: one row for each file, and a fingerprint that is the data's version.

Columns: path (relative, with forward slashes), label, split, group, sha256 (of the file), pixels
(digest of the decoded image), width, height, mode, bytes, status (`ok`, `damaged`, `foreign`,
`excluded`), reason. Manifests of earlier versions have no column `pixels`. Further columns of a
table are kept as `column:NAME`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TypedDict

import pandas as pd

from pipeline.data.decoding import Pixels, UndecodableImageError, decoded, read_header
from pipeline.data.image_file import MAX_FILE_BYTES, too_large
from pipeline.data.image_formats import HEAD_BYTES, format_of, refused_format
from pipeline.data.image_root import open_image, root_image_bytes
from pipeline.data.same_images import pixel_digest
from pipeline.files.atomic_files import replacing
from pipeline.files.data_names import IMAGE_SUFFIXES
from pipeline.files.file_digest import sha256_of
from pipeline.plugin_api import ImageListing, ListedImage

COLUMNS = [
    "path", "label", "split", "group", "sha256", "pixels", "width", "height", "mode", "bytes",
    "status", "reason",
]  # fmt: skip

OWN_COLUMN = "column:"
"""Start of the names of columns that the data source adds."""
_FINGERPRINTED = ["path", "label", "split", "group", "sha256", "status"]
Progress = Callable[[int, int], None]
"""Called with the number of files done and the number of all files."""
OnImage = Callable[[str, bytes, Pixels], None]
"""Called in a thread with the path, the file and the decoded RGB image (H, W, 3)."""


class _Row(TypedDict):
    path: str
    label: str
    split: str
    group: str
    sha256: str
    pixels: str
    width: int
    height: int
    mode: str
    bytes: int
    status: str
    reason: str


def scan(
    listing: ImageListing,
    on_progress: Progress | None = None,
    *,
    labelled: bool = True,
    on_image: OnImage | None = None,
) -> pd.DataFrame:
    """Open every listed file once and describe it, sorted by path.

    Args:
        listing: what the source has found.
        on_progress: called after each file.
        labelled: whether an image without a class is foreign.
        on_image: called for each decoded image, in the thread that has decoded it.
    """
    ordered = sorted(listing.images, key=lambda listed: listed.path)
    root = listing.root
    rows: list[_Row] = []

    def describe(listed: ListedImage) -> _Row:
        return _describe(root, listed, on_image, wanted=bool(listed.label) or not labelled)

    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        for row in pool.map(describe, ordered, chunksize=64):
            rows.append(row)
            if on_progress:
                on_progress(len(rows), len(ordered))
    for left_out in listing.left_out:
        row = _empty_row(ListedImage(left_out.path, ""))
        row["status"], row["reason"] = left_out.status, left_out.reason
        rows.append(row)
    rows.sort(key=lambda row: row["path"])
    return _with_columns(pd.DataFrame(rows, columns=COLUMNS), listing)


def _with_columns(manifest: pd.DataFrame, listing: ImageListing) -> pd.DataFrame:
    """Add the source's own columns; they are empty for files that are left out."""
    paths = [_printable(listed.path) for listed in listing.images]
    for name, values in listing.columns.items():
        known = dict(zip(paths, map(_printable, values), strict=True))
        manifest[f"{OWN_COLUMN}{_printable(name)}"] = [
            known.get(path, "") for path in manifest["path"]
        ]
    return manifest


def _empty_row(listed: ListedImage) -> _Row:
    return _Row(
        path=_printable(listed.path),
        label=_printable(listed.label),
        split=listed.split or "",
        group=_printable(listed.group or ""),
        sha256="",
        pixels="",
        width=0,
        height=0,
        mode="",
        bytes=0,
        status="ok",
        reason="",
    )


def _describe(root: Path, listed: ListedImage, on_image: OnImage | None, *, wanted: bool) -> _Row:
    row = _empty_row(listed)
    if row["path"] != listed.path:
        row["status"], row["reason"] = "damaged", "its name is not UTF-8; rename it"
        return row
    try:
        _fill(row, root, listed, on_image, wanted=wanted)
    except UndecodableImageError as error:
        row["status"], row["reason"] = "damaged", str(error)
    return row


def _fill(
    row: _Row, root: Path, listed: ListedImage, on_image: OnImage | None, *, wanted: bool
) -> None:
    """Complete a row; files that are not images or have no class are not read as images."""
    with open_image(root, listed.path) as (opened, row["bytes"]):
        head = opened.read(HEAD_BYTES)
        looks_like_image = bool(format_of(head) or refused_format(head))
        readable = wanted and format_of(head) and row["bytes"] <= MAX_FILE_BYTES
        if not readable:
            opened.seek(0)
            row["sha256"] = sha256_of(opened)
    if not wanted:
        row["status"], row["reason"] = "foreign", "is not in a class folder"
        return
    suffix = PurePosixPath(listed.path).suffix.lower()
    if head and not looks_like_image and suffix not in IMAGE_SUFFIXES:
        row["status"], row["reason"] = "foreign", "not an image"
        return
    if row["bytes"] > MAX_FILE_BYTES:
        raise UndecodableImageError(too_large(row["bytes"]))
    with root_image_bytes(root, listed.path) as data:
        row["sha256"], row["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        row["width"], row["height"], row["mode"] = read_header(data)
        with decoded(data, channels=3) as image_HWC:
            row["pixels"] = pixel_digest(image_HWC)
            if on_image:
                on_image(row["path"], data, image_HWC)


def _printable(name: str) -> str:
    """Return a file name that Parquet can hold: bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def fingerprint(manifest: pd.DataFrame) -> str:
    """Return the data's version: 32 hexadecimal digits over paths, labels, splits and contents."""
    digest = hashlib.sha256()
    for values in manifest[_FINGERPRINTED].itertuples(index=False):
        digest.update("\0".join(str(value) for value in values).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def contents_fingerprint(rows: pd.DataFrame) -> str:
    """Return 32 hexadecimal digits over contents and labels, wherever the files are.

    Two models with the same digits of their test images were tested on the same ones.
    """
    pairs = sorted(zip(rows["sha256"], rows["label"], strict=True))
    lines = (f"{sha256}\0{label}\n" for sha256, label in pairs)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:32]


def save(manifest: pd.DataFrame, file: Path) -> None:
    """Write a manifest as Parquet, atomically."""
    with replacing(file) as temporary:
        manifest.to_parquet(temporary, index=False)


def load(file: Path) -> pd.DataFrame:
    """Read a manifest."""
    return pd.read_parquet(file)


def usable(manifest: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a usable image, in manifest order: row i is row i of the store."""
    return manifest[manifest["status"] == "ok"].reset_index(drop=True)


def classes(manifest: pd.DataFrame) -> list[str]:
    """Return the class names, sorted; their order is the order of the model's outputs."""
    return sorted(set(usable(manifest)["label"]))


def examples(paths: Iterable[str], limit: int = 3) -> str:
    """Return a few paths for a message: `a, b, c and 4 more`."""
    listed = list(paths)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
