"""Which new images and which reference images are independent, and what is not known about it.

Shapes: M reference images, N images.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.answer_columns import NEAR
from patchline.pipeline.data.near_duplicates.search import (
    LEAST_SIDE,
    ComparedPictures,
    Progress,
    groups_alone,
    one_of_each,
)
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.registry.version_records import VersionRecords
from patchline.pipeline.terminal_words import counted

Array = np.ndarray[Any, Any]


class Independence(NamedTuple):
    """What the tests of a check may count as evidence of its own."""

    places: Array
    """Of one new image of each unit, in ascending order."""
    unknown: tuple[str, ...]
    """What is not known about it; with any, false alarms may be more frequent than stated."""


def independent_reference(reference: ReferenceImages) -> ReferenceImages:
    """Return one reference image of each unit; all of them if these are not known."""
    if reference.units_M is None:
        return reference
    return reference.of(one_of_each(reference.units_M, reference.sha256))


def independent_images(
    keys: Sequence[str],
    groups: Sequence[str],
    pictures: ComparedPictures,
    records: VersionRecords,
    reference: ReferenceImages,
    on_progress: Progress,
) -> Independence:
    """Return one new image of each unit: of near duplicates, and of the images of a group.

    Args:
        keys: of the images.
        groups: of the images; empty where there is none.
        pictures: of the images, as far as they are there.
        records: of the version.
        reference: of the version.
        on_progress: called while the images are compared.
    """
    if reference.are_alike:
        units_N = groups_alone(groups)
    else:
        units_N = pictures.units(keys, groups, on_progress)
    unknown = tuple(_unknown(keys, groups, pictures, records, reference))
    return Independence(one_of_each(units_N, keys), unknown)


def _unknown(
    keys: Sequence[str],
    groups: Sequence[str],
    pictures: ComparedPictures,
    records: VersionRecords,
    reference: ReferenceImages,
) -> Iterator[str]:
    """Yield what is not known about the independence of the images."""
    lacking, small = pictures.lacking(keys), pictures.too_small(keys)
    if reference.are_alike:
        yield (
            "whether new images are near duplicates, because most reference images are near "
            "duplicates of each other"
        )
        lacking = small = 0
    if lacking:
        yield (
            f"whether {counted(lacking, 'new image')} are near duplicates, because no picture of "
            "them was recorded (patchline serve --record-images)"
        )
    if small:
        yield (
            f"whether {counted(small, 'new image')} are near duplicates, because they have fewer "
            f"than {LEAST_SIDE} pixels on a side"
        )
    if reference.units_M is None:
        yield (
            "whether reference images are near duplicates, because an earlier Patchline made the "
            "package (train and register the model again)"
        )
    if _are_grouped(records) and not any(groups):
        yield "which new images belong to one group, as images of the training data do"


def _are_grouped(records: VersionRecords) -> bool:
    """Return whether images of the training data come in groups that the source gives."""
    if records.manifest is None:
        return False
    groups = records.manifest["group"].fillna("").astype(str)
    return bool(((groups != "") & ~groups.str.startswith(NEAR)).any())
