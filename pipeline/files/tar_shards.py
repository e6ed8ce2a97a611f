"""WebDataset shards: tar files whose members with the same name up to the first dot are a sample.

    train-000000.tar: 0001.jpg, 0001.cls, 0002.jpg, 0002.cls, …

Several shards are read in place as one archive: an index names them, and the path of a member
begins with the name of its shard.
"""

from __future__ import annotations

import io
import itertools
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from patchline.pipeline.errors import DataError
from patchline.pipeline.files.archives import (
    COMPRESSIONS,
    READ_ERRORS,
    MemberError,
    RefusedMember,
    open_archive,
)
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.data_names import IMAGE_SUFFIXES, TAR_SUFFIXES, split_named
from patchline.pipeline.files.ignored_files import DEFAULT_IGNORED
from patchline.pipeline.files.shared_file import SharedFile
from patchline.pipeline.files.tar_archive import HEADER_ERRORS, Headers

INDEX_SUFFIX = ".shards"
_FORMAT = "patchline shards 1"
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
        found = [each for each in inside if each.is_file() and _may_be_tar(each)]
        for folder in folders:
            found += sorted(each for each in folder.iterdir() if _may_be_tar(each))
    except OSError:  # whoever reads the folder says why it cannot be
        return []
    return found if found and _holds_samples(found[0]) else []


def _is_ignored(path: Path) -> bool:
    return DEFAULT_IGNORED.skips(path.name, path.name, is_folder=path.is_dir())


def shard_index(shards: dict[str, Path], file: Path) -> Path:
    """Write the file that stands for several shards, and return it.

    Args:
        shards: uncompressed tar files, by the names with which the paths of their members begin.
        file: the index; an earlier one is replaced if it names others.
    """
    named = {name: str(shard.resolve()) for name, shard in shards.items()}
    text = json.dumps({"format": _FORMAT, "shards": named}, indent=1)
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)
    return file


def shard_names(root: Path) -> frozenset[str]:
    """Return the names with which the paths of an index of shards begin; none for other roots."""
    if root.suffix != INDEX_SUFFIX:
        return frozenset()
    return frozenset(open_archive(root).folders)


class ShardedArchive:
    """The shards that an index names, as one archive; each is opened when it is needed."""

    def __init__(self, index: Path) -> None:
        content = json.loads(index.read_text(encoding="utf-8"))
        if content.get("format") != _FORMAT:
            raise DataError(f"{index} is not an index of shards. Delete it; it is written again.")
        self._shards = {name: Path(shard) for name, shard in content["shards"].items()}

    @property
    def paths(self) -> list[str]:
        """The visible files of all shards."""
        return [
            f"{name}/{path}"
            for name, shard in self._shards.items()
            for path in open_archive(shard).paths
        ]

    @property
    def folders(self) -> list[str]:
        """The shards."""
        return list(self._shards)

    @property
    def refused(self) -> list[RefusedMember]:
        """The members of all shards that are not read."""
        return [
            RefusedMember(f"{name}/{member.path}", member.reason)
            for name, shard in self._shards.items()
            for member in open_archive(shard).refused
        ]

    @property
    def note(self) -> str:
        """How names of the first shard with others than UTF-8 names were read."""
        return next(
            (note for each in self._shards.values() if (note := open_archive(each).note)), ""
        )

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes."""
        shard, member = self._found(path)
        return open_archive(shard).size_of(member)

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading; raise `MemberError` if it is not in its shard."""
        shard, member = self._found(path)
        return open_archive(shard).open(member)

    def shard_of(self, path: str) -> Path:
        """Return the shard that a file is in; raise `MemberError` if it is in none."""
        return self._found(path)[0]

    def _found(self, path: str) -> tuple[Path, str]:
        parts = path.split("/")
        for count in range(1, len(parts)):
            shard = self._shards.get("/".join(parts[:count]))
            if shard is not None:
                return shard, "/".join(parts[count:])
        raise MemberError("is in no shard")


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
        with file.open("rb") as opened:
            start = opened.read(8)
        opener = next((each for magic, each in COMPRESSIONS if start.startswith(magic)), None)
        if opener is None:
            content: io.IOBase = SharedFile(file).part()
        else:
            with opener(file) as opened:
                content = io.BytesIO(opened.read(_HEAD_BYTES))
        headers = cast("BinaryIO", Headers(content))
        with tarfile.open(fileobj=headers, mode="r:", errorlevel=2) as archive:
            while (info := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]
                if info.isfile():
                    yield info.name
    except (*HEADER_ERRORS, *READ_ERRORS):
        return
