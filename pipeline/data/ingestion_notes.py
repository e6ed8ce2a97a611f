"""What a person should know about the files of a source: left out, too few, missing classes."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pandas as pd

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.label_task import task_of
from patchline.pipeline.data.manifests.left_out import left_out, note
from patchline.pipeline.labels.class_names import suspicions
from patchline.pipeline.labels.label_pairs import label_pairs
from patchline.pipeline.terminal_words import by_number, counted
from patchline.plugin_api import ImageListing

logger = logging.getLogger(__name__)

_NAMED_FILES = 20
_FEW_IMAGES = 50


def notes_on_files(manifest: pd.DataFrame) -> list[str]:
    """Name the files that are left out, a line for each cause."""
    notes = []
    for part in left_out(manifest):
        for path, reason in zip(part.rows["path"], part.rows["reason"], strict=True):
            logger.debug("left out %s: %s", path, reason)
        notes.append(note(part, _NAMED_FILES))
    return notes


def notes_on_classes(counts: Mapping[str, int]) -> list[str]:
    """Say what looks wrong about the names of the classes, one line for each suspicion."""
    return [f"{each.sentence}. {each.remedy}" for each in suspicions(counts)]


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


def empty_classes(manifest: pd.DataFrame, listing: ImageListing) -> list[str]:
    """Return the classes whose folders have no image, or labels on no image, sorted."""
    labelled = manifest[manifest["label"] != ""]
    foreign = labelled["status"] == "foreign"
    task = task_of(listing)
    with_images = label_pairs(labelled.loc[~foreign, "label"], task).names
    without = set(label_pairs(labelled.loc[foreign, "label"], task).names) - set(with_images)
    return sorted({*listing.empty_classes, *without})


def notes_on_empty_classes(manifest: pd.DataFrame, listing: ImageListing) -> list[str]:
    """Name the class folders without images; the model will not know these classes."""
    empty = empty_classes(manifest, listing)
    if not empty:
        return []
    words = by_number(len(empty), "class folder has", "class folders have") + " no image"
    if listing.is_multi_label:
        words = by_number(len(empty), "label is", "labels are") + " on no image"
    return [f"{len(empty)} {words}: {manifests.examples(empty, _NAMED_FILES)}"]
