"""The provenance inside a file of weights, in the metadata of `model.safetensors`.

It is in the same file as the weights, so that no copy of one is without the other, and the file's
own SHA-256 covers both. A file without a record, or with one that cannot be read, is unknown: it is
never taken for weights that have seen nothing.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance.provenance import Provenance, Published, one_line
from patchline.pipeline.models.provenance.seen_images import DIGEST_BYTES, Digests, SeenImages
from patchline.pipeline.workspace.files.sealed_files import read_metadata

_RECORD = "patchline.seen.record"
_PARTS = tuple(
    f"patchline.seen.{part}"
    for part in ("trained", "selected", "inherited_trained", "inherited_selected")
)
_WHOLE_BYTES = 8
_MOST_DIGESTS = 11_500_000
"""The header of a safetensors file has at most 100 MB, and a digest takes 8 bytes of it."""


class _Record(FrozenModel):
    """What the metadata holds beside the digests."""

    format_version: int = 1
    published: tuple[Published, ...] = ()
    unknown: tuple[str, ...] = ()
    digests: tuple[int, ...] = (0, 0, 0, 0)
    """Number of digests in each part."""


def as_metadata(provenance: Provenance) -> dict[str, str]:
    """Return the metadata of a file with weights of this provenance."""
    own, inherited = provenance.own, provenance.inherited
    if len(own) + len(inherited) > _MOST_DIGESTS:
        too_many = f"more than {_MOST_DIGESTS:,} digests of seen images, too many to record"
        unknown = (*provenance.unknown, too_many)
        return as_metadata(Provenance(published=provenance.published, unknown=unknown))
    parts = (own.trained_N, own.selected_N, inherited.trained_N, inherited.selected_N)
    record = _Record(
        published=provenance.published,
        unknown=provenance.unknown,
        digests=tuple(len(part) for part in parts),
    )
    packed = {key: _packed(part) for key, part in zip(_PARTS, parts, strict=True)}
    return {_RECORD: record.model_dump_json(), **packed}


def from_metadata(metadata: Mapping[str, str], name: str) -> Provenance:
    """Return the provenance that metadata holds; unknown if it holds none that can be read.

    Args:
        metadata: of a safetensors file.
        name: of the weights, for a sentence.
    """
    if _RECORD not in metadata:
        return Provenance.without_record(
            f"{name} has no record of the images that its weights have seen"
        )
    try:
        record = _Record.model_validate_json(metadata[_RECORD])
        parts = [_unpacked(metadata[key]) for key in _PARTS]
    except (ValidationError, KeyError, ValueError, binascii.Error):
        return Provenance.without_record(f"the record of seen images of {name} cannot be read")
    if tuple(len(part) for part in parts) != record.digests:
        return Provenance.without_record(f"the record of seen images of {name} is incomplete")
    own, inherited = SeenImages(*parts[:2]), SeenImages(*parts[2:])
    named = (each.model_copy(update={"name": one_line(each.name)}) for each in record.published)
    unknown = tuple(one_line(reason) for reason in record.unknown)  # the file may be a stranger's
    return Provenance(own, inherited, tuple(named), unknown)


def has_record(file: Path) -> bool:
    """Return whether Patchline has saved a file of weights, and nothing has changed it since."""
    try:
        return _RECORD in read_metadata(file)
    except DamagedFileError:
        return False


def provenance_of(file: Path, name: str) -> Provenance:
    """Return the provenance of the weights in a safetensors file.

    A file that is missing, damaged, or has no record is unknown.

    Args:
        file: of the weights.
        name: of the weights, for a sentence.
    """
    if not file.is_file():
        return Provenance.without_record(f"{name} has no file {file.name}")
    try:
        metadata = read_metadata(file)
    except DamagedFileError:
        return Provenance.without_record(
            f"{file.name} of {name} has changed since it was saved, or is damaged"
        )
    return from_metadata(metadata, name)


def _packed(digests: Digests) -> str:
    whole = np.ascontiguousarray(digests, dtype="<u8").view(np.uint8).reshape(-1, _WHOLE_BYTES)
    return base64.b64encode(whole[:, :DIGEST_BYTES].tobytes()).decode()


def _unpacked(text: str) -> Digests:
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    whole = np.zeros((len(packed) // DIGEST_BYTES, _WHOLE_BYTES), np.uint8)
    whole[:, :DIGEST_BYTES] = packed.reshape(-1, DIGEST_BYTES)
    return whole.reshape(-1).view("<u8").astype(np.uint64)
