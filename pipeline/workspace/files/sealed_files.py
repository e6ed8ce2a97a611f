"""safetensors files that contain their own SHA-256, so that no changed byte is read as a weight.

The digest is in the metadata of the file's header. It covers the whole file, with zeros in place of
the digest itself, so that no second file is needed, which could be newer or older. Files that
another program has written have no digest and are read without this check.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pydantic import Field

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workspace.files.atomic_files import replace_file

if TYPE_CHECKING:
    import torch


_KEY, _HEADER = "sha256", "__metadata__"
_ZEROS = b"0" * 64
_MARK = f'"{_KEY}":"'.encode()
_LENGTH = struct.Struct("<Q")
_LARGEST_HEADER = 100_000_000
_PIECE = 2**20


def write_tensors(
    file: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors and their digest atomically.

    Tensors that share memory, such as tied weights, are copied, because safetensors refuses them.
    """
    from safetensors.torch import save_file

    on_cpu = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with replace_file(file) as temporary:
        save_file(on_cpu, temporary, metadata={**(metadata or {}), _KEY: _ZEROS.decode()})
        with temporary.open("r+b") as opened:
            header = _with_sorted_metadata(_header(opened))
            opened.seek(_LENGTH.size)
            opened.write(header)
            place = _place_of_digest(header)
            digest = _digest(opened, place)
            opened.seek(place)
            opened.write(digest)


def read_tensors(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the tensors of a file and its metadata.

    Raises:
        DamagedFileError: if the file has changed since it was written.
    """
    from safetensors import SafetensorError, safe_open

    verify(file)
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no iterator
    except SafetensorError as error:
        raise _make_damage_error(file, str(error)) from error
    return tensors, {key: value for key, value in metadata.items() if key != _KEY}


def read_metadata(file: Path) -> dict[str, str]:
    """Return the metadata of a file, without its digest; needs no torch.

    Raises:
        DamagedFileError: if the file has changed since it was written.
    """
    verify(file)
    with file.open("rb") as opened:
        metadata = json.loads(_header(opened)).get(_HEADER, {})
    return {key: value for key, value in metadata.items() if key != _KEY}


def verify(file: Path) -> None:
    """Compare a file with its digest; one that another program has written has none.

    Raises:
        DamagedFileError: if the file has changed, is truncated, or cannot be read.
    """
    try:
        with file.open("rb") as opened:
            header = _header(opened)
            place = _place_of_digest(header)
            if place:
                opened.seek(place)
                expected = opened.read(len(_ZEROS))
                if _digest(opened, place) != expected:
                    raise _make_damage_error(file, "its content does not match its SHA-256")
            elif not _is_of_another_program(header):
                raise _make_damage_error(file, "its header has changed")
    except (OSError, ValueError) as error:
        raise _make_damage_error(file, str(error)) from error


def _with_sorted_metadata(header: bytes) -> bytes:
    """Return a header whose metadata is sorted: safetensors writes it in a random order."""
    parsed = json.loads(header)
    metadata = parsed.get(_HEADER, {})
    if list(metadata) == sorted(metadata):
        return header
    parsed[_HEADER] = {key: metadata[key] for key in sorted(metadata)}
    text = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False).encode()
    return text.ljust(len(header))


def _header(opened: BinaryIO) -> bytes:
    opened.seek(0)
    first = opened.read(_LENGTH.size)
    if len(first) < _LENGTH.size:
        raise ValueError("it is truncated")
    [length] = _LENGTH.unpack(first)
    if length > _LARGEST_HEADER:
        raise ValueError("its first bytes are not those of a safetensors file")
    header = opened.read(length)
    if len(header) < length:
        raise ValueError("it is truncated")
    return header


def _place_of_digest(header: bytes) -> int:
    """Return the position of the digest in the file; 0 without one."""
    place = header.find(_MARK)
    return _LENGTH.size + place + len(_MARK) if place >= 0 else 0


def _is_of_another_program(header: bytes) -> bool:
    """Return whether a header without a digest has none of Patchline's metadata either."""
    parsed = json.loads(header)
    metadata = parsed.get(_HEADER, {}) if isinstance(parsed, dict) else None
    return isinstance(metadata, dict) and set(metadata) <= {"format"}


def _digest(opened: BinaryIO, place: int) -> bytes:
    """Return the SHA-256 of the whole file, with zeros in place of the digest."""
    digest = hashlib.sha256()
    opened.seek(0)
    digest.update(opened.read(place))
    digest.update(_ZEROS)
    opened.seek(place + len(_ZEROS))
    while piece := opened.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest().encode()


def _make_damage_error(file: Path, why: str) -> DamagedFileError:
    return DamagedFileError(
        f"{file} is damaged ({why}). Restore it from a copy, or train the model again."
    )


_PIECE_BYTES = 1 << 20


class FileDigest(FrozenModel):
    """Digest and size of a file's content."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 in hexadecimal digits."""
    bytes: int


def digest_of(file: Path) -> FileDigest:
    """Return the digest and the size of a file."""
    with file.open("rb") as opened:
        return FileDigest(sha256=sha256_of(opened), bytes=os.fstat(opened.fileno()).st_size)


def sha256_of(opened: BinaryIO) -> str:
    """Return the SHA-256 of the rest of an opened file, which is read in pieces."""
    digest = hashlib.sha256()
    while piece := opened.read(_PIECE_BYTES):
        digest.update(piece)
    return digest.hexdigest()
