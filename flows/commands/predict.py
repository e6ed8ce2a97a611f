"""The command `patchline predict`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter
from pydantic import BaseModel

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import (
    Json,
    Switch,
    add_flags,
    dump_given_flags,
    emit,
    terminal_lines,
    without_needless_negatives,
)
from patchline.flows.progress.progress_display import display, show_predicting, show_progress
from patchline.flows.training.chosen_launcher import use_chosen_launcher
from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.packaging.prediction.image_files import (
    check_images,
    find_images,
    pixels_of,
)
from patchline.pipeline.plugin_system.composed_config import compose_launcher
from patchline.pipeline.registry.aliases import parsed
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.terminal_words import visible

if TYPE_CHECKING:
    import numpy as np

    from patchline.pipeline.packaging.packaged_model import PackagedModel

_BATCH = 64


def build(arguments: list[str]) -> Callable[..., int]:
    """Return the command, typed for the launcher that the arguments choose."""
    return add_flags(predict, without_needless_negatives(compose_launcher(arguments)))


def _launcher(settings: BaseModel | None) -> PluginChoice:
    """Return the launcher that the flags choose, or else the default one."""
    given = dump_given_flags(settings)
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
    from patchline.pipeline.packaging.prediction.batch_prediction import check_table, predict_images
    from patchline.pipeline.packaging.prediction.prediction_parts import parts_folder

    check_table(out, top_k)
    check_images(images, (out, parts_folder(out)))  # before the model is fetched
    tell_closed()
    version = resolve(model)
    package = _package(version, coverage)
    with show_progress(), use_chosen_launcher(_launcher(settings)):
        table = predict_images(
            package,
            f"{version.name}/{version.version} ({version.source})",
            images,
            out,
            top_k=top_k,
            probabilities=probabilities,
            coverage=coverage,
            restart=restart,
            on_progress=show_predicting,
        )
    if as_json:
        shown_as = {"model": version.name, "version": version.version, "out": str(out)}
        emit({**shown_as, **table.model_dump(mode="json")}, as_json=True)
    _say("predicted_table.txt.j2", table=table, out=out)
    return 0 if table.images > table.unreadable else DataError.exit_code


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
    else:
        _say("predictions.txt.j2", sys.stdout, answers=answers, classes=len(package.classes))
    failed = [answer for answer in answers if as_json and answer["error"]]
    _say("predictions.txt.j2", answers=failed, classes=0)
    if warning:
        print(visible(f"Warning: {warning}."), file=sys.stderr)
    return 0 if any(answer["error"] is None for answer in answers) else DataError.exit_code


def _package(reference: ModelReference, coverage: float | None) -> PackagedModel:
    """Return the package of a version; say on standard error what is not known of it.

    Args:
        reference: the version.
        coverage: the coverage asked of sets of classes, between 0 and 1; None for the package's
            own.
    """
    from patchline.pipeline.evaluation.metrics.label_calibration import (
        LabelCalibration,
        LabelThresholds,
    )
    from patchline.pipeline.evaluation.metrics.temperature import (
        UNRECORDED,
        TemperatureFit,
        read_recorded_fit,
    )
    from patchline.pipeline.models.model_description import VALIDATION, AnswerRules
    from patchline.pipeline.registry.package_download import fetch

    package = fetch(reference)
    labels, rules = package.classes, AnswerRules.model_validate
    fit: LabelCalibration | TemperatureFit = read_recorded_fit(
        package.calibration, package.temperature
    )
    thresholds = None
    if package.is_multi_label:
        calibration = package.label_calibration
        fit = LabelCalibration.model_validate(calibration) if calibration else UNRECORDED
        thresholds = LabelThresholds.model_validate(package.thresholds)
    values = {"package": package, "fit": fit, "thresholds": thresholds, "coverage": coverage}
    _say("not_known.txt.j2", **values, labels=labels, rules_of=rules, validation=VALIDATION)
    return package


def _say(template: str, stream: TextIO | None = None, /, **values: Any) -> None:
    """Print what a template says, by default to standard error."""
    for line in terminal_lines(template, __package__, **values):
        print(line, file=stream or sys.stderr)


def _answers(
    model: PackagedModel, images: Sequence[Path], top_k: int, coverage: float | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the answers, and a warning on images unlike the training images; empty for none."""
    from patchline.pipeline.data.reading.decoding import UndecodableImageError

    answers: list[dict[str, Any]] = []
    files = list(find_images(images))
    with show_progress():
        for start in range(0, len(files), _BATCH):
            batch = files[start : start + _BATCH]
            decoded: list[np.ndarray[Any, Any] | str] = []
            for file in batch:
                try:
                    decoded.append(pixels_of(model, file))
                except UndecodableImageError as error:
                    decoded.append(str(error))
            for file, answer in zip(
                batch, model.answers_to(decoded, top_k, coverage=coverage), strict=True
            ):
                answers.append({"image": file.name, **answer})
            display().advance("Predicting", len(answers), len(files))
    return answers, model.fits.words()
