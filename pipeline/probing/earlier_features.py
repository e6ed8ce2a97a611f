"""Find features of images among those that were computed before with other images.

Beside each array of features lies an index: with what they were computed, and the digest of what
each row holds. So images that were added to a folder do not make those of the others worthless.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from patchline.pipeline.files.atomic_files import storage_errors, write_text
from patchline.pipeline.probing.piecewise_array import Floats, PiecewiseArray

_SUFFIX = ".images.json"


class StoredRow(NamedTuple):
    """Where the features of an image are."""

    features_ND: Floats
    """Mapped from disk."""
    row: int


def write_index(array: PiecewiseArray, computed_with: Sequence[Any], contents: list[str]) -> None:
    """Write the index of an array, unless it is there.

    Args:
        array: its name is unique for these images and what they were computed with.
        computed_with: all that decides the features of an image, as JSON values.
        contents: digest of what each row holds.
    """
    file = array.folder / f"{array.name}{_SUFFIX}"
    if not file.exists():
        with storage_errors(file):
            write_text(file, json.dumps({"with": list(computed_with), "contents": contents}))


def stored_rows(
    own: Path, computed_with: Sequence[Any], contents: set[str], dimensions: int
) -> dict[str, StoredRow]:
    """Return where the features of images are stored undamaged, by the digest of their content.

    Args:
        own: the folder that lies beside those to search.
        computed_with: as for `write_index`.
        contents: digests of the wanted images.
        dimensions: D.
    """
    found: dict[str, StoredRow] = {}
    for file in _newest_first(own):
        if len(found) == len(contents):
            break
        listed = _contents(file, list(computed_with))
        missing = contents - found.keys()
        if missing.isdisjoint(listed):
            continue
        name = file.name.removesuffix(_SUFFIX)
        array = PiecewiseArray(file.parent, name, (len(listed), dimensions))
        with contextlib.suppress(OSError):  # somebody is deleting it
            found |= _finished(array, listed, missing)
    return found


def _finished(array: PiecewiseArray, listed: list[str], contents: set[str]) -> dict[str, StoredRow]:
    pieces = array.finished()
    if not pieces:
        return {}
    features_ND = array.read()
    rows = [row for piece in pieces for row in range(piece.start, piece.stop)]
    return {listed[row]: StoredRow(features_ND, row) for row in rows if listed[row] in contents}


def _newest_first(own: Path) -> Iterator[Path]:
    """Yield the indexes in the folders beside one, the latest first."""
    dated = []
    for file in own.parent.glob(f"*/*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if file.parent != own:
                dated.append((file.stat().st_mtime, file))
    return (file for _, file in sorted(dated, reverse=True))


def _contents(file: Path, computed_with: list[Any]) -> list[str]:
    """Return the digests in an index; none if it is unreadable, or belongs to other features."""
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
        return list(index["contents"]) if index["with"] == computed_with else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
