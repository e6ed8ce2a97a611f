"""The features of some images in a file, by their row in the store; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.workspace.files.atomic_files import open_replacing

Array = np.ndarray[Any, Any]


def save_features(file: Path, features: Mapping[int, Array]) -> None:
    """Write the features (D) of some images, by their row."""
    rows, values = list(features), np.stack(list(features.values())).astype(np.float32)
    with open_replacing(file) as opened:
        np.savez(opened, allow_pickle=False, rows=np.array(rows, np.int64), features=values)


def load_features(file: Path) -> dict[int, Array]:
    """Return the features (D) of some images, by their row; none if there is no such file."""
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as stored:
        return dict(zip(stored["rows"].tolist(), stored["features"], strict=True))
