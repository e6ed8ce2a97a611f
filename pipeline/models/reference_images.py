"""What a version computes for validation and test images, kept to compare later images with.

A package holds it beside `model.json`. `patchline monitor` compares what arrives with it; nothing
else reads it, so a copy of a package may leave it out.

Shapes: M reference images, K classes or labels, D features.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.workspace.files.atomic_files import open_replacing

Array = np.ndarray[Any, Any]
REFERENCE_IMAGES_FILE = "reference_images.npz"
"""In the folder of the report; packages have it beside `model.json`."""
_LARGEST = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class ReferenceImages:
    """Validation and test images as a version sees them.

    None of them was used to fit the weights; the validation images chose among them.

    Attributes:
        probabilities_MK: the calibrated probabilities, float16.
        features_MD: float16, the input of the model's head; D is 0 if they are not known.
        labels: the index of each image's label (M); of a multi-label model, 1 where an image has a
            label, else 0 (M, K).
        is_test_M: whether an image is a test image; otherwise it is a validation image.
        sha256: digest of each file in hexadecimal.
        paths: the path of each file, relative to the data's folder.
        why_no_features: the reason why the features are not known, if so.
        units_M: a number for each image, equal for near duplicates and for images of a group; None
            if it is not known, as in a package of an earlier Patchline.
        are_alike: whether most are near duplicates of others beyond their groups, so that these do
            not tell which images are independent; `units_M` has the groups alone then.
    """

    probabilities_MK: Array
    features_MD: Array
    labels: Array
    is_test_M: Array
    sha256: tuple[str, ...]
    paths: tuple[str, ...]
    why_no_features: str = ""
    units_M: Array | None = None
    are_alike: bool = False

    def __len__(self) -> int:
        """Return M."""
        return len(self.probabilities_MK)

    @property
    def has_features(self) -> bool:
        """Whether features are known."""
        return bool(self.features_MD.shape[1])

    def of(self, rows: Array) -> ReferenceImages:
        """Return some of the images."""
        return replace(
            self,
            probabilities_MK=self.probabilities_MK[rows],
            features_MD=self.features_MD[rows],
            labels=self.labels[rows],
            is_test_M=self.is_test_M[rows],
            sha256=tuple(self.sha256[row] for row in rows),
            paths=tuple(self.paths[row] for row in rows),
            units_M=None if self.units_M is None else self.units_M[rows],
        )


def as_kept(values: Array) -> Array:
    """Return values as they are kept, float16; those of later images are rounded the same way."""
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float16)


def feature_rows(positions: Sequence[int], features: Mapping[int, Array]) -> list[int]:
    """Return those of the positions that have features; all of them if none has any."""
    return [each for each in positions if each in features] or list(positions)


def save_reference_images(reference: ReferenceImages, file: Path) -> None:
    """Write them as a package has them."""
    words = {
        "sha256": list(reference.sha256),
        "paths": list(reference.paths),
        "why_no_features": reference.why_no_features,
        "are_alike": reference.are_alike,
    }
    units = {} if reference.units_M is None else {"units": reference.units_M.astype(np.int64)}
    with open_replacing(file) as opened:
        np.savez(
            opened,
            allow_pickle=False,
            probabilities=as_kept(reference.probabilities_MK),
            features=as_kept(reference.features_MD),
            labels=reference.labels,
            is_test=reference.is_test_M.astype(bool),
            **units,
            words=np.frombuffer(json.dumps(words).encode(), np.uint8),
        )


def load_reference_images(file: Path) -> ReferenceImages | None:
    """Return the images of a package; None if it holds none.

    Raises:
        ModelReferenceError: if the file cannot be read.
    """
    if not file.is_file():
        return None
    try:
        with np.load(file, allow_pickle=False) as stored:
            words = json.loads(stored["words"].tobytes())
            return ReferenceImages(
                probabilities_MK=stored["probabilities"],
                features_MD=stored["features"],
                labels=stored["labels"],
                is_test_M=stored["is_test"],
                sha256=tuple(words["sha256"]),
                paths=tuple(words["paths"]),
                why_no_features=words["why_no_features"],
                units_M=stored.get("units"),
                are_alike=words.get("are_alike", False),
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ModelReferenceError(
            f"The package's file {file.name} is damaged ({type(error).__name__}). Restore it, or "
            "train and register the model again."
        ) from error
