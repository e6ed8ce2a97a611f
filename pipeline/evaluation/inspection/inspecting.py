"""Inspect data: read it once, split it as a run would, and collect what is unusual."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion, unlabelled_images
from patchline.pipeline.data.ingestion import ScannedData
from patchline.pipeline.data.ingestion_notes import notes_on_held_out, notes_on_size
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task, label_pairs
from patchline.pipeline.data.manifests import left_out
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.class_checks import check_images, unreadable_classes
from patchline.pipeline.data.manifests.source_listing import uses_labels
from patchline.pipeline.data.near_duplicates.grouping import group_by
from patchline.pipeline.data.near_duplicates.search import near_duplicates
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.color_profile import foreign_profile
from patchline.pipeline.data.reading.image_formats import HEAD_BYTES, format_of
from patchline.pipeline.data.reading.image_quality import as_grey, quality_of_grey, shrunk
from patchline.pipeline.data.splits import random_draws, split
from patchline.pipeline.data.splits.class_coverage import SPLITS
from patchline.pipeline.data.splits.leakage import find_given_splits, notes_on_patients
from patchline.pipeline.data.symmetry.assumed_symmetries import describe_unmeasured_symmetries
from patchline.pipeline.data.symmetry.mirror_probe import with_one_label
from patchline.pipeline.data.symmetry.mirror_symmetry import Files, mirror_symmetry
from patchline.pipeline.data.unlabelled_images import read_unlabelled
from patchline.pipeline.data.value_ranges.data_values import DataValues, summaries
from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.inspection.class_findings import (
    co_occurrence,
    finding_on_mirror_images,
    findings_on_classes,
    findings_on_sets,
)
from patchline.pipeline.evaluation.inspection.findings import (
    KINDS,
    SEVERITIES,
    Finding,
    Inspection,
    Range,
    Sizes,
    finding_on_files,
)
from patchline.pipeline.evaluation.inspection.image_findings import (
    finding_on_unlabelled,
    findings_on_duplicates,
    findings_on_format,
    findings_on_frames,
    findings_on_light,
    findings_on_profiles,
    findings_on_size,
    findings_on_status,
)
from patchline.pipeline.evaluation.inspection.label_errors import (
    Judgement,
    findings_on_label_sets,
    findings_on_labels,
)
from patchline.pipeline.terminal_words import counted

_MAPPED = (
    "Maps the values of all images by one range, in runs and in their packages alike. Set "
    "data.value_range or data.bands to choose otherwise."
)
_AS_IT_IS = "Uses the images as this says, in runs and in their packages alike."


def findings_on_values(rows: pd.DataFrame, values: DataValues) -> list[Finding]:
    """Return what becomes of values and bands, and why a run cannot use them.

    Args:
        rows: the usable images.
        values: what was decided about the values and bands of the data set.
    """
    deep = [each.is_deep or each.reduced > 0 for each in summaries(rows)]
    files = tuple(rows["path"][deep])
    findings = []
    if values.problem:
        findings.append(
            finding_on_files(
                values.problem_kind,
                "error",
                files or tuple(rows["path"]),
                str(values.problem).partition(". ")[0] + ".",
                f"Stops a run. {str(values.problem).partition('. ')[2]}",
            )
        )
    if values.notes and not (values.problem and values.problem_kind == "value_range"):
        findings.append(
            finding_on_files(
                "value_range",
                "warning" if values.losses else "note",
                files or tuple(rows["path"]),
                f"{'; '.join(values.notes)}.",
                _MAPPED if values.spec.ranges or values.spec.bands else _AS_IT_IS,
            )
        )
    return findings


COLUMNS = ["format", "profile", "brightest", "contrast", "entropy", "sharpness"]
Array = np.ndarray[Any, Any]


class ImageMeasures:
    """Collects the measures of images; `add` may be called by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, int] = {}
        self._values: list[tuple[str, str, float, float, float, float]] = []
        self._thumbnails = ThumbnailCollector()

    def add(self, path: str, data: bytes, image_HWC: Array) -> None:
        """Measure one image: its path, the file, and the decoded RGB pixels."""
        small = shrunk(image_HWC)
        kind, profile = format_of(data[:HEAD_BYTES]) or "", foreign_profile(data)
        values = (kind, profile, *quality_of_grey(as_grey(small)))
        self._thumbnails.add_shrunk(path, small)
        with self._lock:
            self._paths[path] = len(self._values)
            self._values.append(values)

    def table(self, paths: pd.Series[str]) -> pd.DataFrame:
        """Return the columns `COLUMNS` for some images, in their order and with their index."""
        rows = [self._values[self._paths[path]] for path in paths]
        return pd.DataFrame(rows, columns=COLUMNS, index=paths.index)

    def thumbnails(self, paths: pd.Series[str]) -> Thumbnails:
        """Return the thumbnails of some images, in their order."""
        return self._thumbnails.of(paths)


_SQUARE = 1.05
_NO_SPLIT = "unassigned"
Progress = Callable[[str, int, int], None]
Judge = Callable[[pd.DataFrame, Path], Judgement]
"""Takes the usable images, and the folder or archive that their paths are relative to."""


@dataclass(frozen=True)
class Inspected:
    """The result of an inspection, with what its page and its table need."""

    result: Inspection
    root: Path
    """The folder or archive that the paths are relative to."""
    manifest: pd.DataFrame
    """The manifest, with the splits of a run."""
    mapping: PixelMapping
    """What becomes of values that are not of 8 bits."""


def inspect_data(
    config: RunConfig,
    workspace: Path,
    on_progress: Progress | None = None,
    judge: Judge | None = None,
) -> Inspected:
    """Inspect the data of a run.

    Args:
        config: the source and the split settings.
        workspace: the folder `.patchline`; the splits are not remembered in it.
        on_progress: called while the images are read and compared.
        judge: predicts the labels; without it, no label errors are searched for.

    Raises:
        DataError: if the source cannot be read, or `judge` finds no label to check.
    """
    measures = ImageMeasures()
    scanned = ingestion.scan(config, workspace, on_progress, measures.add)
    # files that are left out and empty classes, which scanned.notes name too, are findings here
    manifest, notes = scanned.manifest, [*scanned.source_notes, *_note_unused_manifest(config)]
    data = config.data
    if data.exclude is not None:
        excluded = left_out.read_exclusion(Path(data.exclude))
        manifest, more = left_out.with_exclusion(manifest, excluded, alone=data.unlabelled is None)
        notes += more
    rows = manifests.usable(manifest)
    near = np.zeros(0, np.int64)
    if len(rows):
        compared = SearchMemory(scanned.root, workspace)
        near = near_duplicates(measures.thumbnails(rows["path"]), rows, on_progress, compared)
        if data.group_near_duplicates:
            manifest, note = group_by(manifest, near)
            notes.append(note)
    task = scanned.task
    assigned, origin, more = _with_splits(manifest, scanned, config, workspace)
    rows = manifests.usable(assigned)
    findings, unlabelled = findings_on_status(manifest), 0
    if data.unlabelled is not None:
        plain = scanned.pixel_values.mapping
        _, further, of_files = read_unlabelled(
            config, assigned, scanned.root, plain, workspace, on_progress
        )
        unlabelled = int((further["status"] == "ok").sum())
        more = [*more, f"data.unlabelled: {counted(unlabelled, 'image')} without labels", *of_files]
        findings += finding_on_unlabelled(unlabelled_images.find_held_out_copies(further, rows))
    if len(rows):
        measured = pd.concat([rows, measures.table(rows["path"])], axis=1)
        given = find_given_splits(manifest).reset_index(drop=True)
        findings += [
            *findings_on_format(measured),
            *findings_on_profiles(measured, label_pairs(rows["label"], task)),
            *findings_on_frames(rows),
            *findings_on_values(rows, scanned.pixel_values),
            *findings_on_size(rows),
            *findings_on_light(measured),
            *findings_on_duplicates(
                rows, given, near, grouped=data.group_near_duplicates, task=task
            ),
        ]
    if uses_labels(config):
        findings += _on_labels(manifest, rows, scanned, config)
    mapping = scanned.pixel_values.mapping
    one, files = with_one_label(rows, task), Files(scanned.root, mapping)
    mirror = mirror_symmetry(config, scanned.mirror_symmetric, one, files, workspace)
    on_mirror = finding_on_mirror_images(mirror, label_pairs(rows["label"], task).names)
    findings += on_mirror
    assumed = describe_unmeasured_symmetries(config) if uses_labels(config) else ""
    more = [*more, *([assumed] if assumed else [])]
    more += [mirror.note] if mirror.note and not on_mirror else []
    if judge is not None:
        judgement = judge(manifests.with_task(rows, task), scanned.root)
        of_task = findings_on_label_sets if task == MULTI_LABEL else findings_on_labels
        findings += of_task(rows, judgement)
        more = [*more, *judgement.notes()]
    result = Inspection(
        name=scanned.name,
        split_origin=origin,
        findings=_sort(findings),
        notes=(*notes, *more),
        unlabelled=unlabelled,
        **summarize(assigned, mapping, task),
    )
    return Inspected(result, scanned.root, assigned, mapping)


def _on_labels(
    manifest: pd.DataFrame, rows: pd.DataFrame, scanned: ScannedData, config: RunConfig
) -> list[Finding]:
    """Return the findings about classes, or about sets of labels.

    Args:
        manifest: the manifest, with the splits that the source gives.
        rows: the usable images.
        scanned: the task and the empty classes.
        config: the split settings.
    """
    data, task = config.data, scanned.task
    fractions = split.split_fractions(manifest, data.validation_fraction, data.test_fraction)
    divided = (find_given_splits(manifest) == "train").reset_index(drop=True)
    unreadable = unreadable_classes(manifest, task)
    needed = len(fractions) + 1
    on_classes = findings_on_classes(rows, divided, scanned.empty_classes, needed, unreadable, task)
    if task != MULTI_LABEL:
        return on_classes
    return [*on_classes, *findings_on_sets(rows, label_pairs(rows["label"], task))]


def _note_unused_manifest(config: RunConfig) -> list[str]:
    """Return a note on `data.manifest`, which only a run uses."""
    if config.data.manifest is None:
        return []
    return ["the data is inspected as it is now: data.manifest affects runs only"]


def _with_splits(
    manifest: pd.DataFrame, scanned: ScannedData, config: RunConfig, workspace: Path
) -> tuple[pd.DataFrame, str, list[str]]:
    """Return the manifest as a run would split it; if it could not, with the source's splits.

    The notes say what stops a run.
    """
    data = config.data
    stops: list[str] = []
    try:
        check_images(manifest, scanned.root, labelled=uses_labels(config), task=scanned.task)
    except DataError as error:
        stops = [f"a run would stop: {error}"]
    if scanned.pixel_values.problem:
        stops = [*stops, f"a run would stop: {scanned.pixel_values.problem}"]
    if manifests.usable(manifest).empty:
        return manifest, "no image can be read", stops or ["a run would stop: no image can be read"]
    fractions = split.split_fractions(manifest, data.validation_fraction, data.test_fraction)
    try:
        assigned, on_splits, _ = ingestion.assign_splits(
            manifest,
            config,
            ingestion.Splitting(fractions, scanned.name, scanned.task),
            workspace,
            remember=False,
        )
    except DataError as error:
        unassigned = (manifest["status"] == "ok") & (manifest["split"] == "")
        return (
            manifest.assign(split=manifest["split"].mask(unassigned, _NO_SPLIT)),
            "as given by the data; a run cannot split it",
            stops or [f"a run would stop: {error}"],
        )
    rows, task = manifests.usable(assigned), scanned.task
    held_out = notes_on_held_out(rows, fractions, task) if uses_labels(config) else []
    told = [*stops, *on_splits, *random_draws.notes(rows), *notes_on_patients(rows)]
    told += [*notes_on_size(rows), *held_out]
    return assigned, split.origin(manifest, fractions), told


def _sort(findings: list[Finding]) -> tuple[Finding, ...]:
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    return tuple(sorted(findings, key=lambda each: (order[each.severity], KINDS.index(each.kind))))


def summarize(manifest: pd.DataFrame, mapping: PixelMapping, task: Task) -> dict[str, Any]:
    """Return what an inspection counts, by field of `Inspection`.

    Args:
        manifest: the manifest, with the splits of a run.
        mapping: what becomes of values that are not of 8 bits.
        task: whether an image has one class, or a set of labels.
    """
    rows = manifests.usable(manifest)
    pairs = label_pairs(rows["label"], task)
    labels = np.array(pairs.names, dtype=object)[pairs.labels]
    splits = rows["split"].to_numpy(object)
    of_splits = _counts(rows["split"])
    names = [each for each in (*SPLITS, _NO_SPLIT) if each in of_splits]
    table = pd.crosstab(labels, splits[pairs.images]).reindex(columns=names, fill_value=0)
    several: dict[str, Any] = {}
    if task == MULTI_LABEL:
        sizes = np.bincount(pairs.images, minlength=len(rows))
        several = {
            "co_occurrence": co_occurrence(pairs, len(rows)),
            "set_sizes": {size: int((sizes == size).sum()) for size in np.unique(sizes).tolist()},
        }
    return {
        "images": len(rows),
        "files": len(manifest),
        "task": task,
        "classes": pairs.counts(),
        "splits": {each: of_splits[each] for each in names},
        "class_splits": {
            str(label): {each: int(counts[each]) for each in names}
            for label, counts in table.iterrows()
        },
        "sizes": _sizes(rows) if len(rows) else None,
        "modes": _counts(rows["mode"]),
        "aspect_ratios": _shapes(rows),
        "fingerprint": manifests.fingerprint(manifest, mapping),
        **several,
    }


def _counts(values: pd.Series[str]) -> dict[str, int]:
    return {str(name): int(count) for name, count in values.value_counts().sort_index().items()}


def _sizes(rows: pd.DataFrame) -> Sizes:
    sides = {name: _range(rows[name]) for name in ("width", "height")}
    shorter = _range(rows[["width", "height"]].min(axis=1))
    return Sizes(**shorter.model_dump(), **sides)


def _range(values: pd.Series[int]) -> Range:
    return Range(min=int(values.min()), median=int(values.median()), max=int(values.max()))


def _shapes(rows: pd.DataFrame) -> dict[str, int]:
    ratio = rows["width"] / rows["height"]
    shapes = np.select(
        [ratio > _SQUARE, ratio < 1 / _SQUARE], ["landscape", "portrait"], default="square"
    )
    return _counts(pd.Series(shapes, dtype=object))
