"""The stages before training: read and split the data, resolve the config, decode the images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.image_size import default_image_size
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.ingestion_memory import IngestionMemory
from patchline.pipeline.data.ingestion_notes import (
    dominant_groups,
    empty_classes,
    notes_on_classes,
    notes_on_empty_classes,
    notes_on_files,
    notes_on_held_out,
    notes_on_sets,
    notes_on_size,
)
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task, label_pairs
from patchline.pipeline.data.manifests import earlier_manifests, left_out, scanning
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.class_checks import check_images, no_labels, one_class
from patchline.pipeline.data.manifests.describing import OnImage
from patchline.pipeline.data.manifests.earlier_manifests import (
    EarlierData,
    earlier_data,
    reuse_manifest,
)
from patchline.pipeline.data.manifests.manifest import check_slices, list_columns
from patchline.pipeline.data.manifests.scanning import Facts, ScanMemory
from patchline.pipeline.data.manifests.source_listing import listing_of, task_of, uses_labels
from patchline.pipeline.data.near_duplicates.grouping import with_near_groups
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector
from patchline.pipeline.data.reading.image_root import example_on_disk
from patchline.pipeline.data.splits import random_draws, split, split_memory
from patchline.pipeline.data.splits.class_coverage import SPLITS
from patchline.pipeline.data.splits.leakage import (
    check_leakage,
    notes_on_augmented_copies,
    notes_on_leakage,
    notes_on_patients,
)
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.store.channel_statistics import channel_statistics
from patchline.pipeline.data.store.scan_draft import ScanDraft
from patchline.pipeline.data.symmetry.assumed_symmetries import (
    describe_unmeasured_symmetries,
)
from patchline.pipeline.data.symmetry.mirror_probe import with_one_label
from patchline.pipeline.data.symmetry.mirror_symmetry import Files, mirror_symmetry
from patchline.pipeline.data.unlabelled_images import with_unlabelled
from patchline.pipeline.data.value_ranges.data_values import DataValues, decide_values
from patchline.pipeline.data.value_ranges.range_choice import notes_on_change
from patchline.pipeline.errors import ConfigError, DataError, StorageError
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.workspace import cache_limit, chosen
from patchline.pipeline.workspace.object_store import ConflictError
from patchline.pipeline.workspace.workspace import workspace_of
from patchline.plugin_api import DataTraits, ImageListing, ImageSpec

_PIECE, _STREAMED_PIECE = 1 << 21, 1 << 25
"""Bytes of images that are measured at once; each piece of a streamed store is a few requests."""
_SPLIT_SETTINGS = ("data.split_seed", "data.validation_fraction", "data.test_fraction")
"""A run with the same values splits its images in the same way."""
StageProgress = Callable[[str, int, int], None]
"""Called with a label, the number of items done, and the number of all items."""


class SourceCounts(NamedTuple):
    """What a source lists; nothing of it has been opened yet."""

    files: int
    classes: int
    task: Task


@dataclass(frozen=True)
class ScannedData:
    """The content of a source, with only the splits that it gives."""

    name: str
    root: Path
    manifest: pd.DataFrame
    notes: tuple[str, ...]
    source_notes: tuple[str, ...]
    """Those of the notes that the source itself has given."""
    empty_classes: tuple[str, ...]
    pixel_values: DataValues
    """What becomes of values and bands that are not 8 bits of grey or RGB."""
    mirror_symmetric: bool | None = None
    """Whether a mirrored image shows its class, as the source declares."""
    task: Task = SINGLE_LABEL
    """Whether an image has one class, or a set of labels."""


def check_source(config: RunConfig, workspace: Path, *, to_train: bool = True) -> SourceCounts:
    """List the source without opening an image, so that a wrong path fails at once.

    Raises:
        DataError: if there are no images, or only one class and `to_train` is set.
        ConfigError: if the images are to be sliced by a column that is not there.
    """
    listing = listing_of(config, workspace)
    sets = [listed.labels or () for listed in listing.images]
    labels = {listed.label for listed in listing.images} - {""}
    labels |= {label for each in sets for label in each}
    trains = to_train and uses_labels(config)
    if trains and listing.is_multi_label and not labels:
        raise no_labels(listing.root)
    if trains and len(labels) == 1 and not listing.is_multi_label:
        raise one_class(listing.root, labels, (image.path for image in listing.images))
    if trains and config.data.manifest is None:
        check_slices(config.evaluation.slices, list_columns(listing))
    return SourceCounts(files=len(listing.images), classes=len(labels), task=task_of(listing))


def scan(
    config: RunConfig,
    workspace: Path,
    on_progress: StageProgress | None = None,
    on_image: OnImage | None = None,
) -> ScannedData:
    """List the source and describe every file, without splitting; one class is enough.

    Args:
        config: the source.
        workspace: the folder `.patchline`.
        on_progress: called while the images are read.
        on_image: called for each decoded image, in the thread that has decoded it.

    Raises:
        DataError: if the source cannot be read.
    """
    listing = _listing(config, workspace)
    labelled = uses_labels(config)
    reading = _add_label(on_progress, "Reading images")
    memory = ScanMemory(listing.root, workspace)
    manifest = scanning.scan(listing, reading, labelled=labelled, on_image=on_image, memory=memory)
    values = decide_values(manifest, listing.root, config.data, on_image)
    return ScannedData(
        name=listing.name,
        root=listing.root,
        manifest=manifest,
        notes=tuple(_notes(manifest, listing, labelled=labelled)),
        source_notes=tuple(listing.notes),
        empty_classes=tuple(empty_classes(manifest, listing)) if labelled else (),
        pixel_values=values,
        mirror_symmetric=listing.mirror_symmetric,
        task=task_of(listing),
    )


def ingest(
    config: RunConfig,
    workspace: Path,
    on_progress: StageProgress | None = None,
    *,
    remember: bool = True,
    fresh: bool = False,
) -> IngestedData:
    """List the source, describe every file, split, and save the manifest.

    Args:
        config: the source and the split settings.
        workspace: the folder `.patchline`.
        on_progress: called while the images are read.
        remember: save the split of every image for later runs, and keep images that are decoded.
        fresh: open every file, also those that have not changed since they were last read.

    Raises:
        DataError: if the images or labels cannot be used; no manifest and no split is saved then.
    """
    listing = _listing(config, workspace)
    scan_memory = ScanMemory(listing.root, workspace, fresh=fresh)
    facts, memory = None, None
    if config.data.manifest is None:
        facts = scan_memory.facts(sorted(image.path for image in listing.images))
        if config.data.exclude is None:
            memory = IngestionMemory(config, listing, facts, scan_memory)
    recalled = memory.recall() if memory else None
    if recalled is None:
        source = _ListedSource(config, listing, scan_memory, facts)
        recalled, splits, lasting = _ingest(source, on_progress, remember=remember)
        if memory and remember and lasting:
            memory.keep(recalled, splits)
    return with_unlabelled(recalled, config, workspace, on_progress, fresh=fresh)


def _listing(config: RunConfig, workspace: Path) -> ImageListing:
    """List the source; by then the workspace says whether it is the cache of a shared one."""
    with contextlib.suppress(StorageError):  # what a store that is away has kept is done again
        chosen.find_shared_files()
    return listing_of(config, workspace)


class _ListedSource(NamedTuple):
    """What a source lists, and what is known about its files."""

    config: RunConfig
    listing: ImageListing
    scan_memory: ScanMemory
    facts: Facts | None
    """None if the manifest of an earlier run says what the files are."""


def _ingest(
    source: _ListedSource, on_progress: StageProgress | None, *, remember: bool
) -> tuple[IngestedData, Path | None, bool]:
    """Describe every file, split, and save the manifest.

    Returns:
        What was found; the file that remembers the splits, if there is one; whether the next
        ingestion of the same files finds exactly this.
    """
    config, listing, scan_memory, _ = source
    workspace = scan_memory.workspace
    labelled, data = uses_labels(config), config.data
    earlier = earlier_data(data.manifest, workspace) if data.manifest else None
    draft = (
        ScanDraft(config, listing.root, workspace) if remember and not scan_memory.fresh else None
    )
    manifest, notes, exclude, values = _read(source, on_progress, earlier, draft)
    check_slices(config.evaluation.slices if labelled else (), manifest.columns)
    if labelled and earlier is None and "leakage" not in data.accept:  # else it was checked before
        check_leakage(manifest)
    task = earlier.task if labelled and earlier else task_of(listing)
    fractions = split.split_fractions(manifest, data.validation_fraction, data.test_fraction)
    split_origin = split.origin(manifest, fractions)
    splitting = Splitting(fractions, listing.name, task)
    manifest, split_notes, any_new = assign_splits(
        manifest, config, splitting, workspace, remember=remember
    )
    range_notes = notes_on_change(values.spec, listing.root, workspace)
    file = manifests.save_version(manifest, workspace / "manifests", values.mapping, task)
    rows = manifests.usable(manifest)
    pairs = label_pairs(rows["label"] if labelled else [], task)
    counts = pairs.counts()
    declared = listing.mirror_symmetric
    one = with_one_label(rows, task if labelled else SINGLE_LABEL)
    mirror = mirror_symmetry(config, declared, one, Files(listing.root, values.mapping), workspace)
    result = IngestedData(
        name=listing.name,
        manifest_file=file,
        fingerprint=file.stem,
        root=listing.root,
        classes=tuple(manifests.classes(manifest, task)) if labelled else (),
        counts={name: int((rows["split"] == name).sum()) for name in SPLITS},
        class_counts=counts,
        task=task,
        median_side=int(rows[["width", "height"]].min(axis=1).median()),
        greyscale=values.is_grey,
        pixel_values=values.spec,
        mirror=mirror,
        example_image=example_on_disk(
            rows[rows["split"] == "test"].iloc[0],
            listing.root,
            workspace / "sources" / "examples",
        ),
        notes=(
            *notes,
            *(notes_on_sets(rows, pairs) if task == MULTI_LABEL else ()),
            *notes_on_classes(counts),
            *range_notes,
            *split_notes,
            *notes_on_leakage(rows),
            *random_draws.notes(rows),
            *notes_on_augmented_copies(rows),
            *notes_on_patients(rows),
            *notes_on_size(rows),
            *(notes_on_held_out(rows, fractions, task) if labelled else ()),
            *(each.sentence for each in (dominant_groups(rows, task) if labelled else ())),
            *(
                [assumed]
                if labelled and (assumed := describe_unmeasured_symmetries(config))
                else []
            ),
            *([mirror.said] if mirror.said else []),
        ),
        split_origin=f"as in {earlier.words}" if earlier else split_origin,
        exclude=exclude,
        repeats=earlier.reference if earlier else None,
    )
    splits = split_memory.file_of(workspace, fractions, data.split_seed) if fractions else None
    said_once = range_notes or (split_notes and any_new)
    return result, splits, not said_once


def _read(
    source: _ListedSource,
    on_progress: StageProgress | None,
    earlier: EarlierData | None,
    draft: ScanDraft | None,
) -> tuple[pd.DataFrame, list[str], Path | None, DataValues]:
    """Return the manifest without splits of Patchline's own, notes, exclusions, and pixel values.

    With data of an earlier run, its manifest is returned, with its splits.
    """
    config, listing, scan_memory, facts = source
    labelled, data, workspace = uses_labels(config), config.data, scan_memory.workspace
    thumbnails = ThumbnailCollector() if data.group_near_duplicates and not earlier else None
    on_image = thumbnails.add if thumbnails is not None else None
    manifest = (
        earlier.manifest
        if earlier
        else scanning.scan(
            listing,
            _add_label(on_progress, "Reading images"),
            labelled=labelled,
            on_image=on_image,
            memory=scan_memory,
            facts=facts,
            draft=draft,
        )
    )
    manifest, more, exclude = left_out.apply_exclusion(
        data.exclude, manifest, workspace, alone=data.unlabelled is None
    )
    if earlier:
        checking = _add_label(on_progress, "Checking images")
        rest = earlier._replace(manifest=manifest)
        manifest, notes = reuse_manifest(config, rest, listing.root, workspace, checking)
    else:
        notes = _notes(manifest, listing, labelled=labelled)
    task = earlier.task if earlier else task_of(listing)
    check_images(manifest, listing.root, labelled=labelled, task=task)
    values = decide_values(manifest, listing.root, data, on_image, only_usable=True)
    notes = [*notes, *more, *values.notes, *values.frames]
    if thumbnails is not None:
        compared = SearchMemory(listing.root, workspace, fresh=scan_memory.fresh)
        manifest, note = with_near_groups(manifest, thumbnails, on_progress, compared)
        notes.append(note)
    return manifest if labelled else manifest.assign(label=""), notes, exclude, values


class Splitting(NamedTuple):
    """How some data is split."""

    fractions: dict[str, float]
    """Shares of the splits that the source does not give."""
    data_name: str
    """The source's name of the data."""
    task: Task
    """Whether an image has one class, or a set of labels."""


def assign_splits(
    manifest: pd.DataFrame,
    config: RunConfig,
    splitting: Splitting,
    workspace: Path,
    *,
    remember: bool,
) -> tuple[pd.DataFrame, list[str], bool]:
    """Assign every usable image that earlier runs have not assigned, and remember its split.

    Returns:
        The manifest with the splits, notes, and whether any image was new.
    """
    data = config.data
    fractions, data_name, task = splitting
    assign = partial(
        split.assign,
        manifest,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        seed=data.split_seed,
        task=task,
    )
    if not fractions:
        return *assign(), False

    def earlier() -> list[pd.DataFrame]:
        params = {key: config.flat()[key] for key in _SPLIT_SETTINGS}
        last = earlier_manifests.manifest_of_last_run(config.name or data_name, params)
        return [] if last is None else [last]

    movable = split.movable_rows(manifest)
    seed = data.split_seed
    while True:
        with (
            contextlib.suppress(ConflictError),  # another machine was faster: heed its entries
            split_memory.open_memory(workspace, fractions, seed, earlier, data_name) as memory,
        ):
            assigned, notes = assign(remembered=memory.table, scope=data_name)
            any_new = remember and memory.remember(assigned[movable])
            return assigned, notes, any_new


def resolve(config: RunConfig, data: IngestedData) -> RunConfig:
    """Fill in the settings that depend on the data: size, channels, name, plugin settings.

    Raises:
        ConfigError: if a setting does not fit the images.
    """
    size = config.data.image_size or default_image_size(data.median_side)
    channels = config.data.channels or (1 if data.greyscale else 3)
    for key in ("mean", "std"):
        values = getattr(config.data, key)
        if values is not None and len(values) != channels:
            raise ConfigError(
                f"data.{key} has {len(values)} values, but the images have {channels} channels. "
                f"Give {channels}, or leave it out."
            )
    traits = DataTraits(
        channels=channels,
        height=size,
        width=size,
        num_classes=len(data.classes),
        mirror_symmetric=data.mirror.is_symmetric,
    )
    resolved, several = resolve_settings(config, traits), data.task == MULTI_LABEL
    try:
        training = resolved.training.for_labels(several=bool(data.classes) and several)
    except ValueError as error:  # a setting is for the other task
        raise ConfigError(f"{error}.") from None
    if not (training.time_limit or config.record.step_plan):
        length = {"epochs": training.epochs_without_limit}
        training = training.model_copy(update=length)
    mirror = data.mirror
    sections = {
        "training": training,
        # nothing is left to follow from other settings
        "record": config.record.model_copy(update={"set_by_user": None}),
        "name": config.name or (data.name if data.classes else f"{data.name}-encoder"),
        "data": config.data.model_copy(
            update={
                "task": data.task if data.classes else config.data.task,
                "image_size": size,
                "channels": channels,
                "path": _absolute(config.data.path),
                "unlabelled": _absolute(config.data.unlabelled),
                "exclude": str(data.exclude) if data.exclude else None,
                "manifest": data.repeats,
                # so that a repetition of the run takes the same
                "mirror_symmetric": None if mirror.answer == "unknown" else mirror.is_symmetric,
            }
        ),
    }
    return resolved.model_copy(update=sections)


def prepare(
    config: RunConfig,
    data: IngestedData,
    workspace: Path,
    on_progress: StageProgress | None = None,
    *,
    fresh: bool = False,
) -> PreparedData:
    """Decode the images into the store, unless it exists and `fresh` is not set; measure train."""
    rows = manifests.usable(manifests.load(data.manifest_file))
    size, channels = config.data.image_size, config.data.channels
    if size is None or channels is None:
        raise DataError("The image size is unknown. Resolve the config first.")
    spec = prepared_store.StoreSpec(channels, size, size, config.data.resize, data.mapping)

    shared = chosen.find_shared_files() if streams(config, data) else None

    def decode(rows: pd.DataFrame, root: Path, label: str) -> tuple[Path, bool]:
        return prepared_store.prepare(
            rows,
            root,
            spec,
            workspace / "prepared",
            _add_label(on_progress, label),
            kind=config.data.store,
            fresh=fresh,
            shared=shared,
        )

    store, reused = decode(rows, data.root, "Decoding images")
    unlabelled = None
    if data.unlabelled:
        further = manifests.usable(manifests.load(data.unlabelled.manifest_file))
        unlabelled, same = decode(further, data.unlabelled.root, "Decoding unlabelled images")
        reused = reused and same
    training_rows = np.flatnonzero(rows["split"] == "train")
    piece = _STREAMED_PIECE if shared else _PIECE
    mean, std = channel_statistics(prepared_store.open_images(store), training_rows, piece)
    image = ImageSpec(
        channels=channels,
        height=size,
        width=size,
        mean=config.data.mean or mean,
        std=config.data.std or std,
        resize=config.data.resize,
        pixel_values=data.pixel_values,
    )
    return PreparedData(store=store, reused=reused, image=image, unlabelled=unlabelled)


def streams(config: RunConfig, data: IngestedData) -> bool:
    """Return whether the decoded images stay on the object store of a shared workspace.

    They do if they would take more than the cache of this machine may.

    Args:
        config: the resolved settings.
        data: the run's data, as ingested.
    """
    shared = workspace_of(data.manifest_file).uri
    return bool(shared) and count_decoded_bytes(config, data) > cache_limit.limit()


def count_decoded_bytes(config: RunConfig, data: IngestedData) -> int:
    """Return the bytes of all decoded images."""
    side, channels = config.data.image_size or 0, config.data.channels or 0
    return sum(data.counts.values()) * side * side * channels


def _absolute(path: str | None) -> str | None:
    return str(Path(path).resolve()) if path is not None and Path(path).exists() else path


def _add_label(on_progress: StageProgress | None, label: str) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(label, done, total)


def _notes(manifest: pd.DataFrame, listing: ImageListing, *, labelled: bool = True) -> list[str]:
    """Return the source's own notes, then what was left out and which classes are empty."""
    empty = notes_on_empty_classes(manifest, listing) if labelled else []
    return [*listing.notes, *notes_on_files(manifest), *empty]
