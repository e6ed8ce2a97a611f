"""Findings about images: damage, wrong names, unusual formats, what shows little, and duplicates.

Each function returns the findings of its kinds, none if there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import (
    MULTI_LABEL,
    SINGLE_LABEL,
    LabelPairs,
    Task,
)
from patchline.pipeline.data.manifests.left_out import LeftOut, list_left_out, remedies
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, content_numbers
from patchline.pipeline.data.reading.color_profile import UNREADABLE
from patchline.pipeline.data.reading.image_quality import (
    BLANK,
    BLURRED,
    DARK,
    ImageQuality,
    faults,
    limits_among,
)
from patchline.pipeline.data.splits.leakage import GROUP_OF_COPIES, find_augmented_photographs
from patchline.pipeline.data.value_ranges.data_values import summaries
from patchline.pipeline.evaluation.inspection.findings import (
    Finding,
    Kind,
    Severity,
    finding_on_files,
)
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES

Array = np.ndarray[Any, Any]

_SUFFIXES = {
    "JPEG": {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"},
    "PNG": {".png", ".apng"},
    "GIF": {".gif"},
    "BMP": {".bmp", ".dib"},
    "WEBP": {".webp"},
    "TIFF": {".tif", ".tiff"},
    "PPM": {".ppm", ".pgm", ".pbm", ".pnm"},
    "AVIF": {".avif"},
    "JPEG2000": {".jp2", ".j2k", ".jpx", ".jpc", ".jpf"},
    "HEIF": {".heic", ".heif", ".hif"},
}
_USUAL_MODES = {"RGB", "L"}
_USUAL_SHARE = 0.2
_FEWEST_TO_COMPARE = 10
_MANY_UNLABELLED = 0.1
"""Share of the images from which it is a warning that they have no label."""
_ALL, _FEW_OTHERS = 0.9, 0.5
"""Shares of the images of a class, and of all others, with a profile that sets the class apart."""
_SIZE_FACTOR, _SHAPE_FACTOR, _DEVIATIONS = 4.0, 3.0, 6.0


def findings_on_status(manifest: pd.DataFrame) -> list[Finding]:
    """Return what is left out of every run: a finding of each kind, a sentence for each cause."""
    by_kind: dict[Kind, list[LeftOut]] = {}
    for part in list_left_out(manifest):
        by_kind.setdefault(part.cause.kind, []).append(part)
    usable = int((manifest["status"] == "ok").sum())
    return [_finding_on_causes(kind, parts, usable) for kind, parts in by_kind.items()]


def _finding_on_causes(kind: Kind, parts: list[LeftOut], usable: int) -> Finding:
    rows = pd.concat([part.rows for part in parts]).sort_index()
    reasons = zip(rows["path"], rows["reason"], strict=True)
    named = rows["path"].map(lambda path: PurePosixPath(path).suffix.lower() in IMAGE_SUFFIXES)
    images = int((named | rows["reason"].str.startswith("has no label")).sum())
    told, share = [f"{part.sentence}." for part in parts], images / max(1, usable + images)
    if kind == "foreign" and images:
        told.append(f"Without a label: {images:,} of {usable + images:,} images ({share:.0%}).")
    few = kind == "foreign" and share < _MANY_UNLABELLED
    return finding_on_files(
        kind,
        "note" if few else "warning",
        tuple(rows["path"]),
        " ".join(told),
        f"Leaves them out of every run. {remedies(parts)}",
        details={path: reason for path, reason in reasons if reason},
    )


def findings_on_format(rows: pd.DataFrame) -> list[Finding]:
    """Return images with another format than their names say, and unusual color modes.

    Args:
        rows: the usable images, with the column `format`.
    """
    suffixes = rows["path"].map(lambda path: PurePosixPath(path).suffix.lower())
    named = [
        suffix in IMAGE_SUFFIXES and suffix not in _SUFFIXES.get(format_, ())
        for suffix, format_ in zip(suffixes, rows["format"], strict=True)
    ]
    wrong = rows[np.array(named, dtype=bool)]
    shares = rows["mode"].value_counts(normalize=True)
    usual = _USUAL_MODES | {str(mode) for mode, share in shares.items() if share >= _USUAL_SHARE}
    unusual = rows[~rows["mode"].isin(usual)]
    return [
        *_finding("wrong_extension", "note", wrong.assign(reason="is " + wrong["format"]), _images,
                  "Reads them by their content. Rename them for other programs."),
        *_finding("unusual_mode", "note", unusual.assign(reason="mode " + unusual["mode"]), _images,
                  "Converts them to the channels of the run; transparency becomes white, and "
                  "values of more than 8 bits become 8. Check that they look right."),
    ]  # fmt: skip


def findings_on_profiles(rows: pd.DataFrame, pairs: LabelPairs) -> list[Finding]:
    """Return images whose profile says other colors than sRGB, or cannot be read.

    Args:
        rows: the usable images, with the column `profile`.
        pairs: the labels of each image.
    """
    unreadable = rows["profile"] == UNREADABLE
    return [
        *_on_profiles("color_profile", rows, rows[(rows["profile"] != "") & ~unreadable], pairs),
        *_on_profiles("unreadable_profile", rows, rows[unreadable], pairs),
    ]


def _on_profiles(
    kind: Kind, rows: pd.DataFrame, marked: pd.DataFrame, pairs: LabelPairs
) -> list[Finding]:
    """Return the finding on images with a profile that is not applied: all are read as sRGB."""
    profiles = sorted(marked["profile"].unique())
    apart = [each for name in profiles for each in _apart(rows, pairs, name)]
    words = f"A model may tell classes by their profile: {few_names(apart)}. " if apart else ""
    return _finding(
        kind, "warning" if apart else "note", marked.assign(reason=marked["profile"]),
        lambda count: f"{count:,} of {_images(len(rows))}",
        "Reads them as sRGB, like all others, in runs and in packages. "
        f"{words}Convert them to sRGB.",
    )  # fmt: skip


def _apart(rows: pd.DataFrame, pairs: LabelPairs, profile: str) -> list[str]:
    """Return the labels of which nearly all images have a profile that few of the others have."""
    has = (rows["profile"] == profile).to_numpy()
    sizes = np.bincount(pairs.labels, minlength=len(pairs.names))
    marked = np.bincount(pairs.labels, has[pairs.images], minlength=len(pairs.names))
    others = (has.sum() - marked) / np.maximum(1, len(rows) - sizes)
    apart = (marked >= _ALL * sizes) & (others < _FEW_OTHERS) & (sizes < len(rows))
    return [f"{pairs.names[place]} ({profile})" for place in np.flatnonzero(apart)]


def findings_on_frames(rows: pd.DataFrame) -> list[Finding]:
    """Return animations and files of several pages, of which the first frame or page is read.

    Args:
        rows: the usable images.
    """
    counts = np.array([each.pages for each in summaries(rows)], np.int64)
    several = rows[counts > 1]
    return _finding(
        "unread_frames", "note",
        several.assign(reason=[f"{count:,} frames" for count in counts[counts > 1].tolist()]),
        _images, "Reads the first of them. Save each one that matters as a file of its own.",
    )  # fmt: skip


def findings_on_size(rows: pd.DataFrame) -> list[Finding]:
    """Return images much smaller, larger or more elongated than the others."""
    if len(rows) < _FEWEST_TO_COMPARE:
        return []
    width, height = np.log(rows["width"].to_numpy()), np.log(rows["height"].to_numpy())
    odd = _far((width + height) / 2, _SIZE_FACTOR) | _far(width - height, _SHAPE_FACTOR)
    outliers = rows[odd]
    sizes = outliers["width"].astype(str) + "x" + outliers["height"].astype(str) + " pixels"
    return _finding(
        "size_outlier", "note", outliers.assign(reason=sizes), _images,
        "Resizes them like all others, so they are enlarged, or lose detail or their edges. Check "
        "that they belong to the data.",
    )  # fmt: skip


def findings_on_light(rows: pd.DataFrame) -> list[Finding]:
    """Return blank, dark and blurred images; an image is reported under the first that fits.

    Args:
        rows: the usable images, with the columns of their measures.
    """
    quality = ImageQuality(*(rows[name].to_numpy() for name in ImageQuality._fields))
    fault = np.array(faults(quality, limits_among(quality)), dtype=object)
    blank, dark, blurred = (fault == kind for kind in (BLANK, DARK, BLURRED))
    trained = "Trains on them like all others."
    finding = _finding(
        "blank", "warning", rows[blank], _images,
        "Trains on them like all others, although they show nothing. Exclude them.",
    )  # fmt: skip
    return [
        *(each.model_copy(update={"exclude": each.files}) for each in finding),
        *_finding("dark", "note", rows[dark], _images,
                  f"{trained} Exclude those that cannot be recognized."),
        *_finding("blurred", "note", rows[blurred], _images,
                  f"{trained} Exclude those that cannot be recognized."),
    ]  # fmt: skip


def _far(logarithms: Array, factor: float) -> Array:
    """Return which values are further from their median than a factor and the usual spread."""
    distances = np.abs(logarithms - np.median(logarithms))
    far: Array = distances > max(np.log(factor), _DEVIATIONS * np.median(distances))
    return far


_WORDS: dict[Kind, tuple[str, str]] = {
    "wrong_extension": (
        "has another format than its name says",
        "have another format than their names say",
    ),
    "unusual_mode": ("has an unusual colour mode", "have an unusual colour mode"),
    "size_outlier": (
        "has a size or shape unlike the others",
        "have a size or shape unlike the others",
    ),
    "color_profile": (
        "has a colour profile other than sRGB",
        "have a colour profile other than sRGB",
    ),
    "unreadable_profile": (f"has {UNREADABLE}", f"have {UNREADABLE}"),
    "unread_frames": ("has several frames or pages", "have several frames or pages"),
    "blank": ("shows a single colour", "show a single colour"),
    "dark": ("is almost black", "are almost black"),
    "blurred": (
        "is much less sharp than the others",
        "are much less sharp than the others",
    ),
}


def _images(count: int) -> str:
    return counted(count, "image")


def _finding(
    kind: Kind, severity: Severity, rows: pd.DataFrame, subject: Callable[[int], str], action: str
) -> list[Finding]:
    """Return the finding about these rows; none if there are no rows."""
    if rows.empty:
        return []
    files = tuple(rows["path"])
    reasons = zip(files, rows["reason"], strict=True)
    return [
        finding_on_files(
            kind,
            severity,
            files,
            f"{subject(len(files))} {_WORDS[kind][len(files) != 1]}.",
            action,
            details={path: reason for path, reason in reasons if reason},
        )
    ]


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
        *_find_augmented(rows),
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
    places = _find_shared(exact)
    if not places.any():
        return []
    groups = _groups(rows, exact, places)
    extra = int(places.sum()) - len(groups)
    return [
        _finding_on_groups(
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
        _finding_on_groups(
            "near_duplicate", "note", groups,
            f"{counted(places.sum(), 'image')} in {counted(len(groups), 'group')} "
            "look like another image that was cropped, mirrored, rescaled or saved again.",
            "Keeps each group in one split, as data.group_near_duplicates says. Exclude all but "
            "one if they should not count more than others." if grouped else
            "Treats them as different images, which may get into different splits. Keep each group "
            "in one split with --data.group-near-duplicates, or exclude all but one.",
        )
    ]  # fmt: skip


def _find_augmented(rows: pd.DataFrame) -> list[Finding]:
    """Return copies that Roboflow has written of one photograph, as their names say."""
    photographs = find_augmented_photographs(rows)
    copies = pd.Series(rows.index.isin(photographs[_find_shared(photographs)].index), rows.index)
    if not copies.any():
        return []
    leaking = _several(rows["split"], photographs)
    apart = f", {leaking.sum():,} of them with a copy in another split"
    return [
        _finding_on_groups(
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
        _finding_on_groups(
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
        _finding_on_groups(
            "label_conflict", "warning",
            [*_groups(rows, exact, same), *_groups(rows, nearly, alike)],
            f"{told}.",
            "Trains on all of them, so the model learns contradictions. Correct the labels, or "
            "exclude the wrong ones.",
        )
    ]  # fmt: skip


def _find_shared(numbers: pd.Series[Any]) -> pd.Series[bool]:
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


def _finding_on_groups(
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
