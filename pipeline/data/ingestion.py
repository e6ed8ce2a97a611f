"""The stages before training, each one function from small values to small values."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config import RunConfig
from pipeline.data import earlier_manifests, prepared_store, split, split_memory
from pipeline.data import manifest as manifests
from pipeline.data.same_images import content_numbers
from pipeline.errors import DataError, PluginError
from pipeline.files.atomic_files import storage_errors
from pipeline.plugin_api import DataTraits, ImageListing, ImageSpec, SourceContext
from pipeline.plugin_system import plugin_loader
from pipeline.plugin_system.plugin_settings import resolve_settings
from pipeline.section import Section
from pipeline.workspace import make_folder

logger = logging.getLogger(__name__)

_SIZES = (8, 16, 32, 64, 96)
"""Image sizes that are chosen by default: the largest that most images reach without enlarging."""
_GREY_MODES = ["1", "L", "LA", "I", "I;16", "I;16B", "I;16L"]
_NAMED_FILES = 20
_FEW_IMAGES = 50
_SPLIT_SETTINGS = ("data.split_seed", "data.validation_fraction", "data.test_fraction")
"""A run with the same values has split its images as this one would."""
StageProgress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class IngestedData(Section):
    """A manifest on disk, and what it says in numbers."""

    name: str
    """What the source calls the data."""
    manifest_file: Path
    fingerprint: str
    root: Path
    """The folder that the manifest's paths are relative to."""
    classes: tuple[str, ...]
    counts: dict[str, int]
    """Usable images by split."""
    class_counts: dict[str, int]
    """Usable images by class."""
    median_side: int
    """Median of the images' shorter sides, in pixels."""
    greyscale: bool
    mirror_symmetric: bool
    example_image: str
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    """What a person should know: files left out, splits carved, duplicates."""


@dataclass(frozen=True)
class ScannedData:
    """What a source holds, without splits of ours."""

    name: str
    root: Path
    manifest: pd.DataFrame
    notes: tuple[str, ...]


class PreparedData(Section):
    """A store on disk and the images that it holds."""

    store: Path
    reused: bool
    image: ImageSpec


def check_source(config: RunConfig, workspace: Path, *, to_train: bool = True) -> None:
    """List the source without opening an image, so that a wrong path is answered at once.

    Raises:
        DataError: if there is nothing there, or nothing to train on.
    """
    listing = _listing(config, workspace)
    if not to_train:
        return
    labels = {listed.label for listed in listing.images} - {""}
    if len(labels) == 1:
        raise _one_class(listing, labels)


def scan(
    config: RunConfig, workspace: Path, on_progress: StageProgress | None = None
) -> ScannedData:
    """List the source and describe every file; nothing is split, and one class is enough.

    Raises:
        DataError: if the source cannot be read.
    """
    listing = _listing(config, workspace)
    manifest = manifests.scan(listing, _labelled(on_progress, "Reading images"))
    return ScannedData(
        name=listing.name,
        root=listing.root,
        manifest=manifest,
        notes=(*_notes_on_files(manifest), *_notes_on_empty_classes(manifest, listing)),
    )


def ingest(
    config: RunConfig,
    workspace: Path,
    on_progress: StageProgress | None = None,
    *,
    remember: bool = True,
) -> IngestedData:
    """List the source, describe every file, split, and save the manifest.

    Args:
        config: names the source, and how it is split.
        workspace: the folder `.patchline`.
        on_progress: sees how far the reading has come.
        remember: keep the split of every image for later runs.

    Raises:
        DataError: if the images or labels cannot be used; nothing is saved then.
    """
    listing = _listing(config, workspace)
    scan_progress = _labelled(on_progress, "Reading images")
    manifest = manifests.scan(listing, scan_progress)
    notes = [*_notes_on_files(manifest), *_notes_on_empty_classes(manifest, listing)]
    _check_classes(manifest, listing)
    manifest, split_notes = _split(manifest, config, listing.name, workspace, remember=remember)
    fingerprint = manifests.fingerprint(manifest)
    file = workspace / "manifests" / f"{fingerprint}.parquet"
    manifests.save(manifest, file)
    rows = manifests.usable(manifest)
    return IngestedData(
        name=listing.name,
        manifest_file=file,
        fingerprint=fingerprint,
        root=listing.root,
        classes=tuple(manifests.classes(manifest)),
        counts={name: int((rows["split"] == name).sum()) for name in split.SPLITS},
        class_counts={str(k): int(v) for k, v in rows["label"].value_counts().sort_index().items()},
        median_side=int(rows[["width", "height"]].min(axis=1).median()),
        greyscale=bool(rows["mode"].isin(_GREY_MODES).all()),
        mirror_symmetric=listing.mirror_symmetric,
        example_image=str(listing.root / rows.loc[rows["split"] == "test", "path"].iloc[0]),
        notes=(*notes, *split_notes, *_notes_on_leakage(rows), *_notes_on_size(rows)),
    )


def _split(
    manifest: pd.DataFrame, config: RunConfig, data_name: str, workspace: Path, *, remember: bool
) -> tuple[pd.DataFrame, list[str]]:
    """Assign every usable image, as far as earlier runs have not, and remember it."""
    data = config.data
    fractions = (data.validation_fraction, data.test_fraction)
    wanted = split.wanted_splits(manifest, *fractions)
    if not wanted:
        return split.assign(
            manifest,
            validation_fraction=data.validation_fraction,
            test_fraction=data.test_fraction,
            seed=data.split_seed,
        )
    movable = split.movable_rows(manifest)

    def earlier() -> list[pd.DataFrame]:
        params = {key: config.flat()[key] for key in _SPLIT_SETTINGS}
        last = earlier_manifests.manifest_of_last_run(config.name or data_name, params)
        return [] if last is None else [last]

    with split_memory.opened(workspace, wanted, data.split_seed, earlier) as memory:
        manifest, notes = split.assign(
            manifest,
            validation_fraction=data.validation_fraction,
            test_fraction=data.test_fraction,
            seed=data.split_seed,
            remembered=memory.table,
        )
        if remember:
            memory.remember(manifest[movable])
    return manifest, notes


def resolve(config: RunConfig, data: IngestedData) -> RunConfig:
    """Fill in every setting that depends on the data: size, channels, name, plugin settings.

    Raises:
        ConfigError: if a setting does not fit the images.
    """
    size = config.data.image_size or default_image_size(data.median_side)
    channels = config.data.channels or (1 if data.greyscale else 3)
    traits = DataTraits(
        channels=channels,
        height=size,
        width=size,
        num_classes=len(data.classes),
        mirror_symmetric=data.mirror_symmetric,
    )
    resolved = resolve_settings(config, traits)
    sections = {
        "name": config.name or data.name,
        "data": config.data.model_copy(
            update={"image_size": size, "channels": channels, "path": _absolute(config)}
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
    """Decode the images into the store, unless a whole one exists, and measure the training split.

    With `fresh` they are decoded whatever exists.
    """
    rows = manifests.usable(manifests.load(data.manifest_file))
    size, channels = config.data.image_size, config.data.channels
    if size is None or channels is None:
        raise DataError("The image size is not known yet. Resolve the config first.")
    spec = prepared_store.StoreSpec(channels, size, size, config.data.resize)
    store, reused = prepared_store.prepare(
        rows,
        data.root,
        spec,
        workspace / "prepared",
        _labelled(on_progress, "Decoding images"),
        fresh=fresh,
    )
    training_rows = np.flatnonzero(rows["split"] == "train")
    mean, std = prepared_store.channel_statistics(prepared_store.open_images(store), training_rows)
    image = ImageSpec(
        channels=channels, height=size, width=size, mean=mean, std=std, resize=config.data.resize
    )
    return PreparedData(store=store, reused=reused, image=image)


def default_image_size(median_side: int) -> int:
    """Return the largest of 8, 16, 32, 64 and 96 pixels that is not above the median side."""
    return max([size for size in _SIZES if size <= median_side], default=_SIZES[0])


def _listing(config: RunConfig, workspace: Path) -> ImageListing:
    plugin = plugin_loader.load_data_source(config.data.source)
    options = plugin.config_class.model_validate(config.data.options)
    work_dir = workspace / "sources" / config.data.source
    with storage_errors(workspace.parent):
        make_folder(work_dir)
    with plugin_loader.plugin_errors(
        "data_source", config.data.source, "failed to list its images"
    ):
        source = plugin.build(options, SourceContext(path=config.data.path, work_dir=work_dir))
        listing = source.list_images()
    if not isinstance(listing, ImageListing):
        raise PluginError(
            f"The data source '{config.data.source}' returned a {type(listing).__name__}, not an "
            "ImageListing. Repair the plugin."
        )
    try:
        RunConfig(name=listing.name)
    except ValueError as error:
        raise PluginError(
            f"The data source '{config.data.source}' calls the data {listing.name!r}, which is no "
            "valid name. Repair the plugin, or choose a --name."
        ) from error
    return listing


def _absolute(config: RunConfig) -> str | None:
    path = config.data.path
    return str(Path(path).resolve()) if path is not None and Path(path).exists() else path


def _labelled(on_progress: StageProgress | None, label: str) -> Callable[[int, int], None] | None:
    if on_progress is None:
        return None
    return lambda done, total: on_progress(label, done, total)


def _check_classes(manifest: pd.DataFrame, listing: ImageListing) -> None:
    labelled = manifest[(manifest["label"] != "") & (manifest["status"] != "foreign")]
    readable = set(manifests.usable(manifest)["label"])
    for label in sorted(set(labelled["label"])):
        if label not in readable:
            files = labelled.loc[labelled["label"] == label]
            raise DataError(
                f"Class '{label}' has no readable image ({files.iloc[0]['path']}: "
                f"{files.iloc[0]['reason']}). Repair its files, or remove the class."
            )
    if len(readable) == 1:
        raise _one_class(listing, readable)


def _one_class(listing: ImageListing, labels: set[str]) -> DataError:
    return DataError(
        f"{listing.root} holds one class only, '{next(iter(labels))}'. A classifier needs at "
        "least two folders of images, one for each class."
    )


def _notes_on_files(manifest: pd.DataFrame) -> list[str]:
    notes = []
    for status, words in (
        ("damaged", ("is damaged", "are damaged")),
        ("foreign", ("is not an image of a class", "are not images of a class")),
    ):
        rows = manifest[manifest["status"] == status]
        for path, reason in zip(rows["path"], rows["reason"], strict=True):
            logger.debug("left out %s: %s", path, reason)
        named = [
            f"{path} ({reason})" for path, reason in zip(rows["path"], rows["reason"], strict=True)
        ]
        if named:
            one = len(named) == 1
            notes.append(
                f"{len(named)} file{'' if one else 's'} {words[not one]} and "
                f"{'was' if one else 'were'} left out: {manifests.examples(named, _NAMED_FILES)}"
            )
    return notes


def _notes_on_size(rows: pd.DataFrame) -> list[str]:
    counts = rows["split"].value_counts()
    words = {
        "validation": "the best epoch and the calibration hang on chance",
        "test": "the test figures are rough",
    }
    return [
        f"only {counts[split]} {split} images: {meaning}"
        for split, meaning in words.items()
        if counts[split] < _FEW_IMAGES
    ]


def _notes_on_empty_classes(manifest: pd.DataFrame, listing: ImageListing) -> list[str]:
    """Name the class folders without an image; a model of this data does not know such a class."""
    labelled = manifest[manifest["label"] != ""]
    foreign = labelled["status"] == "foreign"
    without = sorted(set(labelled.loc[foreign, "label"]) - set(labelled.loc[~foreign, "label"]))
    empty = sorted({*listing.empty_classes, *without})
    if not empty:
        return []
    words = "class folder has" if len(empty) == 1 else "class folders have"
    return [f"{len(empty)} {words} no image: {manifests.examples(empty, _NAMED_FILES)}"]


def _notes_on_leakage(rows: pd.DataFrame) -> list[str]:
    """Name the images that lie in two splits, as one file or with the same pixels, and groups."""
    notes = []
    shared = _in_several_splits(rows, content_numbers(rows)[0])
    if shared.any():
        count = int(content_numbers(rows[shared])[0].nunique())
        verb = " lies" if count == 1 else "s lie"
        where = f"{count} image{verb} in more than one split, so the test metrics are optimistic"
        notes.append(f"{where}: {manifests.examples(rows.loc[shared, 'path'])}")
    grouped = rows[rows["group"] != ""]
    groups = sorted(set(grouped.loc[_in_several_splits(grouped, grouped["group"]), "group"]))
    if groups:
        verb = " lies" if len(groups) == 1 else "s lie"
        where = (
            f"{len(groups)} group{verb} in more than one split, so the test metrics are optimistic"
        )
        notes.append(f"{where}: {manifests.examples(groups)}")
    return notes


def _in_several_splits(rows: pd.DataFrame, by: pd.Series[Any]) -> pd.Series[bool]:
    return rows["split"].groupby(by).transform("nunique") > 1
