"""Images inside a Parquet file, copied once into a tar file that can be read in any order."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path, PurePosixPath

from patchline.plugin_api import IMAGE_SUFFIXES, check_expansion, known_digest, made_once
from patchline.plugins.data_sources.table_reading import ParquetTable, PartedTable


def image_names(stored: list[str]) -> list[str]:
    """Return a distinct name for the image of each row.

    Args:
        stored: the paths that are stored with the images; empty where there is none.
    """
    relative = [_relative(path) for path in stored]
    for names in (relative, [name.rpartition("/")[2] for name in relative]):
        if all(names) and len(set(names)) == len(names) and not any(map(_is_hidden, names)):
            return names
    digits = len(str(len(stored)))
    return [f"{row:0{digits}d}{_suffix(path)}" for row, path in enumerate(stored)]


def extracted(
    table: ParquetTable | PartedTable, column: str, names: list[str], work_dir: Path
) -> Path:
    """Return a tar file of the images in a column; rows without an image are not in it.

    Raises:
        DataError: if a Parquet file is damaged, or unpacks to much more than its own size.
        StorageError: if the disk is full or read-only.
    """
    digests = [known_digest(part.file, work_dir / "digests") for part in table.parts]
    digest = " ".join(digests)
    key = hashlib.sha256(f"{digest}\0{column}".encode()).hexdigest()[:32]

    def write(target: Path) -> None:
        remaining = iter(names)
        with tarfile.open(target, "w") as archive:
            for part in table.parts:
                written = 0
                # Not strict: the table checks the number of rows, after the last one.
                for image, name in zip(part.images(column), remaining, strict=False):
                    if image is None:
                        continue
                    written += len(image)
                    check_expansion(part.file, written)
                    member = tarfile.TarInfo(name)
                    member.size = len(image)
                    archive.addfile(member, io.BytesIO(image))
                    archive.members = []  # type: ignore[attr-defined]  # do not keep them all

    return made_once(work_dir / f"{key}.tar", write)


def _relative(path: str) -> str:
    path = path.replace("\\", "/")
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    is_absolute = path.startswith("/") or (parts and parts[0].endswith(":"))
    return parts[-1] if is_absolute and parts else "/".join(parts)


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _suffix(path: str) -> str:
    suffix = PurePosixPath(path).suffix.lower()
    return suffix if suffix in IMAGE_SUFFIXES else ""
