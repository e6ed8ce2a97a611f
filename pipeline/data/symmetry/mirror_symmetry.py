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
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, PIXELS, column_of, unite
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import UndecodableImageError, reserve_and_decode
from patchline.pipeline.data.reading.image_quality import shrunk
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.reading.jpeg_decoding import decode_jpeg
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    MirrorSymmetry,
    find_mirroring_settings,
)
from patchline.pipeline.data.symmetry.mirror_probe import (
    FEWEST,
    SIDE,
    MeasuredSymmetry,
    compare_mirror_images,
)
from patchline.pipeline.templates import render_markdown
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
        files: the folder or archive of the images, and how values that are not of 8 bits are
            mapped.
        workspace: the folder `.patchline`.
    """
    setting, key = config.data.mirror_symmetric, "data.mirror_symmetric"
    if setting is None and isinstance(option := config.data.options.get(OPTION), bool):
        setting, key = option, f"data.options.{OPTION}"
    is_set = setting is not None
    how = f"{key} is {str(setting).lower()}" if is_set else f"{config.data.source} declares so"
    stated = setting if is_set else declared
    origin: Literal["set", "declared"] = "set" if is_set else "declared"
    flips = find_mirroring_settings(config)
    if stated is False and not flips:
        return MirrorSymmetry(answer="asymmetric", origin=origin, why=f"{_THEY_DIFFER} ({how})")
    symmetry = measure_symmetry(rows[rows["split"] == "train"], files, workspace)
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


def measure_symmetry(rows: pd.DataFrame, files: Files, workspace: Path) -> MirrorSymmetry:
    """Measure it on training images, or return what was measured on the same ones before."""
    chosen = _sample(rows)
    content = chosen[["label", FILE]].assign(group=column_of(chosen, GROUP)).to_csv(index=False)
    described = f"{FORMAT} {files.mapping!r} {content}"
    digest = hashlib.sha256(described.encode()).hexdigest()[:32]
    file = workspace / "symmetries" / f"{digest}.json"
    workspace_of(file).fetch_file(file)
    if known := MirrorSymmetry.from_file_or_none(file):
        return known
    if len(chosen) < FEWEST:
        few = f"{len(chosen)} training images are too few to measure it"
        return _in_words(None, reason=few)
    thumbnails = _thumbnails(chosen, files)
    if thumbnails is None:
        return _in_words(None, reason="an image changed while it was measured")
    names, labels = np.unique(column_of(chosen, "label").to_numpy(str), return_inverse=True)
    units = unite(column_of(chosen, FILE), column_of(chosen, PIXELS), column_of(chosen, GROUP))
    symmetry = _in_words(compare_mirror_images(thumbnails, labels, units), names.tolist())
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


def _thumbnails(rows: pd.DataFrame, files: Files) -> Array | None:
    """Return small RGB images (N, S, S, 3); None if one cannot be read any more."""

    def thumbnail(path: str) -> Array:
        with (
            root_image_bytes(files.root, path) as data,
            reserve_and_decode(
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


_THEY_DIFFER = "they do not show the same classes"
_NONE_USED = "so none are used"


def _in_words(
    probe: MeasuredSymmetry | None, names: list[str] | None = None, reason: str = ""
) -> MirrorSymmetry:
    """Return the answer of a measurement, or why there is none."""
    names = names or []
    values = {"probe": probe, "names": names, "reason": reason, "fewest": FEWEST, "named": _NAMED}
    note, why, *_ = render_markdown("mirror_symmetry.md.j2", __package__, **values).split("\n")
    certain = [each.label for each in probe.classes] if probe else []
    certain += [label for label, _ in probe.sides] if probe else []
    is_certain = probe is not None and probe.answer == "asymmetric" and len(names) > 1
    return MirrorSymmetry(
        answer=probe.answer if probe else "unknown",
        origin="measured",
        note=note,
        why=why,
        classes=tuple(names[label] for label in dict.fromkeys(certain)) if is_certain else (),
    )
