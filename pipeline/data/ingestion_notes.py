"""What a person should know about the files of a source: what is left out, too few or missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.class_names import suspicions
from patchline.pipeline.data.labels.label_sets import (
    LabelPairs,
    Task,
    by_task,
    decode_labels,
    label_pairs,
)
from patchline.pipeline.data.manifests.left_out import list_left_out, note
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, units_of
from patchline.pipeline.data.manifests.source_listing import task_of
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.plugin_api import ImageListing

logger = logging.getLogger(__name__)

_NAMED_FILES = 20
_FEW_IMAGES = 50
_MANY_HELD_OUT, _MORE_THAN_ASKED = 0.4, 0.1
"""Shares of the images that are worth a word."""
_FEW_UNITS = 6
"""Images or groups of a class, of which one in each split is far from its share."""
_FEW_OF_ONE = 3
"""Images of a class in one group, with fewer of which nothing is said."""


def notes_on_files(manifest: pd.DataFrame) -> list[str]:
    """Name the files that are left out, a line for each cause."""
    notes = []
    for part in list_left_out(manifest):
        for path, reason in zip(part.rows["path"], part.rows["reason"], strict=True):
            logger.debug("left out %s: %s", path, reason)
        notes.append(note(part, _NAMED_FILES))
    return notes


def notes_on_classes(counts: Mapping[str, int]) -> list[str]:
    """Say what looks wrong about the names of the classes, one line for each suspicion."""
    return [f"warning: {each.sentence}. {each.remedy}" for each in suspicions(counts)]


def notes_on_size(rows: pd.DataFrame) -> list[str]:
    """Say what follows from few validation or test images."""
    counts = rows["split"].value_counts()
    words = {
        "validation": "the best epoch and the calibration vary a lot",
        "test": "the test metrics are imprecise",
    }
    return [
        f"only {counted(int(counts[split]), f'{split} image')}: {meaning}"
        for split, meaning in words.items()
        if counts[split] < _FEW_IMAGES
    ]


def notes_on_held_out(rows: pd.DataFrame, fractions: Mapping[str, float], task: Task) -> list[str]:
    """Say that far more images are held out than the settings ask for, and why.

    Args:
        rows: the usable images, with their splits.
        fractions: the splits that the source does not give, with their shares.
        task: whether an image has one class, or a set of labels.
    """
    own = rows[rows["split"].isin(["train", *fractions])]
    counts, asked = own["split"].value_counts(), sum(fractions.values())
    held = {split: int(counts.get(split, 0)) for split in fractions}
    share = sum(held.values()) / max(1, len(own))
    if share <= max(_MANY_HELD_OUT, asked + _MORE_THAN_ASKED):
        return []
    pairs, one = label_pairs(own["label"], task), by_task(task).one
    units = pd.Series(units_of(own)[pairs.images]).groupby(pairs.labels).nunique()
    fewest = int(units.median()) if len(units) else 0
    what = "group" if (column_of(own, GROUP) != "").any() else "different image"
    why = "groups are not divided, and no image changes its split"
    if fewest <= _FEW_UNITS:
        most = counted(fewest, what)
        why = f"each {one} has one in every split, and half of them have at most {most}"
    note = (
        f"{sum(held.values()):,} of {len(own):,} images are held out "
        f"({' and '.join(f'{count:,} for {split}' for split, count in held.items())}), where the "
        f"settings ask for {asked:.0%}: {why}; training.final_model refit and training.folds also "
        "train on the validation images"
    )
    return [note]


class DominantGroup(NamedTuple):
    """A group that most images of several classes belong to."""

    classes: tuple[str, ...]
    sentence: str


def dominant_groups(rows: pd.DataFrame, task: Task) -> list[DominantGroup]:
    """Return the groups, such as a patient, that hold most images of at least two classes each.

    Args:
        rows: the usable images.
        task: whether an image has one class, or a set of labels.
    """
    pairs, words = label_pairs(rows["label"], task), by_task(task)
    groups = column_of(rows, GROUP).to_numpy(str)[pairs.images]
    table = pd.DataFrame({"label": np.array(pairs.names, object)[pairs.labels], "group": groups})
    counts = table.value_counts(sort=False).reset_index(name="count")
    counts["share"] = counts["count"] / counts.groupby("label")["count"].transform("sum")
    is_most = (counts["group"] != "") & (counts["share"] > 1 / 2) & (counts["count"] >= _FEW_OF_ONE)
    found = []
    for group, own in counts[is_most].groupby("group"):
        if len(own) > 1:
            shares = zip(own["label"], own["share"], strict=True)
            named = few_names(f"{label} ({share:.0%})" for label, share in shares)
            sentence = (
                f"group '{group}' holds most images of {len(own):,} {words.several}: {named}; a "
                f"group stays in one split, so these {words.several} are mostly trained on that "
                "group alone, or mostly tested on it"
            )
            found.append(DominantGroup(tuple(own["label"]), sentence))
    return found


def empty_classes(manifest: pd.DataFrame, listing: ImageListing) -> list[str]:
    """Return the classes whose folders have no image, or labels on no image, sorted."""
    labelled = manifest[manifest["label"] != ""]
    foreign = labelled["status"] == "foreign"
    task = task_of(listing)
    with_images = label_pairs(labelled.loc[~foreign, "label"], task).names
    without = set(label_pairs(labelled.loc[foreign, "label"], task).names) - set(with_images)
    return sorted({*listing.empty_classes, *without})


def notes_on_empty_classes(manifest: pd.DataFrame, listing: ImageListing) -> list[str]:
    """Name the classes without images; the model will not know them."""
    empty = empty_classes(manifest, listing)
    if not empty:
        return []
    words = by_number(len(empty), "class has", "classes have") + " no image"
    if listing.is_multi_label:
        words = by_number(len(empty), "label is", "labels are") + " on no image"
    return [f"{len(empty)} {words}: {few_names(empty, _NAMED_FILES)}"]


FEW_POSITIVES = 10
"""Images with a label, or without it, below which little can be learned or said about it."""


class Rare(NamedTuple):
    """Labels that are too rare, or too frequent, and that in a sentence without its full stop."""

    names: list[str]
    sentence: str


def notes_on_sets(rows: pd.DataFrame, pairs: LabelPairs) -> list[str]:
    """Return the task, images without labels, and labels with few images, or on nearly all.

    That a set of frequent labels is rare is not said: of 6 labels, there are 64 sets.

    Args:
        rows: the usable images of multi-label data.
        pairs: the labels of these images, one entry for each label of each image.
    """
    count = len(rows)
    sizes = np.bincount(pairs.images, minlength=count)
    task = f"several labels for each image: {sizes.mean():.1f} on average, at most {sizes.max()}"
    rare = (
        few_positives(pairs, len(rows)),
        few_negatives(pairs, len(rows)),
    )
    return [task, *_without(sizes, rows["path"]), *(each.sentence for each in rare if each)]


def set_words(text: str) -> str:
    """Return a set of labels as a person reads it: `circle + red`."""
    return " + ".join(decode_labels(text)) or "no label"


def few_positives(pairs: LabelPairs, images: int) -> Rare | None:
    """Return the labels that are on few images; None if there are none.

    Args:
        pairs: the labels of the images, one entry for each label of each image.
        images: the number of all images.
    """
    counts = pairs.counts()
    few = [name for name, count in counts.items() if count < min(FEW_POSITIVES, images)]
    if not few:
        return None
    few.sort(key=lambda name: (counts[name], name))
    named = few_names(f"{name} ({counts[name]})" for name in few)
    return Rare(
        few,
        f"{counted(len(few), 'label')} {by_number(len(few), 'is', 'are')} on fewer than "
        f"{FEW_POSITIVES} images, so little can be learned or said about "
        f"{by_number(len(few), 'it', 'them')}: {named}",
    )


def few_negatives(pairs: LabelPairs, images: int) -> Rare | None:
    """Return the labels that are on nearly every image; None if there are none."""
    without = {name: images - count for name, count in pairs.counts().items()}
    few = sorted(name for name, count in without.items() if count < min(FEW_POSITIVES, images / 2))
    if not few:
        return None
    named = few_names(f"{name} (not on {without[name]})" for name in few)
    return Rare(
        few,
        f"{counted(len(few), 'label')} {by_number(len(few), 'is', 'are')} on nearly every "
        f"image, so there is little to tell apart: {named}",
    )


def _without(sizes: np.ndarray[Any, np.dtype[np.int64]], paths: pd.Series[str]) -> list[str]:
    without = np.flatnonzero(sizes == 0)
    if not len(without):
        return []
    words = by_number(len(without), "image has no label", "images have no label")
    return [f"{len(without):,} {words}: {few_names(paths.iloc[without], 3)}"]
