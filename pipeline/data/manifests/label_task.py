"""Whether data has one label for each image or a set of them, and listings of the other kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.errors import DataError
from patchline.plugin_api import ImageListing, LeftOutFile, ListedImage

_NO_LABEL = "has no label"
_NAMED = 3


def task_of(listing: ImageListing) -> Task:
    """Return what a model of a listing answers."""
    return MULTI_LABEL if listing.is_multi_label else SINGLE_LABEL


def is_labelled(image: ListedImage) -> bool:
    """Return whether the labels of an image are known; an empty set is known."""
    return bool(image.label) or image.labels is not None


def with_task(listing: ImageListing, task: Literal["auto"] | Task) -> ImageListing:
    """Return a listing of the kind that `data.task` asks for.

    Args:
        listing: with one label for each image, or with sets.
        task: `data.task`; auto leaves the listing as it is.

    Raises:
        DataError: if one label is asked for, and an image has several. One without a label is left
            out, as in any data of one label.
    """
    if task in (AUTO, task_of(listing)):
        return listing
    if task == MULTI_LABEL:
        images = [
            image._replace(label="", labels=(image.label,)) if image.label else image
            for image in listing.images
        ]
        return replace(listing, images=images)
    several = [image for image in listing.images if len(image.labels or ()) > 1]
    if several:
        first = several[0]
        labels = ", ".join(first.labels or ())
        raise DataError(
            f"data.task is {SINGLE_LABEL}, but {len(several):,} of {len(listing.images):,} images "
            f"have several labels ({first.path}: {labels}). Leave data.task out, or correct the "
            "labels."
        )
    places = [place for place, image in enumerate(listing.images) if image.labels]
    images = [
        image._replace(label="".join(image.labels or ()), labels=None)
        for image in (listing.images[place] for place in places)
    ]
    without = [image.path for image in listing.images if not image.labels]
    columns = {name: [of[place] for place in places] for name, of in listing.columns.items()}
    left_out = [
        *listing.left_out,
        *(LeftOutFile(path, _NO_LABEL, "foreign") for path in without),
    ]
    return replace(listing, images=images, left_out=left_out, columns=columns)
