"""The arrays of features, and those that were computed before with other images.

Beside each array lies an index: with what its features were computed, and the digest of what each
row holds. So images that were added to a folder do not make the features of the others worthless.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.workspace.files.atomic_files import storage_errors, write_text
from patchline.pipeline.workspace.files.earlier_rows import EarlierResult
from patchline.pipeline.workspace.files.resumable_array import ResumableArray

_SUFFIX = ".images.json"


def feature_array(folder: Path, name: str, shape: tuple[int, int]) -> ResumableArray:
    """Return the array (N, D) of this name.

    Args:
        folder: of the array; `ResumableArray.begin` needs it to exist.
        name: identifies the rows and what they are computed with.
        shape: N and D, not 0.
    """
    return ResumableArray(folder / f"{name}.npy", shape, np.float32, "stored features")


def write_index(
    array: ResumableArray, computed_with: Sequence[Any], contents: Sequence[str]
) -> None:
    """Write the index of an array, unless it is there.

    Args:
        array: its name is unique for these images and what they were computed with.
        computed_with: all that decides the features of an image, as JSON values.
        contents: digest of what each row holds.
    """
    file = array.file.with_suffix(_SUFFIX)
    if not file.exists():
        with storage_errors(file):
            index = {"with": list(computed_with), "contents": list(contents)}
            write_text(file, json.dumps(index))


def earlier_features(
    own: Path, computed_with: Sequence[Any], dimensions: int
) -> Iterator[EarlierResult]:
    """Yield the arrays of features in the folders beside one, the latest first.

    Args:
        own: the folder that lies beside those to search.
        computed_with: as for `write_index`.
        dimensions: D.
    """
    for file in _newest_first(own):
        contents = _contents(file, list(computed_with))
        if contents:
            name = file.name.removesuffix(_SUFFIX)
            array = feature_array(file.parent, name, (len(contents), dimensions))
            yield EarlierResult(contents, array.finished, array.mapped)


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
