"""Which unlabelled images are copies of labelled ones, or of each other.

A copy of a validation or test image would be leakage, as between splits. A copy of a training image
says nothing new: its label is known. A copy of an excluded image is not wanted either.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.manifests.exclusion import STATUS
from patchline.pipeline.data.manifests.manifest import examples, usable
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, content_numbers
from patchline.pipeline.terminal_words import by_number, counted

Array = np.ndarray[Any, Any]

_HELD_OUT = ("validation", "test")
COPY, GROUPED, NEAR, KNOWN, EXCLUDED, TWICE = (
    "copies of validation or test images",
    "in groups of validation or test images",
    "near duplicates of validation or test images",
    "copies of training images",
    "copies of excluded images",
    "copies of other unlabelled images",
)
"""Why an unlabelled image is left out."""
_ONE = {
    COPY: "is a copy of a validation or test image",
    GROUPED: "is in a group of validation or test images",
    NEAR: "is a near duplicate of a validation or test image",
    KNOWN: "is a copy of a training image",
    EXCLUDED: "is a copy of an excluded image",
    TWICE: "is a copy of another unlabelled image",
}
LEAKING = (COPY, GROUPED, NEAR)
_REASONS = (*LEAKING, KNOWN, EXCLUDED, TWICE)


def without_copies(
    unlabelled: pd.DataFrame, manifest: pd.DataFrame, near: tuple[Array, Array] | None = None
) -> pd.DataFrame:
    """Return the manifest of the unlabelled images with all copies excluded, each with its reason.

    Args:
        unlabelled: of all files.
        manifest: of the labelled images, with their splits, and of those that are excluded.
        near: a number for each usable unlabelled image (U,) and for each usable labelled one (N,),
            equal for images that nearly show the same; None if that was not searched for.
    """
    rows, labelled = unlabelled[unlabelled["status"] == "ok"], usable(manifest)
    excluded = manifest[manifest["status"] == STATUS]
    numbers_U, numbers_N, numbers_X = (
        each.to_numpy() for each in content_numbers(rows, labelled, excluded)
    )
    held_out_N = labelled["split"].isin(_HELD_OUT).to_numpy()
    groups_U, groups_N = column_of(rows, GROUP), column_of(labelled, GROUP)
    groups = set(groups_N[held_out_N]) - {""}
    reasons = np.full(len(rows), "", dtype=object)
    tests = {
        TWICE: pd.Series(numbers_U).duplicated().to_numpy(),
        EXCLUDED: np.isin(numbers_U, numbers_X),
        KNOWN: np.isin(numbers_U, numbers_N[~held_out_N]),
        NEAR: np.isin(near[0], near[1][held_out_N]) if near else np.zeros(len(rows), np.bool_),
        GROUPED: groups_U.isin(groups).to_numpy(),
        COPY: np.isin(numbers_U, numbers_N[held_out_N]),
    }
    for reason, is_so_U in tests.items():  # the last one counts
        reasons[is_so_U] = reason
    result, copies = unlabelled.copy(), rows.index[reasons != ""]
    result.loc[copies, "reason"] = reasons[reasons != ""]
    result.loc[copies, "status"] = STATUS
    return result


def left_out_copies(manifest: pd.DataFrame) -> dict[str, list[str]]:
    """Return the paths of the unlabelled images that `without_copies` has excluded, by reason."""
    excluded = manifest[manifest["status"] == STATUS]
    paths = {why: list(excluded.loc[excluded["reason"] == why, "path"]) for why in _REASONS}
    return {reason: found for reason, found in paths.items() if found}


def copied_held_out(manifest: pd.DataFrame, labelled: pd.DataFrame) -> list[str]:
    """Return the paths of the validation and test images that are among the unlabelled ones.

    Args:
        manifest: as `without_copies` has returned it.
        labelled: the usable rows of the other manifest, with their splits.
    """
    copies = manifest[manifest["reason"] == COPY]
    numbers_C, numbers_N = (each.to_numpy() for each in content_numbers(copies, labelled))
    held_out_N = labelled["split"].isin(_HELD_OUT).to_numpy()
    return list(labelled.loc[held_out_N & np.isin(numbers_N, numbers_C), "path"])


def notes_on_copies(copies: dict[str, list[str]]) -> list[str]:
    """Name the unlabelled images that were left out, a line for each reason."""
    return [_note(reason, paths) for reason, paths in copies.items()]


def _note(reason: str, paths: list[str]) -> str:
    number = len(paths)
    follows = ""
    if reason in LEAKING:
        follows = f", so training on {by_number(number, 'it', 'them')} would be leakage,"
    elif reason == KNOWN:
        follows = f", {by_number(number, 'whose label is', 'whose labels are')} known,"
    return (
        f"{counted(number, 'unlabelled image')} {by_number(number, _ONE[reason], f'are {reason}')}"
        f"{follows} and {by_number(number, 'was', 'were')} left out: {examples(paths)}"
    )
