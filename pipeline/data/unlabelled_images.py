"""Read the images of `data.unlabelled`: further images to train on, which nobody has labelled.

They have a manifest of their own, because they may lie anywhere. So nothing that divides, counts or
evaluates labelled images ever meets them.

A copy of a validation or test image would be leakage, as between splits. A copy of a training image
says nothing new: its label is known. A copy of an excluded image is not wanted either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.config import source_of
from patchline.pipeline.data.ingested_data import UNLABELLED, IngestedData, UnlabelledImages
from patchline.pipeline.data.ingestion_notes import notes_on_files
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.data.manifests import left_out
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.earlier_manifests import (
    UNLABELLED_FOLDER,
    EarlierData,
    manifest_of_run,
    reuse_manifest,
)
from patchline.pipeline.data.manifests.same_images import GROUP, column_of, content_numbers
from patchline.pipeline.data.manifests.scanning import ScanMemory, scan
from patchline.pipeline.data.manifests.source_listing import listing_of, uses_labels
from patchline.pipeline.data.near_duplicates.search import near_duplicates
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.image_root import exists
from patchline.pipeline.data.value_ranges.data_values import decode_each, with_unfit_damaged
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace.files.paths import expand_user
from patchline.plugin_api import ImageListing

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
    unlabelled: pd.DataFrame, manifest: pd.DataFrame, near: Sequence[Array] | None = None
) -> pd.DataFrame:
    """Return the manifest of the unlabelled images with all copies excluded, each with its reason.

    Args:
        unlabelled: the manifest of all unlabelled files.
        manifest: the manifest of the labelled images, with their splits, and of those that are
            excluded.
        near: a number for each usable unlabelled image (U,) and for each usable labelled one (N,),
            equal for images that nearly show the same; None if that was not searched for.
    """
    rows, labelled = unlabelled[unlabelled["status"] == "ok"], manifests.usable(manifest)
    excluded = manifest[manifest["status"] == left_out.STATUS]
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
    result.loc[copies, "status"] = left_out.STATUS
    return result


def list_left_out_copies(manifest: pd.DataFrame) -> dict[str, list[str]]:
    """Return the paths of the unlabelled images that `without_copies` has excluded, by reason."""
    excluded = manifest[manifest["status"] == left_out.STATUS]
    paths = {why: list(excluded.loc[excluded["reason"] == why, "path"]) for why in _REASONS}
    return {reason: found for reason, found in paths.items() if found}


def find_held_out_copies(manifest: pd.DataFrame, labelled: pd.DataFrame) -> list[str]:
    """Return the paths of the validation and test images that are among the unlabelled ones.

    Args:
        manifest: the manifest of the unlabelled images, as `without_copies` returns it.
        labelled: the usable rows of the other manifest, with their splits.
    """
    copies = manifest[manifest["reason"] == COPY]
    numbers_C, numbers_N = (each.to_numpy() for each in content_numbers(copies, labelled))
    held_out_N = labelled["split"].isin(_HELD_OUT).to_numpy()
    return list(labelled.loc[held_out_N & np.isin(numbers_N, numbers_C), "path"])


def notes_on_copies(copies: dict[str, list[str]]) -> list[str]:
    """Name the unlabelled images that were left out, a line for each reason."""
    notes = []
    for reason, paths in copies.items():
        number, follows = len(paths), ""
        if reason in LEAKING:
            follows = f", so training on {by_number(number, 'it', 'them')} would be leakage,"
        elif reason == KNOWN:
            follows = f", {by_number(number, 'whose label is', 'whose labels are')} known,"
        are = by_number(number, _ONE[reason], f"are {reason}")
        notes.append(
            f"{counted(number, 'unlabelled image')} {are}{follows} and "
            f"{by_number(number, 'was', 'were')} left out: {few_names(paths, 3)}"
        )
    return notes


Progress = Callable[[str, int, int], None]

_SETTING = "data.unlabelled"
_LABEL = "Reading unlabelled images"


def check_unlabelled(config: RunConfig, workspace: Path) -> int:
    """List the unlabelled images without opening one, and return how many files there are.

    Raises:
        ConfigError: if nothing can learn from images without labels.
        DataError: if there is no such folder, or it has no image.
    """
    labelled, teacher = uses_labels(config), config.training.teacher
    if teacher is not None and not labelled:
        raise ConfigError(
            f"training.teacher is {teacher}, but objective.name {config.objective.name} uses no "
            "labels, so there is nothing that a teacher could predict. Leave out training.teacher, "
            "or set objective.name to supervised."
        )
    if config.data.unlabelled is None:
        return 0
    if labelled and teacher is None:
        raise ConfigError(
            f"{_SETTING} is {config.data.unlabelled}, but nothing labels its images, because "
            "training.teacher is not set. Set it to a model of the same classes, such as "
            f"flowers@champion, or leave out {_SETTING}."
        )
    return len(_listing(config, workspace)[0].images)


def with_unlabelled(
    data: IngestedData,
    config: RunConfig,
    workspace: Path,
    on_progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> IngestedData:
    """Return the data of a run with its unlabelled images, if `data.unlabelled` names some.

    Args:
        data: the labelled images.
        config: the run's settings.
        workspace: the folder `.patchline`.
        on_progress: called while the images are read.
        fresh: open every file, also those that have not changed since they were last read.

    Raises:
        DataError: if no image can be used, or images of a repeated run have changed.
    """
    if config.data.unlabelled is None:
        return data
    labelled = manifests.load(data.manifest_file)
    root, manifest, notes = read_unlabelled(
        config, labelled, data.root, data.mapping, workspace, on_progress, fresh=fresh
    )
    before = _of_repeated_run(data, config)
    if before is not None:
        excluded = config.data.exclude
        rest, _ = left_out.exclude_unlabelled(before.manifest, labelled, excluded)
        before = before._replace(manifest=rest)
        manifest, more = reuse_manifest(config, before, root, workspace)
        notes = more[:1] if (manifest["status"] != before.manifest["status"]).any() else []
    rows = manifests.usable(manifest)
    if rows.empty:
        why = "; ".join(notes) or "it is empty"
        raise DataError(
            f"{_SETTING} is {config.data.unlabelled}, but has no image left to train on ({why}). "
            "Name other images, or leave it out."
        )
    file = manifests.save_version(manifest, workspace / "manifests", data.mapping)
    images = UnlabelledImages(
        manifest_file=file,
        fingerprint=file.stem,
        root=root,
        count=len(rows),
        left_out={why: len(paths) for why, paths in list_left_out_copies(manifest).items()},
    )
    return data.model_copy(
        update={
            "unlabelled": images,
            "counts": {**data.counts, UNLABELLED: images.count},
            "notes": (*data.notes, *notes),
        }
    )


def few_unlabelled(images: UnlabelledImages, limit: int, folder: Path) -> UnlabelledImages:
    """Return the first images, with a manifest in a folder, to rehearse a run with."""
    few = manifests.usable(manifests.load(images.manifest_file)).iloc[:limit]
    file = manifests.save_version(few, folder)
    changes = {"manifest_file": file, "fingerprint": file.stem, "count": len(few)}
    return images.model_copy(update=changes)


def read_unlabelled(
    config: RunConfig,
    labelled: pd.DataFrame,
    root: Path,
    mapping: PixelMapping,
    workspace: Path,
    on_progress: Progress | None = None,
    *,
    fresh: bool = False,
) -> tuple[Path, pd.DataFrame, list[str]]:
    """Describe every unlabelled file, and leave out copies and what `data.exclude` names.

    Args:
        config: the run's settings.
        labelled: manifest of the labelled images, with their splits.
        root: the folder or archive of the labelled images.
        mapping: what becomes of their values that are not of 8 bits.
        workspace: the folder `.patchline`.
        on_progress: called while the images are read.
        fresh: open every file.

    Returns:
        Their root, their manifest, and notes.
    """
    listing, notes = _listing(config, workspace)

    def reading(done: int, total: int) -> None:
        if on_progress:
            on_progress(_LABEL, done, total)

    memory = ScanMemory(listing.root, workspace, fresh=fresh)
    manifest = scan(listing, reading, labelled=False, memory=memory)
    manifest = with_unfit_damaged(manifest, mapping)
    manifest, more = left_out.exclude_unlabelled(manifest, labelled, config.data.exclude)
    notes += more
    near = None
    if config.data.group_near_duplicates:
        compared = SearchMemory(listing.root, workspace, fresh=fresh)
        parts = (listing.root, manifests.usable(manifest)), (root, manifests.usable(labelled))
        near = _near(parts, mapping, on_progress, compared)
    manifest = without_copies(manifest, labelled, near)
    usable = manifest["status"] == "ok"
    manifest = manifest.assign(split=np.where(usable, UNLABELLED, ""))
    return listing.root, manifest, [*notes, *_notes(manifest, listing, searched=near is not None)]


def _notes(manifest: pd.DataFrame, listing: ImageListing, *, searched: bool) -> list[str]:
    of_files = [f"{_SETTING}: {note}" for note in (*listing.notes, *notes_on_files(manifest))]
    notes = [*of_files, *notes_on_copies(list_left_out_copies(manifest))]
    if not searched:
        notes.append(
            f"{_SETTING}: whether near duplicates of validation or test images are among its "
            "images is not known; --data.group-near-duplicates searches for them and leaves them "
            "out"
        )
    return notes


def _listing(config: RunConfig, workspace: Path) -> tuple[ImageListing, list[str]]:
    """Return what the source of the unlabelled images lists, and notes on the settings."""
    path = expand_user(str(config.data.unlabelled), _SETTING)
    if not exists(path) and not any(sign in str(path) for sign in "*{?["):
        raise DataError(f"{_SETTING} is {path}, but there is no such folder or file. Check it.")
    plain = type(config.data)()
    changes: dict[str, Any] = {
        "path": str(path),
        "source": source_of(str(path)),
        "options": {},
        "manifest": None,
        "label": AUTO,
        "merge_classes": plain.merge_classes,
    }

    def listed(group_pattern: str | None) -> ImageListing:
        own = config.data.model_copy(update={**changes, "group_pattern": group_pattern})
        return listing_of(config.model_copy(update={"data": own}), workspace, labelled=False)

    pattern = config.data.group_pattern
    try:
        return listed(pattern), []
    except ConfigError:
        if pattern is None:
            raise
    note = (
        f"{_SETTING}: data.group_pattern finds no group in its paths, so whether some of its "
        "images belong to groups of validation or test images is not known"
    )
    return listed(None), [note]


def _of_repeated_run(data: IngestedData, config: RunConfig) -> EarlierData | None:
    """Return the unlabelled images of the run whose manifest is used again, if it had some."""
    if config.data.manifest is None or data.repeats is None or Path(data.repeats).is_absolute():
        return None
    manifest = manifest_of_run(data.repeats, UNLABELLED_FOLDER)
    return None if manifest is None else EarlierData(manifest, data.repeats)


def _near(
    parts: Sequence[tuple[Path, pd.DataFrame]],
    mapping: PixelMapping,
    on_progress: Progress | None,
    memory: SearchMemory,
) -> list[Array]:
    """Return a number for each image, equal for near duplicates.

    Args:
        parts: the root and the rows of the unlabelled images, and those of the labelled ones.
        mapping: what becomes of values that are not of 8 bits.
        on_progress: called while the images are read.
        memory: what an earlier search has compared.
    """
    collector, done = ThumbnailCollector(), 0
    both = pd.concat([rows for _, rows in parts], ignore_index=True)
    for mark, (root, rows) in enumerate(parts):

        def collect(path: str, data: bytes, image_HWC: Array, mark: int = mark) -> None:
            collector.add(f"{mark} {path}", data, image_HWC)

        for _ in decode_each(root, rows["path"], mapping, collect):
            done += 1
            if on_progress:
                on_progress("Reading images to compare", done, len(both))
    names = [f"{mark} " + rows["path"] for mark, (_, rows) in enumerate(parts)]
    numbers = near_duplicates(collector.of(pd.concat(names)), both, on_progress, memory)
    return np.split(numbers, [len(parts[0][1])])
