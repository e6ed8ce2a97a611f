"""Findings about images that occur more than once: duplicates, leakage, conflicting labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, content_numbers
from patchline.pipeline.data.splits.leakage import GROUP_OF_COPIES, augmented_photographs
from patchline.pipeline.evaluation.inspection.findings import Finding, Severity, finding_on_files
from patchline.pipeline.terminal_words import by_number, counted

Array = np.ndarray[Any, Any]
_BY_IMPORTANCE = {"test": 0, "validation": 1, "train": 2, "": 3}
"""Of several copies, the one in the first of these splits is kept."""


def findings_on_duplicates(
    rows: pd.DataFrame,
    given: pd.Series[str],
    near: Array,
    *,
    grouped: bool = False,
    task: Task = SINGLE_LABEL,
) -> list[Finding]:
    """Return the exact and near duplicates, those in several splits, and those with two labels.

    Args:
        rows: the usable images with their splits, indexed from 0.
        given: the splits that the source fixes.
        near: a number for each row, equal for images that are nearly the same.
        grouped: whether the groups of the rows keep these together.
        task: whether an image has one class, or a set of labels.
    """
    exact = content_numbers(rows)[0]
    nearly = pd.Series(near.astype(int), index=rows.index, dtype="int64")
    return [
        *_leakage(rows, given, exact, nearly),
        *_conflicts(rows, exact, nearly, task),
        *_exact(rows, exact),
        *_near(rows, exact, nearly, grouped=grouped),
        *_augmented(rows),
    ]


def finding_on_unlabelled(copied: Sequence[str]) -> list[Finding]:
    """Return the validation and test images of which copies are among `data.unlabelled`."""
    if not copied:
        return []
    are = (
        f"{counted(len(copied), 'validation or test image')} {by_number(len(copied), 'is', 'are')}"
    )
    summary = f"{are} among the images of data.unlabelled, too."
    action = "Leaves the unlabelled copies out: to train on them would be leakage."
    return [finding_on_files("leakage", "note", copied, summary, action)]


def _exact(rows: pd.DataFrame, exact: pd.Series[Any]) -> list[Finding]:
    places = _shared(exact)
    if not places.any():
        return []
    groups = _groups(rows, exact, places)
    extra = int(places.sum()) - len(groups)
    return [
        _finding(
            "exact_duplicate", "note", groups,
            f"{counted(places.sum(), 'image')} have the same pixels as another: {extra:,} "
            "more than needed.",
            "Trains on every copy, so these images count more than others. Exclude all but one.",
            exclude=_all_but_one(rows, exact, places),
        )
    ]  # fmt: skip


def _near(
    rows: pd.DataFrame, exact: pd.Series[Any], nearly: pd.Series[Any], *, grouped: bool
) -> list[Finding]:
    places = _several(exact, nearly)
    if not places.any():
        return []
    groups = _groups(rows, nearly, places)
    return [
        _finding(
            "near_duplicate", "note", groups,
            f"{counted(places.sum(), 'image')} in {counted(len(groups), 'group')} "
            "look like another image that was cropped, mirrored, rescaled or saved again.",
            "Keeps each group in one split, as data.group_near_duplicates says. Exclude all but "
            "one if they should not count more than others." if grouped else
            "Treats them as different images, which may get into different splits. Keep each group "
            "in one split with --data.group-near-duplicates, or exclude all but one.",
        )
    ]  # fmt: skip


def _augmented(rows: pd.DataFrame) -> list[Finding]:
    """Return copies that Roboflow has written of one photograph, as their names say."""
    photographs = augmented_photographs(rows)
    copies = pd.Series(rows.index.isin(photographs[_shared(photographs)].index), rows.index)
    if not copies.any():
        return []
    leaking = _several(rows["split"], photographs)
    apart = f", {leaking.sum():,} of them with a copy in another split"
    return [
        _finding(
            "augmented_copy", "warning" if leaking.any() else "note",
            _groups(rows, photographs, copies),
            f"{counted(int(copies.sum()), 'image')} are augmented copies of "
            f"{counted(photographs[copies].nunique(), 'photograph')}, as their names say"
            f"{apart if leaking.any() else ''}.",
            "Trains on every copy. Copies in several splits make the metrics optimistic. Exclude "
            "those outside the test split, or, where the data gives no splits, keep them in one: "
            f"--data.group-pattern '{GROUP_OF_COPIES}'."
            if leaking.any() else
            "Trains and evaluates on every copy, so these photographs count more than others.",
        )
    ]  # fmt: skip


def _leakage(
    rows: pd.DataFrame, given: pd.Series[str], exact: pd.Series[Any], nearly: pd.Series[Any]
) -> list[Finding]:
    grouped = column_of(rows, GROUP)
    groups = grouped.where(grouped != "")
    same = _several(rows["split"], exact)
    group = _several(rows["split"], groups)
    alike = _several(rows["split"], nearly)
    every = same | group | alike
    if not every.any():
        return []
    parts = [
        (same, "have the same pixels as an image of another split"),
        (group & ~same, "belong to a group that is in several splits"),
        (alike & ~same & ~group, "are near duplicates of an image of another split"),
    ]
    told = "; ".join(
        f"{counted(here.sum(), 'image')} {words}" for here, words in parts if here.any()
    )
    stops = bool((_several(given, exact) | _several(given, groups)).any())
    return [
        _finding(
            "leakage", "error" if stops else "warning",
            [*_groups(rows, exact, same), *_groups(rows, groups, group & ~same),
             *_groups(rows, nearly, alike & ~same & ~group)],
            f"{told}. The metrics on them are optimistic.",
            "Stops the run. Exclude those outside the test split, or accept it with "
            "--data.accept leakage." if stops else
            "Trains and evaluates as usual. Exclude those outside the test split.",
            exclude=(
                *_outside_test(rows, exact, same),
                *_outside_test(rows, groups, group),
                *_outside_test(rows, nearly, alike & ~same),
            ),
        )
    ]  # fmt: skip


def _conflicts(
    rows: pd.DataFrame, exact: pd.Series[Any], nearly: pd.Series[Any], task: Task
) -> list[Finding]:
    same = _several(rows["label"], exact)
    alike = _several(rows["label"], nearly) & ~same
    if not (same | alike).any():
        return []
    parts = [(same, "have the same pixels"), (alike, "look nearly the same")]
    other = "with other labels" if task == MULTI_LABEL else "of another class"
    told = "; ".join(
        f"{counted(here.sum(), 'image')} {words} as an image {other}"
        for here, words in parts
        if here.any()
    )
    return [
        _finding(
            "label_conflict", "warning",
            [*_groups(rows, exact, same), *_groups(rows, nearly, alike)],
            f"{told}.",
            "Trains on all of them, so the model learns contradictions. Correct the labels, or "
            "exclude the wrong ones.",
        )
    ]  # fmt: skip


def _shared(numbers: pd.Series[Any]) -> pd.Series[bool]:
    """Return which rows have a number that other rows have too."""
    return numbers.groupby(numbers).transform("size") > 1


def _several(values: pd.Series[Any], by: pd.Series[Any]) -> pd.Series[bool]:
    """Return which rows belong to a number with several values; a missing number is nobody's."""
    return values.groupby(by).transform("nunique") > 1


def _groups(
    rows: pd.DataFrame, numbers: pd.Series[Any], places: pd.Series[bool]
) -> list[tuple[str, ...]]:
    """Return the paths of the marked rows that have the same number, in manifest order."""
    paths = rows.loc[places, "path"]
    return [tuple(group) for _, group in paths.groupby(numbers[places], sort=False)]


def _all_but_one(
    rows: pd.DataFrame, numbers: pd.Series[Any], places: pd.Series[bool]
) -> tuple[str, ...]:
    """Return the copies that can go, unless they have conflicting labels: nobody knows which."""
    ordered = rows[places & ~_several(rows["label"], numbers)]
    ranks = ordered["split"].map(_BY_IMPORTANCE)
    ordered = ordered.loc[ranks.sort_values(kind="stable").index]
    return tuple(sorted(ordered.loc[numbers[ordered.index].duplicated(), "path"]))


def _outside_test(
    rows: pd.DataFrame, numbers: pd.Series[Any], places: pd.Series[bool]
) -> tuple[str, ...]:
    """Return the images whose copies, or others of their group, are in a more important split."""
    ranks = rows.loc[places, "split"].map(_BY_IMPORTANCE)
    best = ranks.groupby(numbers[places]).transform("min")
    return tuple(rows.loc[ranks.index[ranks > best], "path"])


def _finding(
    kind: Any,
    severity: Severity,
    groups: Iterable[tuple[str, ...]],
    summary: str,
    action: str,
    exclude: tuple[str, ...] = (),
) -> Finding:
    listed = tuple(groups)
    files = tuple(dict.fromkeys(path for group in listed for path in group))
    excluded = tuple(dict.fromkeys(exclude))
    return finding_on_files(kind, severity, files, summary, action, groups=listed, exclude=excluded)
