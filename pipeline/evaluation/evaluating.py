"""Evaluate the trained model of a run: predict in a worker process, then write the report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.manifest import own_columns
from patchline.pipeline.data.near_duplicates.search import (
    ComparedPictures,
    are_alike,
    groups_alone,
)
from patchline.pipeline.data.seen_images import about_test_images
from patchline.pipeline.data.store.opened_images import open_images
from patchline.pipeline.evaluation.answers_report import (
    REFERENCE_FILE,
    HeldOutImages,
    PredictedImages,
    fit_rules,
    save_reference,
)
from patchline.pipeline.evaluation.galleries import EXPLANATIONS
from patchline.pipeline.evaluation.html_report import ReportContents, ReportPage, write_report
from patchline.pipeline.evaluation.prediction_job import (
    EVALUATION,
    EvaluationJob,
    ExplanationJob,
    HeldOut,
)
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.report import ReportSubject
from patchline.pipeline.evaluation.tasks import TASKS, AnyReport
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import VALIDATION, AnswerRules
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    feature_rows,
    save_reference_images,
)
from patchline.pipeline.models.stored_features import load_features
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import OnEvent
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, result_files

Array = np.ndarray[Any, Any]
FOLDER = "report"
"""Folder of the report inside the run's folder."""
_NO_FEATURES = "the model does not end in a linear layer, whose input is the features"
_PATHS: dict[str, Any] = {
    "best": True,
    "selected": True,
    "refit": {"weights"},
    "ensemble": {"weights"},
    "folds": {"folds": {"__all__": {"best", "run_id"}}},
}
"""What differs between two runs with the same result."""
_MOST_REFERENCE_IMAGES = 4000
_COMPUTED_BY = (
    "the trained model in float32; packaging compares them with those of the package on all test "
    "images, and fails if one differs by more than 0.0001"
)


class Evaluated(FrozenModel):
    """The report and its files."""

    report: AnyReport
    folder: Path
    html: Path


def ingredients(run: TrainedRun) -> Ingredients:
    """Return everything that determines the report; it lists all settings, so it depends on all."""
    held_out = [
        file for each in _find_held_out_models(run) for file in result_files(each.model_folder)
    ]
    own: Ingredients = {}
    if columns := own_columns(run.config.evaluation.slices):  # which the data's digest lacks
        values = pd.read_parquet(run.data.manifest_file, columns=columns)
        hashed = pd.util.hash_pandas_object(values).to_numpy()
        own = {"columns": hashlib.sha256(hashed.tobytes()).hexdigest()}
    return {
        **run.ingredients,
        **stage_keys.all_settings(run.config),
        "held out": ", ".join(digest_of(file).sha256 for file in held_out),
        "notes": "\n".join((run.data.split_origin, *run.data.notes, run.data.taught_by)),
        "training": run.trained.model_dump_json(exclude=_PATHS),
        **own,
    }


def evaluate_run(run: TrainedRun, folder: Path, on_event: OnEvent) -> Evaluated:
    """Predict validation and test with the best weights and write the report.

    Args:
        run: the trained run, with the best weights.
        folder: the folder that receives `report.html`, `report.json`, `predictions.parquet` and the
            plots.
        on_event: receives the progress of the prediction.
    """
    config, data, trained = run.config, run.data, run.trained
    predicted = EVALUATION.run(
        folder.parent / "prediction",
        _job(run, folder),
        on_event,
        Resources.for_device(trained.device, _devices(run)).on_one_machine(),
    )
    task, classes = TASKS[config.data.task], data.classes
    table, fit = task.calibrated(
        pd.read_parquet(predicted.file), classes, trained.ensemble, _class_images(run)
    )
    predicted.file.unlink()  # the table has its logits
    images, rows = open_images(run.prepared.store), table["row"].to_numpy()
    measured = PredictedImages(images, rows, _features_by_position(predicted.features_file, rows))
    is_test = table["split"] == "test"
    validated, tested = (
        task.predictions(part, classes) for part in (table[~is_test], table[is_test])
    )
    held = _collect_held_out_images(run, validated, tested, measured)
    rules, reference = fit_rules(held, config.evaluation)
    for note in _unknown_rules(rules):
        on_event({"kind": "note", "message": note})
    if reference is not None:
        save_reference(reference, folder / REFERENCE_FILE)
    kept = _reference_images(run, table, task.labels(list(table["label"]), classes), measured)
    save_reference_images(kept, folder / REFERENCE_IMAGES_FILE)
    subject = ReportSubject(
        name=str(config.name),
        classes=classes,
        split="test",
        data_fingerprint=data.fingerprint,
        computed_by=_COMPUTED_BY,
    )
    beside = {
        "covering_test": predicted.explanations.test,
        "robustness": predicted.robustness,
        "provenance": data.seen_before.provenance,
        **task.checked(rules, tested, measured, reference),
    }
    report = task.report(tested, subject, fit, config.evaluation).model_copy(update=beside)
    for note in report.notes:
        on_event({"kind": "note", "message": note})
    page = ReportPage(
        title=f"{config.name}: test report",
        lead=about_test_images(data.seen_before),
        facts=about_run(run, task.validated(trained, table, classes)),
        notes=data.notes,
        settings=stage_keys.all_settings(config),
    )
    preview = trained.best.parent / "augmentation_preview.png"
    contents = ReportContents(
        page=page,
        table=table,
        pixels_of=lambda position: images[rows[position]],
        history=[record.model_dump() for record in trained.history],
        preview=preview if preview.exists() else None,
        explanations=predicted.explanations,
    )
    html = write_report(task.parts, report, contents, folder)
    return Evaluated(report=report, folder=folder, html=html)


def _reference_images(
    run: TrainedRun, table: pd.DataFrame, labels: Array, measured: PredictedImages
) -> ReferenceImages:
    """Return what the final model computes for images that its weights were not fitted on.

    Args:
        run: the run that trained the model.
        table: all predictions, numbered from 0.
        labels: labels of the table's rows, as `ReferenceImages` has them.
        measured: the images, with features of at most 2,000 validation and 2,000 test images.
    """
    trained = run.trained
    is_final = trained.refit is None and trained.ensemble is None and trained.folds is None
    is_test_N = (table["split"] == "test").to_numpy()
    usable_N = is_test_N | ((table["split"] == "validation").to_numpy() & is_final)
    rows = feature_rows(np.flatnonzero(usable_N).tolist(), measured.features)
    if len(rows) > _MOST_REFERENCE_IMAGES:
        drawn = np.random.default_rng(run.config.seed).permutation(rows)
        rows = sorted(drawn[:_MOST_REFERENCE_IMAGES].tolist())
    chosen = table.iloc[rows]
    features = [measured.features[row] for row in rows if row in measured.features]
    units_M, alike = _units(chosen, measured, rows)
    return ReferenceImages(
        probabilities_MK=np.stack(list(chosen["probabilities"])),
        features_MD=np.stack(features) if features else np.zeros((len(rows), 0), np.float32),
        labels=labels[rows],
        is_test_M=is_test_N[rows],
        sha256=tuple(chosen["sha256"]),
        paths=tuple(chosen["path"]),
        why_no_features="" if features else _NO_FEATURES,
        units_M=units_M,
        are_alike=alike,
    )


def _units(chosen: pd.DataFrame, measured: PredictedImages, rows: list[int]) -> tuple[Array, bool]:
    """Return the units of reference images, and whether near duplicates do not tell them.

    Args:
        chosen: rows of the predictions.
        measured: the images, whose pixels are compared.
        rows: numbers of the chosen rows in the table.
    """
    keys, groups = list(chosen["sha256"]), list(chosen["group"].fillna("").astype(str))
    sizes = zip(chosen["height"].tolist(), chosen["width"].tolist(), strict=True)
    pictures = ComparedPictures()
    for key, row, size in zip(keys, rows, sizes, strict=True):
        pictures.add(key, np.asarray(measured.images[int(measured.rows[row])]), size)
    units_M = pictures.units(keys, groups)
    alike = are_alike(units_M, groups)
    return (groups_alone(groups) if alike else units_M), alike


def _features_by_position(file: Path | None, rows: Array) -> dict[int, Array]:
    """Return the features that the worker has kept, by the position in the table of predictions."""
    kept = load_features(file) if file else {}
    if file:
        file.unlink()
    places = {int(row): place for place, row in enumerate(rows)}
    return {places[row]: value for row, value in kept.items() if row in places}


def _unknown_rules(rules: AnswerRules) -> Iterator[str]:
    """Say that answers will have no sets, or no warning of images unlike those seen."""
    for each in rules.thresholds:
        if each.coverage == rules.coverage and each.least_probability is None:
            sets = f"prediction sets with a coverage of {each.coverage:g}"
            yield f"{sets} are not known: {each.unknown}"
    if rules.far is None:
        why = rules.unknown.get("far", "")
        yield f"images unlike those that the model has seen get no warning: {why}"


def _collect_held_out_images(
    run: TrainedRun,
    held: Predictions,
    tested: Predictions,
    measured: PredictedImages,
) -> HeldOutImages:
    """Return what the rules of the package are fitted on.

    Args:
        run: the trained run, with the final model.
        held: predictions of all images but the test split, by models not trained on them.
        tested: predictions of the test split, by the final model.
        measured: features of both by the final model, of as many as were kept.
    """
    config, trained = run.config, run.trained
    basis, why_none = VALIDATION, ""
    if trained.folds is not None:
        final = (
            "the ensemble averages these models"
            if trained.ensemble
            else "the final model was trained on all of them"
        )
        basis = (
            f"the predictions of {len(trained.folds.folds)} models, one a fold, for images that "
            f"they were not trained on; {final}"
        )
    elif trained.selected is not None:
        basis = (
            "the validation images, as predicted by the model before it was trained again on them"
        )
    elif held.table.empty:
        why_none = "there are no validation images"
    # A fitted head takes the same features from the network as before.
    refitted = (trained.folds is not None or trained.selected is not None) and trained.probe is None
    unseen = tested if refitted else held
    why_no_features = "" if refitted else why_none
    if not why_no_features and not measured.features:
        why_no_features = _NO_FEATURES
    return HeldOutImages(
        predictions=held,
        basis=basis,
        why_none=why_none,
        unseen=unseen,
        features=measured.features,
        why_no_features=why_no_features,
        quality=measured.quality(held.positions),
        side=min(run.prepared.image.height, run.prepared.image.width),
        seed=config.seed,
        has_sets=TASKS[config.data.task].has_sets,
    )


def _find_held_out_models(run: TrainedRun) -> tuple[HeldOut, ...]:
    """Return models for the rules, if the final one was trained on the validation images.

    The models of an ensemble are calibrated already, each on its own fold.
    """
    config, trained = run.config, run.trained
    if trained.selected is not None:
        return (HeldOut(model_folder=trained.selected.resolve()),)
    if trained.folds is None:
        return ()
    folds, seed = trained.folds.folds, config.data.split_seed
    models = [
        HeldOut(model_folder=each.best.resolve(), fold=each.fold, folds=len(folds), seed=seed)
        for each in folds
    ]
    if (ensemble := trained.ensemble) is None:
        return tuple(models)
    fits = (*ensemble.calibrations, *ensemble.label_calibrations)
    return tuple(
        model.model_copy(update={"calibration": fit})
        for model, fit in zip(models, fits, strict=True)
    )


def _job(run: TrainedRun, folder: Path) -> EvaluationJob:
    data, trained = run.data, run.trained
    alone = trained.refit is None and trained.ensemble is None
    explained = ExplanationJob(
        name=str(run.config.name),
        seed=run.config.seed,
        folder=folder / EXPLANATIONS,
    )
    return EvaluationJob(
        model_folder=trained.best.resolve(),
        manifest_file=data.manifest_file.resolve(),
        store=run.prepared.store.resolve(),
        splits=("validation", "test") if alone else ("test",),
        columns=tuple(own_columns(run.config.evaluation.slices)),
        seed=run.config.seed,
        held_out=_find_held_out_models(run),
        device=trained.device,
        processes=_devices(run),
        file=folder.parent / "prediction" / "logits.parquet",
        corrupted=run.config.evaluation.corruptions,
        class_images=_class_images(run),
        ensemble=trained.ensemble,
        explained=explained if run.config.evaluation.explanations else None,
    )


def _devices(run: TrainedRun) -> int:
    """Return how many GPUs of one machine have trained, at least one."""
    return max(1, run.config.training.processes // worker_start.current_launcher().machines)


def _class_images(run: TrainedRun) -> tuple[int, ...]:
    """Return the number of training images of each class, if the training balanced them."""
    if run.config.training.class_balance == "none":
        return ()
    manifest = manifests.load(run.data.manifest_file)
    return TASKS[run.config.data.task].class_images(manifest, run.data.classes)


def about_run(run: TrainedRun, validated: str = "") -> dict[str, str]:
    """Return short facts about the data, the model and the training.

    Args:
        run: the trained run, with the weights.
        validated: their main validation metric in words, to tell which weights are evaluated.
    """
    text = render_markdown(
        "facts.txt.j2",
        __package__,
        run=run,
        validated=validated,
        display_name=display_name,
    )
    return dict(line.split(": ", 1) for line in text.split("\n") if line)
