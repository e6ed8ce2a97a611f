"""Decide whether a mirrored image still shows its class, before anything makes use of it.

The user's setting counts first, then what the data source declares, and else a measurement on
images of the training split (`mirror_probe`). What is not known is not used: no image is mirrored.
An answer is kept in `.patchline/symmetries/`, by the content and the labels of those images.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, PIXELS, column_of, united
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import UndecodableImageError, decoded
from patchline.pipeline.data.reading.image_quality import shrunk
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.symmetry.assumed_symmetries import MirrorSymmetry, mirroring_settings
from patchline.pipeline.data.symmetry.mirror_probe import (
    FEWEST,
    SIDE,
    MeasuredSymmetry,
    Share,
    measured,
)
from patchline.pipeline.workspace.workspace import workspace_of

FORMAT = 2
"""Increase it when the measurement finds something else in the same images."""
OPTION = "mirror_symmetric"
_FEWEST_IMAGES, _IMAGES, _MOST_IMAGES = 200, 1000, 5000
_PER_CLASS = 10
_PIXELS = 400_000_000
"""Of all images that are decoded for the measurement, unless these are too few."""
_THREADS = 4
_NAMED = 2
Array = np.ndarray[Any, Any]


class Files(NamedTuple):
    """Where images are, and what becomes of values that are not of 8 bits."""

    root: Path
    mapping: PixelMapping


def mirror_symmetry(
    config: RunConfig, declared: bool | None, rows: pd.DataFrame, files: Files, workspace: Path
) -> MirrorSymmetry:
    """Return the answer for some data.

    Args:
        config: may set it.
        declared: what the data source says; None if it does not know.
        rows: usable rows of a manifest with its splits.
        files: where the images are, and how they are decoded.
        workspace: the folder `.patchline`.
    """
    setting, key = config.data.mirror_symmetric, "data.mirror_symmetric"
    if setting is None and isinstance(option := config.data.options.get(OPTION), bool):
        setting, key = option, f"data.options.{OPTION}"
    is_set = setting is not None
    how = f"{key} is {str(setting).lower()}" if is_set else f"{config.data.source} declares so"
    stated = setting if is_set else declared
    origin: Literal["set", "declared"] = "set" if is_set else "declared"
    flips = mirroring_settings(config)
    if stated is False and not flips:
        return MirrorSymmetry(answer="asymmetric", origin=origin, why=f"{_THEY_DIFFER} ({how})")
    symmetry = measured_symmetry(rows[rows["split"] == "train"], files, workspace)
    contradicted = symmetry.answer == "asymmetric" and bool(flips or stated)
    cause = flips[0] if flips else how
    if contradicted:
        note = f"{cause}, but {symmetry.note}"
        symmetry = symmetry.model_copy(update={"note": note, "is_contradicted": True})
    elif flips and symmetry.answer == "unknown":
        note = symmetry.note.replace(_NONE_USED, f"but {cause}, so they are used")
        symmetry = symmetry.model_copy(update={"note": note, "is_ignored": True})
    if stated is None:
        return symmetry
    return MirrorSymmetry(
        answer="symmetric" if stated else "asymmetric",
        origin=origin,
        note=symmetry.note if contradicted else "",
        is_contradicted=contradicted,
        why="" if stated else f"{_THEY_DIFFER} ({how})",
        classes=symmetry.classes if contradicted else (),
    )


def measured_symmetry(rows: pd.DataFrame, files: Files, workspace: Path) -> MirrorSymmetry:
    """Measure it on training images, or return what was measured on the same ones before."""
    chosen = _sample(rows)
    file = workspace / "symmetries" / f"{_digest(chosen, files.mapping)}.json"
    workspace_of(file).fetch_file(file)
    if known := MirrorSymmetry.from_file_or_none(file):
        return known
    if len(chosen) < FEWEST:
        return _unknown(f"{len(chosen)} training images are too few to measure it")
    thumbnails = _thumbnails(chosen, files)
    if thumbnails is None:
        return _unknown("an image changed while it was measured")
    names, labels = np.unique(column_of(chosen, "label").to_numpy(str), return_inverse=True)
    units = united(column_of(chosen, FILE), column_of(chosen, PIXELS), column_of(chosen, GROUP))
    symmetry = _in_words(measured(thumbnails, labels, units), names.tolist())
    symmetry.to_file(file)
    workspace_of(file).send_file(file)
    return symmetry


def _sample(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the training images to measure: the same ones for the same data, of each class."""
    rows = rows.sort_values(["label", FILE], kind="stable")
    rank = rows.groupby("label").cumcount()
    classes = int(rows["label"].nunique())
    pixels = (rows["width"] * rows["height"]).median() if len(rows) else 1
    target = max(_IMAGES, min(_PER_CLASS * classes, _MOST_IMAGES))
    most = int(min(target, max(_FEWEST_IMAGES, _PIXELS / max(1, pixels))))
    order = rank.sort_values(kind="stable").index[:most]
    return rows.loc[rows.index.isin(order)]


def _digest(rows: pd.DataFrame, mapping: PixelMapping) -> str:
    content = rows[["label", FILE]].assign(group=column_of(rows, GROUP)).to_csv(index=False)
    return hashlib.sha256(f"{FORMAT} {mapping!r} {content}".encode()).hexdigest()[:32]


def _thumbnails(rows: pd.DataFrame, files: Files) -> Array | None:
    """Return small RGB images (N, S, S, 3); None if one cannot be read any more."""

    def thumbnail(path: str) -> Array:
        with (
            root_image_bytes(files.root, path) as data,
            decoded(
                data, 3, known_whole=True, jpeg_decoder=decode_jpeg, mapping=files.mapping
            ) as image_HWC,
        ):
            small = shrunk(image_HWC)
        how = cv2.INTER_AREA if min(small.shape[:2]) >= SIDE else cv2.INTER_LINEAR
        return cv2.resize(small, (SIDE, SIDE), interpolation=how)

    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            return np.stack(list(pool.map(thumbnail, rows["path"])))
    except UndecodableImageError:
        return None


# -- in words ----------------------------------------------------------------------------------

_DIFFER = "mirrored images do not show the same classes"
_THEY_DIFFER = "they do not show the same classes"
_NONE_USED = "so none are used"
_UNSKILLED = "a linear probe cannot tell the classes apart"


def _unknown(reason: str, images: int = 0) -> MirrorSymmetry:
    of = f"on {images:,} training images, " if images else ""
    return MirrorSymmetry(
        answer="unknown",
        origin="measured",
        note=(
            f"whether mirrored images show the same classes is not known, {_NONE_USED}: "
            f"{of}{reason}; set data.mirror_symmetric if you know"
        ),
        why=f"whether they show the same classes is not known ({reason})",
    )


def _in_words(probe: MeasuredSymmetry, names: list[str]) -> MirrorSymmetry:
    labelled = len(names) > 1
    told = f"tells {_interval(probe.told_apart)} of held-out images from their mirror images"
    evidence = f"a linear probe {told}, where 50% is chance"
    if labelled:
        evidence = (
            f"a linear probe recognises {probe.accuracy.value:.0%} of held-out images and "
            f"{_interval(probe.mirrored)} of their mirror images, and {told}, where 50% is chance"
        )
    if probe.answer == "unknown":
        every = probe.images + probe.left_out
        if probe.images < max(FEWEST, probe.left_out):
            return _unknown(
                f"{probe.left_out:,} of {every:,} training images are the only image or group of "
                "their class, so no probe can be tested on them"
            )
        skilled = probe.is_skilled or not labelled
        reason = f"{evidence}: no evidence either way" if skilled else _UNSKILLED
        return _unknown(reason, every)
    of = f"measured on {probe.images:,} training images"
    if probe.left_out:
        of += f" (not on {probe.left_out:,} that are the only image or group of their class)"
    if probe.answer == "symmetric":
        note = f"mirrored images show the same classes, {of}: {evidence}"
        return MirrorSymmetry(answer="symmetric", origin="measured", note=note)
    certain = [each.label for each in probe.classes] + [label for label, _ in probe.sides]
    if labelled:
        evidence = _differences(probe, names) or evidence
    return MirrorSymmetry(
        answer="asymmetric",
        origin="measured",
        note=f"{_DIFFER}, {of}: {evidence}",
        why=f"{_THEY_DIFFER} ({of})",
        classes=tuple(names[label] for label in dict.fromkeys(certain)) if labelled else (),
    )


def _differences(probe: MeasuredSymmetry, names: list[str]) -> str:
    """Return how mirror images of the clearest classes differ; empty if no class is certain."""
    parts = [
        f"of '{names[each.label]}', a linear probe recognises {each.originals:.0%} of held-out "
        f"images and {each.mirrored:.0%} of their mirror images; it takes "
        f"{_interval(each.as_other)} of these for '{names[each.other]}'"
        for each in probe.classes[:_NAMED]
    ]
    if not parts:
        parts = [
            f"of '{names[label]}', a linear probe tells {value:.0%} of held-out images from "
            "their mirror images, where 50% is chance"
            for label, value in probe.sides[:_NAMED]
        ]
    return "; ".join(parts)


def _interval(value: Share) -> str:
    return f"{value.value:.0%} ({value.low:.0%} to {value.high:.0%})"
