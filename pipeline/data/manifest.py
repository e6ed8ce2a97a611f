"""The manifest: one row for each file, and a fingerprint that is the data's version.

Columns: path (relative, with forward slashes), label, split, group, sha256 (of the file), pixels
(digest of the decoded image), width, height, mode, bytes, status (`ok`, `damaged`, `foreign`),
reason. Manifests of earlier versions have no column `pixels`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

import pandas as pd

from pipeline.data.decoding import UndecodableImageError, decoded, read_header
from pipeline.data.image_file import MAX_FILE_BYTES, image_bytes, open_regular, too_large
from pipeline.data.image_formats import HEAD_BYTES, format_of, refused_format
from pipeline.data.same_images import pixel_digest
from pipeline.files.atomic_files import replacing
from pipeline.files.file_digest import sha256_of
from pipeline.plugin_api import ImageListing, ListedImage

COLUMNS = [
    "path", "label", "split", "group", "sha256", "pixels", "width", "height", "mode", "bytes",
    "status", "reason",
]  # fmt: skip

_FINGERPRINTED = ["path", "label", "split", "group", "sha256", "status"]
_IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif",
    ".jfif", ".jp2", ".j2k",
}  # fmt: skip
Progress = Callable[[int, int], None]
"""Called with the number of files done and the number of all files."""


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
    listing: ImageListing, on_progress: Progress | None = None, *, labelled: bool = True
) -> pd.DataFrame:
    """Open every listed file once and describe it, sorted by path.

    Args:
        listing: what the source has found.
        on_progress: called after each file.
        labelled: whether an image without a class is foreign.
    """
    ordered = sorted(listing.images, key=lambda listed: listed.path)
    root = listing.root
    rows: list[_Row] = []

    def describe(listed: ListedImage) -> _Row:
        return _describe(root, listed, wanted=bool(listed.label) or not labelled)

    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        for row in pool.map(describe, ordered, chunksize=64):
            rows.append(row)
            if on_progress:
                on_progress(len(rows), len(ordered))
    return pd.DataFrame(rows, columns=COLUMNS)


def _describe(root: Path, listed: ListedImage, *, wanted: bool) -> _Row:
    row = _Row(
        path=_printable(listed.path),
        label=_printable(listed.label),
        split=listed.split or "",
        group=listed.group or "",
        sha256="",
        pixels="",
        width=0,
        height=0,
        mode="",
        bytes=0,
        status="ok",
        reason="",
    )
    if row["path"] != listed.path:
        row["status"], row["reason"] = "damaged", "its name is not UTF-8; rename it"
        return row
    try:
        _fill(row, root / listed.path, wanted=wanted)
    except UndecodableImageError as error:
        row["status"], row["reason"] = "damaged", str(error)
    return row


def _fill(row: _Row, file: Path, *, wanted: bool) -> None:
    """Complete a row; files that are not images or have no class are not read as images."""
    with open_regular(file) as opened:
        row["bytes"] = os.fstat(opened.fileno()).st_size
        head = opened.read(HEAD_BYTES)
        looks_like_image = bool(format_of(head) or refused_format(head))
        readable = wanted and format_of(head) and row["bytes"] <= MAX_FILE_BYTES
        if not readable:
            opened.seek(0)
            row["sha256"] = sha256_of(opened)
    if not wanted:
        row["status"], row["reason"] = "foreign", "is not in a class folder"
        return
    if head and not looks_like_image and file.suffix.lower() not in _IMAGE_SUFFIXES:
        row["status"], row["reason"] = "foreign", "not an image"
        return
    if row["bytes"] > MAX_FILE_BYTES:
        raise UndecodableImageError(too_large(row["bytes"]))
    with image_bytes(file) as data:
        row["sha256"], row["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
        row["width"], row["height"], row["mode"] = read_header(data)
        with decoded(data, channels=3) as image_HWC:
            row["pixels"] = pixel_digest(image_HWC)


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
