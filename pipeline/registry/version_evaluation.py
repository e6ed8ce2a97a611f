"""Evaluate a registered version on any data: `patchline evaluate MODEL DATA`.

The package answers, so neither torch nor a plugin is needed. Images that the version was trained or
chosen on are left out unless asked for, because on them every model looks better than it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.config import RunConfig
from pipeline.data import ingestion, prepared_store
from pipeline.data import manifest as manifests
from pipeline.data.ingestion import ScannedData
from pipeline.data.same_images import content_numbers
from pipeline.errors import DataError, ModelReferenceError
from pipeline.evaluation.config import EvaluationConfig, SplitChoice
from pipeline.evaluation.evaluating import write_report
from pipeline.evaluation.html_report import ReportPage
from pipeline.evaluation.predictions import Predictions, with_probabilities
from pipeline.evaluation.report import EvaluationReport, evaluate
from pipeline.packaging.packaged_model import PackagedModel
from pipeline.registry.evidence import Evidence, gather
from pipeline.registry.registered_models import ModelReference
from pipeline.section import Section

Array = np.ndarray[Any, Any]
StageProgress = Callable[[str, int, int], None]
_BATCH = 64
_NAMED_CLASSES = 20


class EvaluationChoices(Section):
    """Which images are evaluated, and how."""

    split: SplitChoice = "auto"
    """A split that the data itself names; auto takes its test split if it has one, else all."""
    seen_images: bool = False
    """Evaluate also on images that the version was trained or chosen on."""
    common_classes: bool = False
    """Leave out images of classes that the model does not know."""
    report: EvaluationConfig = EvaluationConfig()
    """What the report shows."""


@dataclass(frozen=True)
class Selection:
    """The images that are evaluated, and what was left out."""

    rows: pd.DataFrame
    split: str
    """The name in front of the metrics."""
    fingerprint: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ChosenImages:
    """What is evaluated: a version, and the images that count."""

    evidence: Evidence
    data: ScannedData
    selection: Selection


@dataclass(frozen=True)
class VersionEvaluation:
    """A report on a registered version, and where it is."""

    reference: ModelReference
    data: ScannedData
    selection: Selection
    report: EvaluationReport
    html: Path


def choose_images(
    reference: ModelReference,
    config: RunConfig,
    choices: EvaluationChoices,
    workspace: Path,
    on_progress: StageProgress,
) -> ChosenImages:
    """Read the data and choose the images; nothing is written but what a data source writes.

    Args:
        reference: of the version.
        config: its section `data` names the source.
        choices: which images.
        workspace: where a data source may write.
        on_progress: sees how far the reading has come.

    Raises:
        DataError: if no image is left, or the classes are not those of the model.
        ModelReferenceError: if the version's files are gone.
    """
    evidence, known = _evidence(reference)
    classes = tuple(evidence.package.classes)
    data = ingestion.scan(config, workspace, on_progress)
    return ChosenImages(evidence, data, select(data, known, classes, choices))


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
        choices: what the report shows.
        workspace: where decoded images are kept.
        folder: gets the report, its figures and the predictions.
        on_progress: sees how far the stages have come.
    """
    data, selection, package = chosen.data, chosen.selection, chosen.evidence.package
    spec = package.image
    store, _ = prepared_store.prepare(
        selection.rows,
        data.root,
        prepared_store.StoreSpec(spec["channels"], spec["height"], spec["width"], spec["resize"]),
        workspace / "prepared",
        lambda done, total: on_progress("Decoding images", done, total),
    )
    images = prepared_store.open_images(store)
    probabilities = _predicted(package, images, on_progress)
    table = with_probabilities(selection.rows, package.classes, probabilities)
    predictions = Predictions.of(table)
    report = evaluate(
        predictions,
        name=chosen.evidence.reference.name,
        classes=tuple(package.classes),
        split=selection.split,
        data_fingerprint=selection.fingerprint,
        temperature=package.temperature,
        config=choices.report,
    )
    page = _page(chosen.evidence, data, selection, choices)
    html = write_report(report, page, table, lambda position: images[position], folder)
    return VersionEvaluation(chosen.evidence.reference, data, selection, report, html)


def select(
    data: ScannedData,
    known: pd.DataFrame | None,
    classes: tuple[str, ...],
    choices: EvaluationChoices,
) -> Selection:
    """Choose the images to evaluate on, and say what is left out.

    Args:
        data: everything that the source holds.
        known: the manifest that the version was trained with; none if it is not recorded.
        classes: of the model.
        choices: of the user.

    Raises:
        DataError: if nothing is left, or classes differ.
    """
    rows = manifests.usable(data.manifest)
    notes = list(data.notes)
    rows, split = _of_split(rows, choices.split)
    rows = _of_classes(rows, classes, choices, notes)
    if known is None and not choices.seen_images:
        raise DataError(
            "What the version was trained on is not recorded any more, so nobody knows which "
            "images it has seen. Add --seen-images to evaluate on all of them."
        )
    if known is None:
        notes.append("what the version was trained on is not recorded, so it may have seen these")
    else:
        rows = _unseen(rows, known, choices, notes)
    if rows.empty:
        raise DataError(
            f"No image of {data.root} is left to evaluate on ({'; '.join(notes) or 'it is empty'})."
            " Give other data, or add --seen-images to include what the model was trained on."
        )
    fingerprint = manifests.fingerprint(rows)
    return Selection(rows.reset_index(drop=True), split, fingerprint, tuple(notes))


def _evidence(reference: ModelReference) -> tuple[Evidence, pd.DataFrame | None]:
    """Return what is recorded; a version whose run is gone can still be evaluated."""
    try:
        evidence = gather(reference)
    except ModelReferenceError:
        empty = pd.DataFrame({"sha256": [], "probabilities": []})
        return Evidence(reference, "", {}, pd.DataFrame(), empty, None), None
    return evidence, evidence.manifest


def _of_split(rows: pd.DataFrame, wanted: SplitChoice) -> tuple[pd.DataFrame, str]:
    there = sorted(set(rows["split"]) - {""})
    if wanted == "all" or (wanted == "auto" and "test" not in there):
        return rows, "all"
    split = "test" if wanted == "auto" else wanted
    if split not in there:
        named = ", ".join(there) or "none"
        raise DataError(
            f"The data has no split '{split}'; it names {named}. Choose another --split, or all."
        )
    return rows[rows["split"] == split], split


def _of_classes(
    rows: pd.DataFrame, classes: tuple[str, ...], choices: EvaluationChoices, notes: list[str]
) -> pd.DataFrame:
    counts = {str(label): int(count) for label, count in rows["label"].value_counts().items()}
    strange = sorted(set(counts) - set(classes))
    absent = sorted(set(classes) - set(counts))
    if strange and not choices.common_classes:
        raise DataError(
            "The data has other classes than the model. Only in the data: "
            f"{_listed([f'{name} ({counts[name]} images)' for name in strange])}. Only in the "
            f"model: {_listed(absent) if absent else 'none'}. "
            f"{_remedy(len(set(classes) & set(counts)))}"
        )
    if strange:
        left_out = sum(counts[name] for name in strange)
        notes.append(
            f"{left_out} images of classes that the model does not know are left out: "
            f"{_listed(strange)}"
        )
    if absent:
        notes.append(f"classes of the model without an image here: {_listed(absent)}")
    return rows[rows["label"].isin(classes)]


def _remedy(common: int) -> str:
    if common == 0:
        return "Rename the folders as the model names its classes."
    return (
        f"Add --common-classes to evaluate on the {common} that both have, or rename the folders."
    )


def _unseen(
    rows: pd.DataFrame, known: pd.DataFrame, choices: EvaluationChoices, notes: list[str]
) -> pd.DataFrame:
    used = known["split"].isin(["train", "validation"])
    numbers_known, numbers = content_numbers(known, rows)
    groups = set(known.loc[used, "group"]) - {""}
    seen = numbers.isin(numbers_known[used]) | rows["group"].isin(groups)
    count = int(seen.sum())
    if count == 0:
        return rows
    if choices.seen_images:
        notes.append(
            f"the model was trained or chosen on {count} of these {len(rows)} images, so the "
            "figures flatter"
        )
        return rows
    notes.append(
        f"{count} of {len(rows)} images are left out, because the model was trained or chosen on "
        "them"
    )
    return rows[~seen]


def _predicted(package: PackagedModel, images: Array, on_progress: StageProgress) -> Array:
    answers = np.empty((len(images), len(package.classes)), np.float32)
    for start in range(0, len(images), _BATCH):
        chosen = slice(start, min(start + _BATCH, len(images)))
        answers[chosen] = package.probabilities(np.array(images[chosen]))
        on_progress("Predicting", chosen.stop, len(images))
    return answers


def _page(
    evidence: Evidence, data: ScannedData, selection: Selection, choices: EvaluationChoices
) -> ReportPage:
    reference, spec = evidence.reference, evidence.package.image
    facts = {
        "Model": f"{reference.name}, version {reference.version}",
        "Data": data.name,
        "Images": f"{len(selection.rows)} evaluated",
        "Classes": str(len(evidence.package.classes)),
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
        lead="How well a registered model recognises the images of this data.",
        facts=facts,
        notes=selection.notes,
        settings=settings,
    )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED_CLASSES} more" if len(names) > _NAMED_CLASSES else ""
    return ", ".join(names[:_NAMED_CLASSES]) + more
