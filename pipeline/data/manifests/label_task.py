"""Whether data has one label for each image or a set of them, and listings of the other kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from patchline.pipeline.errors import DataError
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.plugin_api import ImageListing, ListedImage

AUTO = "auto"
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
        DataError: if one label is asked for, and an image has none or several.
    """
    if task in (AUTO, task_of(listing)):
        return listing
    if task == MULTI_LABEL:
        images = [
            image._replace(label="", labels=(image.label,)) if image.label else image
            for image in listing.images
        ]
        return replace(listing, images=images)
    others = [image for image in listing.images if len(image.labels or ()) != 1]
    if others:
        first = others[0]
        labels = ", ".join(first.labels or ()) or "none"
        raise DataError(
            f"data.task is {SINGLE_LABEL}, but {len(others):,} of {len(listing.images):,} images "
            f"have no or several labels ({first.path}: {labels}). Leave data.task out, or correct "
            "the labels."
        )
    images = [
        image._replace(label=(image.labels or ("",))[0], labels=None) for image in listing.images
    ]
    return replace(listing, images=images)
