"""Manifests of images that nobody has to write, and their splits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import encode_labels
from patchline.pipeline.data.splits.split import assign


def table(labels: Sequence[str], **columns: Sequence[str] | None) -> pd.DataFrame:
    """Return a manifest of good images; by default each has a content of its own.

    Args:
        labels: of the images.
        columns: `contents`, and of the manifest `split`, `group` and `pixels`.
    """
    names = [f"{number:05d}.png" for number in range(len(labels))]
    found = pd.DataFrame({"path": names, "label": list(labels), "status": "ok"})
    contents = columns.pop("contents", None) or found["label"] + "/" + found["path"]
    found["sha256"] = [hashlib.sha256(content.encode()).hexdigest() for content in contents]
    for name in ("split", "group", "pixels"):
        found[name] = list(columns.get(name) or [""] * len(labels))
    return found


def labels_of(classes: int, images: int) -> list[str]:
    """Return the labels of a balanced data set."""
    return [f"class {number}" for number in range(classes) for _ in range(images)]


def random_sets(
    images: int, labels: int = 6, seed: int = 0, shares: tuple[float, float] = (0.5, 0.05)
) -> list[str]:
    """Return sets in which some labels are frequent, some rare, and one implies another."""
    drawn = np.random.default_rng(seed).random((images, labels)) < np.geomspace(*shares, labels)
    drawn[:, 0] |= drawn[:, -1]
    return [encode_labels(f"l{number}" for number in np.flatnonzero(row)) for row in drawn]


def assigned(
    manifest: pd.DataFrame, seed: int = 0, share: float = 0.15, **options: Any
) -> tuple[pd.DataFrame, list[str]]:
    """Return the manifest with its splits, and the notes."""
    return assign(manifest, validation_fraction=share, test_fraction=share, seed=seed, **options)


def by_content(manifest: pd.DataFrame) -> dict[str, str]:
    """Return the split of each content."""
    return dict(zip(manifest["sha256"], manifest["split"], strict=True))
