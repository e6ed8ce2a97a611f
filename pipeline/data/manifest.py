"""The manifest: one row for each file, and a fingerprint that is the data's version everywhere.

Columns: path (relative, with forward slashes), label, split, group, sha256 (of the file), pixels
(digest of the decoded image), width, height, mode, bytes, status (`ok`, `damaged`, `foreign`),
reason. Manifests that were saved by earlier versions have no column `pixels`.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypedDict

import pandas as pd
from PIL import Image

from pipeline.atomic_files import replacing
from pipeline.data.decoding import UndecodableImageError, decode_image
from pipeline.data.same_images import pixel_digest
from pipeline.plugin_api import ImageListing, ListedImage

COLUMNS = [
    "path", "label", "split", "group", "sha256", "pixels", "width", "height", "mode", "bytes",
    "status", "reason",
]  # fmt: skip

_FINGERPRINTED = ["path", "label", "split", "group", "sha256", "status"]
_KNOWN_STARTS = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*")
_IMAGE_SUFFIXES = {
    ".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".avif",
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


def scan(listing: ImageListing, on_progress: Progress | None = None) -> pd.DataFrame:
    """Open every listed file once and describe it, sorted by path."""
    ordered = sorted(listing.images, key=lambda listed: listed.path)
    root = listing.root
    rows: list[_Row] = []
    with ThreadPoolExecutor(max_workers=min(8, 2 * (os.cpu_count() or 1))) as pool:
        for row in pool.map(lambda listed: _describe(root, listed), ordered, chunksize=64):
            rows.append(row)
            if on_progress:
                on_progress(len(rows), len(ordered))
    return pd.DataFrame(rows, columns=COLUMNS)


def _describe(root: Path, listed: ListedImage) -> _Row:
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
        data = (root / listed.path).read_bytes()
    except OSError as error:
        row["status"], row["reason"] = "damaged", f"cannot be read: {error.strerror}"
        return row
    row["sha256"], row["bytes"] = hashlib.sha256(data).hexdigest(), len(data)
    if not listed.label:
        row["status"], row["reason"] = "foreign", "lies in no class folder"
        return row
    try:
        with Image.open(io.BytesIO(data)) as opened:
            row["width"], row["height"], row["mode"] = opened.width, opened.height, opened.mode
        row["pixels"] = pixel_digest(decode_image(data, channels=3))
    except (
        UndecodableImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,
    ) as error:
        row["status"], row["reason"] = _verdict(Path(listed.path), data, error)
    return row


def _printable(name: str) -> str:
    """Return a file name that Parquet can hold: bytes that are not UTF-8 are written out."""
    return name.encode("utf-8", "backslashreplace").decode()


def _verdict(path: Path, data: bytes, error: Exception) -> tuple[str, str]:
    """Tell a damaged image from a file that never was one."""
    if not data:
        return "damaged", "the file is empty"
    if not data.startswith(_KNOWN_STARTS) and path.suffix.lower() not in _IMAGE_SUFFIXES:
        return "foreign", "not an image"
    unknown = "cannot identify" in str(error)
    return "damaged", "not an image that can be read" if unknown else str(error)


def fingerprint(manifest: pd.DataFrame) -> str:
    """Return the data's version: 32 hexadecimal digits over paths, labels, splits and contents."""
    digest = hashlib.sha256()
    for values in manifest[_FINGERPRINTED].itertuples(index=False):
        digest.update("\0".join(str(value) for value in values).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def save(manifest: pd.DataFrame, file: Path) -> None:
    """Write a manifest as Parquet, whole or not at all."""
    with replacing(file) as temporary:
        manifest.to_parquet(temporary, index=False)


def load(file: Path) -> pd.DataFrame:
    """Read a manifest."""
    return pd.read_parquet(file)


def usable(manifest: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that hold an image, in manifest order: row i is row i of the store."""
    return manifest[manifest["status"] == "ok"].reset_index(drop=True)


def classes(manifest: pd.DataFrame) -> list[str]:
    """Return the class names, sorted; their order is the order of the model's outputs."""
    return sorted(set(usable(manifest)["label"]))


def examples(paths: Iterable[str], limit: int = 3) -> str:
    """Return a few paths for a message: `a, b, c and 4 more`."""
    listed = list(paths)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
