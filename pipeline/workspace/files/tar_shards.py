"""WebDataset shards: tar files whose members with the same name up to the first dot are a sample.

For example, `train-000000.tar` holds 0001.jpg, 0001.cls, 0002.jpg, 0002.cls and so on.
"""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from patchline.pipeline.workspace.files.compression import COMPRESSIONS, READ_ERRORS
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES, TAR_SUFFIXES, split_named
from patchline.pipeline.workspace.files.ignored_files import DEFAULT_IGNORED
from patchline.pipeline.workspace.files.placeholders import whole_file
from patchline.pipeline.workspace.files.shared_file import OpenFile
from patchline.pipeline.workspace.files.tar_archive import HEADER_ERRORS, ArchiveHeaders

_LOOKED_AT = 24
_HEAD_BYTES = 1 << 22
_LABELS = frozenset({"cls", "json", "index", "id"})


def sample_key(path: str) -> tuple[str, str]:
    """Return the key of the sample that a member belongs to, and what kind of member it is.

    `a/0001.seg.png` is the member `seg.png` of sample `a/0001`.
    """
    folder, slash, name = path.rpartition("/")
    stem, _, kind = name.partition(".")
    return f"{folder}{slash}{stem}", kind.lower()


def shards_in(place: Path) -> list[Path]:
    """Return the shards of a folder, also in its folders for splits, or a single one; else none.

    Whether files are shards is told by the names of the first members of the first one.
    """
    if place.is_file():
        return [place] if _may_be_tar(place) and _holds_samples(place) else []
    try:
        inside = sorted(each for each in place.iterdir() if not each.name.startswith("."))
        inside = [each for each in inside if not _is_ignored(each)]
        folders = [each for each in inside if each.is_dir()]
        if any(each.suffix.lower() in IMAGE_SUFFIXES for each in inside):
            return []
        if not all(split_named(each.name) for each in folders):
            return []
        shards = [each for each in inside if each.is_file() and _may_be_tar(each)]
        for folder in folders:
            shards += sorted(each for each in folder.iterdir() if _may_be_tar(each))
    except OSError:  # whoever reads the folder says why it cannot be
        return []
    return shards if shards and _holds_samples(shards[0]) else []


def _is_ignored(path: Path) -> bool:
    return DEFAULT_IGNORED.skips(path.name, path.name, is_folder=path.is_dir())


def _may_be_tar(file: Path) -> bool:
    return file.name.lower().endswith(TAR_SUFFIXES) and file.is_file()


def _holds_samples(file: Path) -> bool:
    """Return whether an image shares its key with a label or a JSON object, without folders."""
    kinds: dict[str, set[str]] = {}
    for name in itertools.islice(_first_names(file), _LOOKED_AT):
        key, kind = sample_key(name)
        kinds.setdefault(key, set()).add(kind)
    return any(each & _LABELS and any(map(_is_image, each)) for each in kinds.values())


def _is_image(kind: str) -> bool:
    """Return whether a kind of member is an image."""
    return PurePosixPath(f"x.{kind}").suffix in IMAGE_SUFFIXES


def _first_names(file: Path) -> Iterator[str]:
    """Yield the names of the first files, as far as they can be read."""
    try:
        start = OpenFile(file).read_at(0, 8)
        opener = next((each for magic, each in COMPRESSIONS if start.startswith(magic)), None)
        if opener is None:
            content: io.IOBase = OpenFile(file).part()
        else:
            with opener(whole_file(file)) as opened:
                content = io.BytesIO(opened.read(_HEAD_BYTES))
        headers = cast("BinaryIO", ArchiveHeaders(content))
        with tarfile.open(fileobj=headers, mode="r:", errorlevel=2) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]
                if info.isfile():
                    yield info.name
    except (*HEADER_ERRORS, *READ_ERRORS):
        return
