"""Findings about single files: damage, wrong names, unusual formats, images that show little.

Each function returns the findings of its kinds, none if there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import LabelPairs
from patchline.pipeline.data.manifests.left_out import LeftOut, left_out, remedies
from patchline.pipeline.data.reading.color_profile import UNREADABLE
from patchline.pipeline.data.reading.image_quality import (
    BLANK,
    BLURRED,
    DARK,
    ImageQuality,
    faults,
    limits_among,
)
from patchline.pipeline.data.value_ranges.data_values import summaries
from patchline.pipeline.evaluation.inspection.findings import (
    Finding,
    Kind,
    Severity,
    finding_on_files,
)
from patchline.pipeline.terminal_words import counted, few_names
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
    for part in left_out(manifest):
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
        pairs: which of them has which label.
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
        "Reads them like all others as sRGB, in runs and in their packages alike. "
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
