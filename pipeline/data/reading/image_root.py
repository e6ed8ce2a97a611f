"""Where the images of a manifest are: below a folder, or in an archive that is read in place.

A manifest's paths are relative to its root. The root may be a zip or tar file, or a folder in one
(`photos.zip/flowers`): then they name its members. So whatever needs an image later, such as the
prepared store, a gallery or a comparison of models, needs only the root and the path.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.data.reading.image_file import content_of, image_bytes, open_regular
from patchline.pipeline.errors import DataError
from patchline.pipeline.workspace.files.access import is_readable
from patchline.pipeline.workspace.files.archive_members import MemberError
from patchline.pipeline.workspace.files.archives import open_archive
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
from patchline.pipeline.workspace.files.sealed_files import sha256_of
from patchline.pipeline.workspace.files.tar_archive import READ_ERRORS

if TYPE_CHECKING:
    import pandas as pd

_DAMAGED = (*READ_ERRORS, zipfile.BadZipFile)


@contextmanager
def open_image(root: Path, path: str) -> Iterator[tuple[BinaryIO, int]]:
    """Open a file below a root for reading, and state its size in bytes.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read or is not a regular file.
    """
    file = archive_of(root)
    if file is None:
        with open_regular(os.path.join(root, path)) as opened:  # noqa: PTH118 - for each image
            yield opened, os.fstat(opened.fileno()).st_size
        return
    member = (root / path).relative_to(file).as_posix()
    with _member_errors():
        archive = open_archive(file)
        with archive.open(member) as opened:
            yield opened, archive.size_of(member)


@contextmanager
def root_image_bytes(root: Path, path: str) -> Iterator[bytes]:
    """Read a file below a root, and reserve its memory while the block runs.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read, or is too large.
    """
    if archive_of(root) is None:
        with image_bytes(root / path) as data:
            yield data
        return
    with open_image(root, path) as (opened, size), content_of(opened, size, size) as data:
        yield data


def holds(root: Path, path: str, sha256: str) -> bool:
    """Return whether there is a file below a root with this hexadecimal SHA-256."""
    try:
        with open_image(root, path) as (opened, _size):
            return sha256_of(opened) == sha256
    except (OSError, UndecodableImageError):
        return False


def is_file(root: Path, path: str) -> bool:
    """Return whether there is a file below a root, whatever its content."""
    try:
        with open_image(root, path):
            return True
    except UndecodableImageError:
        return False


def example_on_disk(row: pd.Series[Any], root: Path, folder: Path) -> str:
    """Return the path of an image as a file, to try a model on.

    Args:
        row: the image's row of the manifest.
        root: the folder or archive that its path is relative to.
        folder: receives a copy of an image in an archive.

    Raises:
        DataError: if the file is no longer there.
    """
    suffix = Path(row["path"]).suffix.lower()
    copy = folder / f"{row['sha256'][:16]}{suffix if suffix in IMAGE_SUFFIXES else ''}"
    try:
        return str(image_on_disk(root, row["path"], copy))
    except UndecodableImageError as error:
        raise DataError(f"{row['path']} changed while it was being read. Run again.") from error


def image_on_disk(root: Path, path: str, copy: Path) -> Path:
    """Return an image as a file; one that is in an archive is copied.

    Args:
        root: the folder or archive.
        path: the path of the image, relative to the root.
        copy: the file to write if the root is an archive.

    Raises:
        UndecodableImageError: if it cannot be read.
        StorageError: if the copy cannot be written.
    """
    if archive_of(root) is None:
        return root / path
    with root_image_bytes(root, path) as data, replace_file(copy) as temporary:
        temporary.write_bytes(data)
    return copy


def exists(root: Path) -> bool:
    """Return whether a root is there and may be read: the folder, or the archive."""
    if os.access(root, os.F_OK):
        return is_readable(root)
    with suppress(PermissionError):  # in a folder of another user
        archive = archive_of(root)
        return archive is not None and is_readable(archive)
    return False


def archive_of(root: Path) -> Path | None:
    """Return the archive that a root is, or is in; None for a folder."""
    if root.is_dir():
        return None
    return next((place for place in (root, *root.parents) if place.is_file()), None)


@contextmanager
def _member_errors() -> Iterator[None]:
    try:
        yield
    except MemberError as error:
        raise UndecodableImageError(str(error)) from error
    except DataError as error:
        raise UndecodableImageError(f"cannot be read: {error}") from error
    except _DAMAGED as error:
        raise UndecodableImageError(f"is damaged in the archive: {error}") from error
