"""Evaluate a registered version on any data: `patchline evaluate MODEL DATA`.

The package predicts, so neither torch nor a plugin is needed. Images that the version used for
training or model selection are left out by default, because metrics on them are optimistic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingestion import ScannedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import are_known, by_task, label_pairs
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.manifest import check_slices, own_columns
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.value_ranges.data_values import notes_on_fit
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.answers_report import (
    NO_FEATURES,
    SAME_IMAGES,
    AnswersReport,
    MeasuredImages,
    PredictedImages,
    check_answers,
)
from patchline.pipeline.evaluation.config import EvaluationConfig, SplitChoice
from patchline.pipeline.evaluation.html_report import ReportContents, ReportPage, write_report
from patchline.pipeline.evaluation.predictions import Predictions, image_groups
from patchline.pipeline.evaluation.report import ReportSubject
from patchline.pipeline.evaluation.robustness import (
    VERSIONS,
    AnyRobustness,
    sample_rows,
)
from patchline.pipeline.evaluation.tasks import AnyReport, Task
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import AnswerRules
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE, load_reference_images
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.registered_models import GIVEN, ModelReference
from patchline.pipeline.registry.version_records import VersionRecords, available_records
from patchline.pipeline.terminal_words import by_number, counted, few_names
from patchline.pipeline.workspace.files.stored_images import StoredImages

Array = np.ndarray[Any, Any]
StageProgress = Callable[[str, int, int], None]
_BATCH = 64
_SEED = 0
"""Draws the images that are corrupted, and the corruptions."""


class EvaluationChoices(FrozenModel):
    """Which images are evaluated, and how."""

    split: SplitChoice = "auto"
    """A split that the data defines; auto uses its test split if it has one, otherwise all."""
    seen_images: bool = False
    """Include images that the version used for training or model selection."""
    common_classes: bool = False
    """Leave out images whose class the model does not have."""
    report: EvaluationConfig = EvaluationConfig()
    """Settings of the report."""


@dataclass(frozen=True)
class Selection:
    """The images to evaluate on, and notes on what was left out."""

    rows: pd.DataFrame
    split: str
    """The prefix of the metrics."""
    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ChosenImages:
    """A version, and the images to evaluate it on."""

    records: VersionRecords
    data: ScannedData
    selection: Selection


@dataclass(frozen=True)
class VersionEvaluation:
    """A report on a registered version, and its location."""

    reference: ModelReference
    data: ScannedData
    selection: Selection
    report: AnyReport
    html: Path


def choose_images(
    reference: ModelReference,
    config: RunConfig,
    choices: EvaluationChoices,
    workspace: Path,
    on_progress: StageProgress,
) -> ChosenImages:
    """Read the data and choose the images; only a data source may write files.

    Args:
        reference: the version to evaluate.
        config: its section `data` names the source.
        choices: the user's choice of images, such as a split.
        workspace: the folder in which a data source may write.
        on_progress: called as the data is read.

    Raises:
        DataError: if no image is left, or the classes differ from the model's.
        ConfigError: if the images are to be sliced by a column that is not there, or `data.task`
            is not the model's.
        ModelReferenceError: if the version's files are missing.
    """
    records = available_records(reference)
    classes = tuple(records.package.classes)
    data = ingestion.scan(with_task(config, reference, records.task.name), workspace, on_progress)
    check_slices(choices.report.slices, data.manifest.columns)
    selection = select(data, records, classes, choices)
    notes = notes_on_fit(selection.rows, records.package.mapping)
    selection = replace(selection, notes=(*selection.notes, *notes))
    return ChosenImages(records, data, selection)


def with_task(
    config: RunConfig, reference: ModelReference, task: label_sets.Task | None
) -> RunConfig:
    """Return the settings of data for a version, whose task answers what the data leave open.

    Args:
        config: its section `data` names the source.
        reference: the version that the data are for.
        task: the version's task; None if it is not known yet.

    Raises:
        ConfigError: if the settings ask for another task.
    """
    asked = config.data.task
    if task is None or asked == task:
        return config
    if asked != AUTO:
        raise ConfigError(
            f"data.task is {asked}, but {reference.name}, version {reference.version}, gives an "
            f"image {GIVEN[task]}. Leave --data.task out."
        )
    return config.model_copy(update={"data": config.data.model_copy(update={"task": task})})


def evaluate_version(
    chosen: ChosenImages,
    choices: EvaluationChoices,
    workspace: Path,
    folder: Path,
    on_progress: StageProgress,
) -> VersionEvaluation:
    """Predict the chosen images with the package, and write the report.

    Args:
        chosen: the version and its images.
        choices: the user's choices, which include the settings of the report.
        workspace: the folder in which decoded images are cached.
        folder: receives the report, its charts and the predictions.
        on_progress: called as each stage advances.
    """
    data, selection, package = chosen.data, chosen.selection, chosen.records.package
    images = prepare_images(package, selection.rows, data.root, workspace, on_progress)
    probabilities, distances = _predict(package, images, on_progress)
    unused = set(own_columns(selection.rows.columns)) - set(choices.report.slices)
    rows = selection.rows.drop(columns=list(unused))
    task, classes, reference = chosen.records.task, tuple(package.classes), chosen.records.reference
    fit = task.recorded(package)
    table = task.table(rows, classes, probabilities, fit)
    predictions = task.predictions(table, classes)
    subject = ReportSubject(
        name=reference.name,
        classes=classes,
        split=selection.split,
        data_fingerprint=selection.fingerprint,
        computed_by=f"the package of {reference.name}, version {reference.version} (model.onnx, "
        "float32)",
    )
    report = task.report(predictions, subject, fit, choices.report).model_copy(
        update={
            "provenance": chosen.records.provenance.summary,
            "answers": _answers(package, predictions, images, distances, choices.report),
            "robustness": _robustness(chosen.records, images, rows, choices.report, on_progress),
        }
    )
    page = _page(chosen.records, data, selection, choices)
    contents = ReportContents(page, table, lambda position: images[position])
    html = write_report(task.parts, report, contents, folder)
    return VersionEvaluation(reference, data, selection, report, html)


def _robustness(
    records: VersionRecords,
    images: StoredImages,
    evaluated: pd.DataFrame,
    config: EvaluationConfig,
    on_progress: StageProgress,
) -> AnyRobustness | None:
    """Predict a sample of the images in corrupted versions, if the settings ask for it."""
    if not config.corruptions:
        return None
    sample = sample_rows(len(images), config.corruptions, _SEED)
    stage = f"Predicting {counted(len(sample) * (VERSIONS + 1), 'image')}, most of them corrupted"
    return records.task.robustness(
        records.package.probabilities,
        np.array(images[sample]),
        records.task.labels(list(evaluated["label"].iloc[sample]), records.package.classes),
        _SEED,
        lambda done, total: on_progress(stage, done, total),
        image_groups(evaluated.iloc[sample]),
    )


def select(
    data: ScannedData,
    records: VersionRecords,
    classes: tuple[str, ...],
    choices: EvaluationChoices,
) -> Selection:
    """Choose the images to evaluate on, and note what is left out.

    Args:
        data: all images of the source.
        records: the version's records.
        classes: the model's classes.
        choices: the user's choice of images, such as a split.

    Raises:
        DataError: if no image is left, or classes differ.
    """
    rows = manifests.usable(data.manifest)
    notes = list(data.notes)
    rows, split = _of_split(rows, choices.split)
    rows = _of_classes(rows, classes, choices, notes, records.task)
    provenance = records.provenance.summary
    if not records.is_recorded and not choices.seen_images:
        raise DataError(
            f"{_capitalize(provenance.sentence(records.label))}, and its training data is no "
            "longer recorded. Add --seen-images to evaluate on all images."
        )
    rows = _select_unseen(rows, records, choices, notes)
    if caveat := provenance.caveat(records.label, "these images"):
        notes.append(caveat)
    if rows.empty:
        raise DataError(
            f"No image of {data.root} is left to evaluate on ({'; '.join(notes) or 'it is empty'})."
            " Pass other data, or add --seen-images to include the model's training images."
        )
    fingerprint = manifests.fingerprint(rows)
    return Selection(rows.reset_index(drop=True), split, fingerprint, tuple(notes))


def _of_split(rows: pd.DataFrame, choice: SplitChoice) -> tuple[pd.DataFrame, str]:
    there = sorted(set(rows["split"]) - {""})
    if choice == "all" or (choice == "auto" and "test" not in there):
        return rows, "all"
    split = "test" if choice == "auto" else choice
    if split not in there:
        if not there:
            raise DataError(
                f"The data defines no splits, so it has no split '{split}'. Set --split to all."
            )
        raise DataError(
            f"The data has no split '{split}'. Its splits: {', '.join(there)}. Choose another "
            "--split, or all."
        )
    return rows[rows["split"] == split], split


def _of_classes(
    rows: pd.DataFrame,
    classes: tuple[str, ...],
    choices: EvaluationChoices,
    notes: list[str],
    task: Task[Any],
) -> pd.DataFrame:
    """Return the images all of whose labels the model has; it is an error if some are left out."""
    counts, several = label_pairs(rows["label"], task.name).counts(), by_task(task.name).several
    strange = sorted(set(counts) - set(classes))
    absent = sorted(set(classes) - set(counts))
    if strange and not choices.common_classes:
        only = [f"{name} ({counted(counts[name], 'image')})" for name in strange]
        raise DataError(
            f"The data and the model have different {several}. Only in the data: "
            f"{few_names(only, 20)}. "
            f"{f'Only in the model: {few_names(absent, 20)}. ' if absent else ''}"
            f"{task.remedy(len(set(classes) & set(counts)))}"
        )
    kept = rows[are_known(rows["label"], classes, task.name)]
    if strange:
        left_out = len(rows) - len(kept)
        notes.append(
            f"{counted(left_out, 'image was', 'images were')} left out because the model does not "
            f"have {by_number(left_out, *task.lacking)}: {few_names(strange, 20)}"
        )
    if absent:
        notes.append(f"{several} of the model without images: {few_names(absent, 20)}")
    return kept


def _select_unseen(
    rows: pd.DataFrame, records: VersionRecords, choices: EvaluationChoices, notes: list[str]
) -> pd.DataFrame:
    is_seen = records.has_seen(rows)
    count = int(is_seen.sum())
    if count == 0:
        return rows
    if choices.seen_images:
        notes.append(
            f"the model used {count:,} of these {len(rows):,} images for training or model "
            "selection, so the metrics are optimistic"
        )
        return rows
    notes.append(
        f"{count:,} of {counted(len(rows), 'image')} {by_number(count, 'was', 'were')} left out "
        f"because the model used {by_number(count, 'it', 'them')} for training or model selection"
    )
    return rows[~is_seen]


def prepare_images(
    package: PackagedModel,
    rows: pd.DataFrame,
    root: Path,
    workspace: Path,
    on_progress: StageProgress,
) -> StoredImages:
    """Return images as the package takes them, uint8 (N, H, W, C), from the prepared store.

    Args:
        package: the packaged model.
        rows: usable images of a manifest.
        root: the folder or archive that their paths are relative to.
        workspace: the folder in which decoded images are cached.
        on_progress: called as they are decoded.
    """
    spec = package.image
    store, _ = prepared_store.prepare(
        rows,
        root,
        prepared_store.StoreSpec(
            spec["channels"], spec["height"], spec["width"], spec["resize"], package.mapping
        ),
        workspace / "prepared",
        lambda done, total: on_progress("Decoding images", done, total),
    )
    return prepared_store.open_images(store)


def predict(package: PackagedModel, images: StoredImages, on_progress: StageProgress) -> Array:
    """Return the probabilities (N, K) of images as the package takes them."""
    return _predict(package, images, on_progress)[0]


def _predict(
    package: PackagedModel, images: StoredImages, on_progress: StageProgress
) -> tuple[Array, Array | None]:
    """Return the probabilities (N, K), and the distances (N) to the package's reference, if any."""
    probabilities_NK = np.empty((len(images), len(package.classes)), np.float32)
    distances: list[Array] = []
    for start in range(0, len(images), _BATCH):
        chosen = slice(start, min(start + _BATCH, len(images)))
        probabilities_NK[chosen], far = package.probabilities_and_distances(
            np.array(images[chosen])
        )
        distances += [] if far is None else [far]
        on_progress("Predicting", chosen.stop, len(images))
    return probabilities_NK, np.concatenate(distances) if distances else None


def _answers(
    package: PackagedModel,
    predictions: Predictions,
    images: StoredImages,
    distances: Array | None,
    config: EvaluationConfig,
) -> AnswersReport | None:
    """Return how the package's sets and warnings do on images; None if it has no sets."""
    if not (package.judge.rules or {}).get("thresholds"):
        return None
    rules = AnswerRules.model_validate(package.judge.rules)
    if "coverage" in config.model_fields_set:
        _, promised, _ = package.judge.threshold(config.coverage)
        if promised in {each.coverage for each in rules.thresholds}:
            rules = rules.model_copy(update={"coverage": promised})
    rows = np.arange(len(predictions.labels))
    quality, why = PredictedImages(images, rows, {}).quality(rows), NO_FEATURES
    if distances is not None and rules.far_split == "test":
        kept = load_reference_images(package.files[1].with_name(REFERENCE_IMAGES_FILE))
        is_other_N = ~predictions.table["sha256"].isin(kept.sha256 if kept else ()).to_numpy()
        distances, why = (distances[is_other_N] if is_other_N.any() else None), SAME_IMAGES
    return check_answers(rules, predictions, MeasuredImages(quality, distances, why))


def _page(
    records: VersionRecords, data: ScannedData, selection: Selection, choices: EvaluationChoices
) -> ReportPage:
    reference, spec = records.reference, records.package.image
    facts = {
        "Model": f"{reference.name}, version {reference.version}",
        "Data": data.name,
        "Images": f"{len(selection.rows)} evaluated",
        "Classes": str(len(records.package.classes)),
        "Size": f"{spec['height']}x{spec['width']} pixels",
        "Data version": selection.fingerprint[:12],
    }
    settings = {
        "split": choices.split,
        "seen_images": str(choices.seen_images).lower(),
        "common_classes": str(choices.common_classes).lower(),
        **{f"report.{key}": str(value) for key, value in choices.report.model_dump().items()},
    }
    return ReportPage(
        title=f"{reference.name}, version {reference.version}, on {data.name}",
        lead=(
            f"How well a registered model {records.task.does} of this data. "
            f"{_describe_use(records)}"
        ),
        facts=facts,
        notes=selection.notes,
        settings=settings,
    )


def _describe_use(records: VersionRecords) -> str:
    """Return whether the model may have seen the images, in one sentence."""
    provenance = records.provenance.summary
    caveat = provenance.caveat(records.label, "these images")
    return f"{_capitalize(caveat)}." if caveat else ""


def _capitalize(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}"
