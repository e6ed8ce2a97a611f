"""The command `patchline predict`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from pydantic import BaseModel

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import (
    Json,
    Switch,
    emit,
    flattened,
    given_flags,
    without_needless_negatives,
)
from patchline.flows.progress.progress_display import display, shown
from patchline.flows.training.chosen_launcher import chosen_launcher
from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.prediction.image_files import (
    ImageFile,
    check_images,
    find_images,
    pixels_of,
)
from patchline.pipeline.plugin_system.composed_config import composed_launcher
from patchline.pipeline.registry.aliases import parsed
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.terminal_words import by_number, counted, few_names, visible

if TYPE_CHECKING:
    import numpy as np

    from patchline.pipeline.packaging.packaged_model import PackagedModel
    from patchline.pipeline.packaging.prediction.batch_prediction import PredictedTable

_BATCH = 64


def build(arguments: list[str]) -> Callable[..., int]:
    """Return the command, typed for the launcher that the arguments choose."""
    return flattened(predict, without_needless_negatives(composed_launcher(arguments)))


def _launcher(settings: BaseModel | None) -> PluginChoice:
    """Return the launcher that the flags choose, or else the default one."""
    given = given_flags(settings)
    name = RunConfig().launcher.name
    return PluginChoice.model_validate({"name": name, **given.get("launcher", {})})


def predict(
    model: str,
    /,
    *images: Path,
    top_k: Annotated[int, Parameter(name="--top-k")] = 3,
    out: Path | None = None,
    probabilities: bool = True,
    coverage: float | None = None,
    restart: Switch = False,
    as_json: Json = False,
    settings: Any = None,
) -> int:
    """Predict the classes of images with a registered model.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion.
    images
        Image files, folders of images, or archives of images.
    top_k
        Number of classes to show per image.
    out
        Write the predictions to this .csv or .parquet file instead of printing them. After an
        interruption, the same command resumes.
    probabilities
        Include the probabilities of all classes in a .parquet file; of a model with several
        labels for each image, also in a .csv file.
    coverage
        Probability that a prediction set holds the true class, such as 0.9; by default the
        model's own. A set has the next coverage that the model has a threshold for.
    restart
        Predict all images again instead of resuming after an interruption.
    settings
        Where to predict with --out: --launcher.name ray and its settings.
    """
    if coverage is not None and not 0 < coverage < 1:
        raise ConfigError(
            f"--coverage is {coverage:g}, but must lie between 0 and 1. Choose one such as 0.95."
        )
    if out is None:
        return _print_predictions(model, images, top_k=top_k, coverage=coverage, as_json=as_json)
    return _write_predictions(
        model,
        images,
        out,
        top_k=top_k,
        probabilities=probabilities,
        coverage=coverage,
        restart=restart,
        as_json=as_json,
        launcher=_launcher(settings),
    )


def _print_predictions(
    reference: str,
    images: Sequence[Path],
    *,
    top_k: int,
    coverage: float | None,
    as_json: bool,
) -> int:
    """Print predictions; return 2 if no image could be read."""
    if top_k < 1:
        raise ConfigError(f"--top-k is {top_k}, but must be at least 1. Choose a larger number.")
    parsed(reference)
    check_images(images)
    tell_closed()
    model = resolve(reference)
    package = _package(model, coverage)
    answers, warning = _answers(package, images, top_k, coverage)
    if as_json:
        shown_as = {"model": model.name, "version": model.version}
        warnings = [warning] if warning else []
        emit({**shown_as, "predictions": answers, "warnings": warnings}, as_json=True)
        for answer in answers:
            if answer["error"]:
                print(_line(answer), file=sys.stderr)
    else:
        print("\n".join(_line(answer, len(package.classes)) for answer in answers))
    if warning:
        print(visible(f"Warning: {warning}."), file=sys.stderr)
    return 0 if any(answer["error"] is None for answer in answers) else DataError.exit_code


def _write_predictions(
    reference: str,
    images: Sequence[Path],
    out: Path,
    *,
    top_k: int,
    probabilities: bool,
    coverage: float | None,
    restart: bool,
    as_json: bool,
    launcher: PluginChoice,
) -> int:
    """Write predictions to a table; return 2 if no image could be read."""
    from patchline.pipeline.packaging.prediction.batch_prediction import check_table, predict_images
    from patchline.pipeline.packaging.prediction.prediction_parts import parts_folder

    check_table(out, top_k)
    check_images(images, (out, parts_folder(out)))  # before the model is fetched
    tell_closed()
    model = resolve(reference)

    def advance(done: int, total: int, images_per_second: float) -> None:
        display().advance("Predicting", done, total, f"{images_per_second:.0f} images/s")

    package = _package(model, coverage)
    with shown(), chosen_launcher(launcher):
        table = predict_images(
            package,
            f"{model.name}/{model.version} ({model.source})",
            images,
            out,
            top_k=top_k,
            probabilities=probabilities,
            coverage=coverage,
            restart=restart,
            on_progress=advance,
        )
    if as_json:
        shown_as = {"model": model.name, "version": model.version, "out": str(out)}
        emit({**shown_as, **table.model_dump(mode="json")}, as_json=True)
    _tell(table, out)
    return 0 if table.images > table.unreadable else DataError.exit_code


def _tell(table: PredictedTable, out: Path) -> None:
    for name, reason in table.first_errors:
        print(_line({"image": name, "error": reason}), file=sys.stderr)
    if table.unreadable > len(table.first_errors):
        more = table.unreadable - len(table.first_errors)
        print(visible(f"and {more} more; see the column error of {out}"), file=sys.stderr)
    if table.warning:
        print(visible(f"Warning: {table.warning}."), file=sys.stderr)
    written = counted(table.images - table.unreadable, "prediction")
    if table.unreadable:
        written += f" and {counted(table.unreadable, 'unreadable image')}"
    before = table.answered_before
    kept = f" ({before} of them by an interrupted command)" if before else ""
    if table.changed:
        again = by_number(table.changed, "it was", "they were")
        changed = f"{counted(table.changed, 'image')} changed after the interruption"
        print(f"{changed}, so {again} predicted again.", file=sys.stderr)
    print(visible(f"Wrote {written}{kept} to {out}"), file=sys.stderr)


def _package(reference: ModelReference, coverage: float | None) -> PackagedModel:
    """Return the package of a version; say on standard error what is not known of it.

    Args:
        reference: the version.
        coverage: that sets are asked for; None for the package's own.
    """
    from patchline.pipeline.registry.package_download import fetch

    package = fetch(reference)
    if not package.is_verified:
        line = "Package: it holds no digests, so whether its files were changed is not known."
        print(line, file=sys.stderr)
    for line in _uncalibrated(package):
        print(visible(line), file=sys.stderr)
    for line in _not_known(package, coverage):
        print(visible(line), file=sys.stderr)
    return package


def _uncalibrated(package: PackagedModel) -> Iterator[str]:
    """Say what is not known of the probabilities and the thresholds of a package."""
    from patchline.pipeline.evaluation.metrics.label_calibration import (
        LabelCalibration,
        LabelThresholds,
    )
    from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED, recorded

    if package.is_multi_label:
        labels, calibration = package.classes, package.label_calibration
        fits = LabelCalibration.model_validate(calibration) if calibration else None
        if fits is None or not fits.is_calibrated:
            yield f"Calibration: {fits.sentence(labels) if fits else UNRECORDED.sentence()}"
        thresholds = LabelThresholds.model_validate(package.thresholds)
        if thresholds.unfitted(labels):
            yield f"Thresholds: {thresholds.sentence(labels)}"
        return
    fit = recorded(package.calibration, package.temperature)
    if not fit.is_calibrated:
        yield f"Calibration: {fit.sentence()}"


def _not_known(package: PackagedModel, coverage: float | None) -> Iterator[str]:
    """Say which sets and warnings answers will not have, and which are not guaranteed."""
    from patchline.pipeline.models.model_description import VALIDATION, AnswerRules

    least, promised, unknown = package.judge.threshold(coverage)
    if package.is_multi_label and coverage is None:
        pass  # nobody asks for prediction sets
    elif least is None:
        yield f"Prediction sets are not known: {unknown}"
    elif coverage is not None and promised != coverage:
        yield (
            f"Prediction sets have a coverage of {promised:g}: the model has no threshold for "
            f"{coverage:g}"
        )
    rules = package.judge.rules or {}
    if least is not None and rules["basis"] != VALIDATION:
        yield f"Prediction sets: {AnswerRules.model_validate(rules).on_coverage}"
    reasons = rules.get("unknown", {})
    for kind, why in reasons.items():
        yield f"The warning '{kind}' is not known, so it is never given: {why}"
    others = [kind for kind in package.judge.unchecked if kind not in reasons]
    if others:
        named = ", ".join(f"'{kind}'" for kind in others)
        yield f"Never given, because the model has no limit for them: the warnings {named}"


def _answers(
    model: PackagedModel, images: Sequence[Path], top_k: int, coverage: float | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the answers, and a warning on images unlike the training images; empty for none."""
    answers: list[dict[str, Any]] = []
    files = list(find_images(images))
    with shown():
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            for file, answer in zip(batch, _answered(model, batch, top_k, coverage), strict=True):
                answers.append({"image": file.name, **answer})
            display().advance("Predicting", len(answers), len(files))
    return answers, model.fits.words()


def _answered(
    model: PackagedModel, batch: list[ImageFile], top_k: int, coverage: float | None
) -> list[dict[str, Any]]:
    """Return the answers for a batch, which is predicted at once."""
    from patchline.pipeline.data.reading.decoding import UndecodableImageError

    decoded: list[np.ndarray[Any, Any] | str] = []
    for file in batch:
        try:
            decoded.append(pixels_of(model, file))
        except UndecodableImageError as error:
            decoded.append(str(error))
    return model.answers_to(decoded, top_k, coverage=coverage)


def _line(answer: dict[str, Any], classes: int = 0) -> str:
    """Return what is known of an image; a set of all classes says nothing."""
    if answer["error"]:
        return visible(f"{answer['image']}  could not be read: {answer['error']}")
    said = f"{answer['image']}  {_ranked(answer)}"
    if answer["set"] is not None and len(answer["set"]) != classes:
        said += f"  {{{few_names(answer['set'], 10)}}} {answer['coverage']:g}"
    messages = [f"  {each['message']}" for each in answer["warnings"]]
    return "\n".join(visible(line) for line in [said, *messages])


def _ranked(answer: dict[str, Any]) -> str:
    """Return the most probable classes; of a multi-label model the labels, and the next ones."""
    if "labels" not in answer:
        return _shares(answer["top_k"])
    chosen = {each["label"] for each in answer["labels"]}
    others = [each for each in answer["top_k"] if each["label"] not in chosen]
    said = _shares(answer["labels"]) or "no label"
    return f"{said}  (below its threshold: {_shares(others)})" if others else said


def _shares(ranked: Sequence[dict[str, Any]]) -> str:
    return "  ".join(f"{each['label']} {each['probability']:.1%}" for each in ranked)
