"""A registered model in a Python program: images in, a table out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from PIL import Image as PillowImage

from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.packaged_model import PackagedModel, images_of
from patchline.pipeline.packaging.prediction.image_files import (
    ImageFile,
    check_images,
    find_images,
    pixels_of,
)

if TYPE_CHECKING:
    import pandas as pd

Image = str | Path | bytes | np.ndarray[Any, Any] | PillowImage.Image
"""A path, the bytes of an image file, an array of uint8 (H, W, C), among others (H, W) too, or a
Pillow image."""
OnBroken = Literal["raise", "mark"]
_BATCH = 64


class _Named(NamedTuple):
    name: str | int
    """The path of a file; the position of anything else."""
    image: object


class Model:
    """One version of a registered model; it runs on ONNX Runtime and needs no torch.

    Args:
        name: the registered model's name.
        version: the number of the version.
        package: the version's package.
    """

    def __init__(self, name: str, version: str, package: PackagedModel) -> None:
        self.name = name
        self.version = version
        self.classes = tuple(package.classes)
        self._package = package
        package.keeps_outputs = True

    def __repr__(self) -> str:
        """Return what it is, such as `Model(flowers/3, 5 classes)`."""
        return f"Model({self.name}/{self.version}, {len(self.classes)} classes)"

    def predict(
        self,
        images: Image | Iterable[Image],
        *,
        errors: OnBroken = "raise",
        coverage: float | None = None,
    ) -> pd.DataFrame:
        """Label one image or several.

        Args:
            images: a path, the bytes of an image file, a NumPy array of uint8 with axes (height,
                width, channels), 1 or 3 channels, a Pillow image, or any number of these. The path
                of a folder or an archive stands for every file in it. An array with four axes is a
                batch of images; one with one axis or two holds the bytes of a file or of several,
                but in a list one with two axes is an image in grey.
            errors: what to do about an image that cannot be read: `raise` an error that names it,
                or `mark` its row: no label, no probabilities, and the reason in a column `error`.
            coverage: probability that a prediction set holds the true class; by default the one
                that the model was packaged with (`evaluation.coverage`).

        Returns:
            One row for each image, in order, with the columns `label`, `probability`, one column of
            probabilities for each class, `set` (the classes that the image may be of; None if the
            package does not know), `coverage` (how often a set holds the true class) and `warnings`
            (a list of objects with `kind` and `message`). Of a multi-label model the first column
            is `labels`, a list of names, the most probable first; `label` is the first of them,
            None if there is none. The table's `attrs["unchecked"]` lists the kinds of warnings that
            the model has no limit for, so that their absence means nothing.
            The index `image` holds the path of a file, or the position of anything else. The column
            of a class that is itself called like another column, such as `label`, is called
            `class label`.

        Raises:
            DataError: if a path does not exist, or, unless marked, an image cannot be read.
        """
        if errors not in ("raise", "mark"):
            raise ConfigError(f"errors is {errors!r}, but must be 'raise' or 'mark'.")
        named = _name_images(_as_iterable(images))
        names, answers = list[Any](), list[dict[str, Any]]()
        for batch in _batches(named):
            names += [each.name for each in batch]
            answers += self._answered(batch, errors, coverage)
        outside = self._package.fits.words()
        if outside:
            warnings.warn(outside, stacklevel=2)
        return self._table(names, answers, marked=errors == "mark")

    def _answered(
        self, batch: Sequence[_Named], errors: OnBroken, coverage: float | None
    ) -> list[dict[str, Any]]:
        """Return the answers for a batch, which is predicted at once, as the command does."""
        decoded: list[np.ndarray[Any, Any] | str] = []
        for each in batch:
            try:
                decoded.append(self._pixels(each.image))
            except UndecodableImageError as error:
                if errors == "raise":
                    raise DataError(_unreadable(each.name, str(error))) from None
                decoded.append(str(error))
        answers = self._package.answers_to(decoded, 1, coverage=coverage)
        for answer in answers:
            if not answer["error"]:  # the features of many images take much memory
                answer["outputs"] = answer["outputs"][:1]
        return answers

    def _pixels(self, image: object) -> np.ndarray[Any, Any]:
        if isinstance(image, ImageFile):
            return pixels_of(self._package, image)
        if isinstance(image, PillowImage.Image):
            return self._package.opened_pixels(image)
        if isinstance(image, np.ndarray) and image.ndim == 2:  # noqa: PLR2004 - H, W
            image = image[:, :, None]  # among images it can be no tensor of files
        return self._package.pixels(image)

    def _table(
        self, names: Sequence[Any], answers: Sequence[dict[str, Any]], *, marked: bool
    ) -> pd.DataFrame:
        import pandas as pd

        none_K = np.full(len(self.classes), np.nan, np.float32)
        rows = [none_K if each["error"] else each["outputs"][0] for each in answers]
        probabilities_NK = np.stack(rows) if rows else np.empty((0, len(self.classes)), np.float32)
        index = pd.Index(names, name="image", dtype=object)
        columns: dict[str, Any] = {}
        if self._package.is_multi_label:
            given = [
                None if each["error"] else [label["label"] for label in each["labels"]]
                for each in answers
            ]
            columns["labels"] = pd.Series(given, dtype=object).to_numpy()
        columns["label"] = [each["label"] for each in answers]
        columns["probability"] = np.array([each["probability"] for each in answers], np.float64)
        if marked:
            columns["error"] = [each["error"] for each in answers]
        said = {
            "set": pd.Series([each["set"] for each in answers], index, object),
            "coverage": [None if each["error"] else each["coverage"] for each in answers],
            "warnings": pd.Series([each["warnings"] for each in answers], index, object),
        }
        taken = {"error", *columns, *said}
        of_classes = [f"class {name}" if name in taken else name for name in self.classes]
        parts = [
            pd.DataFrame(columns, index=index),
            pd.DataFrame(probabilities_NK, index=index, columns=of_classes),
            pd.DataFrame(said, index=index).astype({"coverage": np.float64}),
        ]
        table = pd.concat(parts, axis=1)  # a join would multiply repeated paths
        table.attrs["unchecked"] = list(self._package.judge.unchecked)
        return table


def _as_iterable(images: Image | Iterable[Image]) -> Iterable[Image]:
    if isinstance(images, np.ndarray):
        return list(images.ravel()) if images.dtype.kind in "OU" else images_of(images)
    if isinstance(images, str | Path | bytes | PillowImage.Image):
        return [images]
    if not isinstance(images, Iterable):
        raise DataError(
            f"A {type(images).__name__} is not an image. Give paths, NumPy arrays or Pillow images."
        )
    return images


def _name_images(images: Iterable[Image]) -> Iterator[_Named]:
    for position, image in enumerate(images):
        if isinstance(image, str | Path):
            check_images([Path(image)])
            for file in find_images([Path(image)]):
                yield _Named(file.name, file)
        else:
            yield _Named(position, image)


def _batches(named: Iterator[_Named]) -> Iterator[list[_Named]]:
    while batch := list(islice(named, _BATCH)):
        yield batch


def _unreadable(name: str | int, reason: str) -> str:
    which = f"The image at position {name}" if isinstance(name, int) else name
    return (
        f"{which} could not be read: {reason}. Leave it out, or pass errors='mark' to predict the "
        "other images."
    )
