"""The folder of a training run on machines that do not share it: copies of that of the first.

Rank 0 alone writes checkpoints and weights. Where other machines do not see its folder, one rank on
each of them copies what has changed, through the connection that the ranks have anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Protocol, TypeVar

import torch

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.atomic_files import replacing
from patchline.pipeline.workspace.files.file_digest import FileDigest, digest_of
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Value = TypeVar("Value", bound=FrozenModel)

_PIECE_BYTES = 64 << 20
_OF_EACH_MACHINE = ("job.json", "group.json", "events.jsonl", "worker.log", "result.json")
_SCRATCH = ("processes", "node-")


class _Listing(FrozenModel):
    """The files of the first machine, by path."""

    files: dict[str, FileDigest]


class RankGroup(Protocol):
    """What this needs of the ranks of a training run; see `ranks.Ranks`."""

    is_first: bool
    writes_files: bool

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over the ranks."""
        ...

    def from_first(self, kind: type[Value], compute: Callable[[], Value]) -> Value:
        """Return what rank 0 computes."""
        ...

    def bytes_of_first(self, content: bytes, size: int) -> bytes:
        """Return so many bytes that rank 0 passes."""
        ...


def copy_from_first(ranks: RankGroup, folder: Path) -> None:
    """Let the folder of each machine hold the files of rank 0's; all ranks call this together."""
    listing = ranks.from_first(_Listing, lambda: _Listing(files=_digest_files(folder))).files
    missing = [False] * len(listing)
    if ranks.writes_files:
        own = _digest_files(folder)
        for path in own.keys() - listing.keys():
            (folder / path).unlink()
        missing = [own.get(path) != digest for path, digest in listing.items()]
    wanted = ranks.sum(torch.tensor(missing, dtype=torch.float32)).tolist()
    for (path, digest), is_wanted, is_missing in zip(listing.items(), wanted, missing, strict=True):
        if is_wanted:
            _copy(ranks, folder / path, digest.bytes, writes=is_missing)
    ranks.sum(torch.zeros(1))  # until all of them have written


def _copy(ranks: RankGroup, file: Path, size: int, *, writes: bool) -> None:
    pieces = _pieces(ranks, file, size)
    if not writes:
        for _ in pieces:
            pass
        return
    make_folder(file.parent)
    with replacing(file) as temporary, temporary.open("wb") as opened:
        for piece in pieces:
            opened.write(piece)


def _pieces(ranks: RankGroup, file: Path, size: int) -> Iterator[bytes]:
    """Yield the content of a file of rank 0, on all ranks."""
    with file.open("rb") if ranks.is_first else BytesIO() as opened:
        for start in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - start)
            yield ranks.bytes_of_first(opened.read(length), length)


def _digest_files(folder: Path) -> dict[str, FileDigest]:
    paths = sorted(each for each in folder.rglob("*") if each.is_file())
    own = (each.relative_to(folder) for each in paths)
    return {each.as_posix(): digest_of(folder / each) for each in own if _is_copied(each)}


def _is_copied(file: Path) -> bool:
    if file.name.startswith(".") or file.parts[0].startswith(_SCRATCH):
        return False
    return not (file.as_posix() in _OF_EACH_MACHINE or file.name.endswith(".lock"))
