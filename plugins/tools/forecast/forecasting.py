"""Forecast the accuracy with more labels: fit nested shares of the training images, and continue.

The learner is a head on the frozen features of the initial weights, if the settings or the plan
name some; otherwise the model of the plan, trained from random weights with equally many updates on
each share. Features and fits are kept in the workspace, so the same command repeats none of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.progress.progress_display import display, show_event
from patchline.flows.training.chosen_launcher import build_reporting, use_chosen_launcher
from patchline.flows.training.run_training import enter_workspace
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.source_listing import uses_labels
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.html_page import render, vector_graphic
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.plots import BLUE, GREY, ORANGE, new_figure, plain_axes
from patchline.pipeline.evaluation.predictions import image_groups
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.prediction.image_files import check_images, find_images
from patchline.pipeline.registry.browsing.pages import NOTE_TAG
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.decode import Decode
from patchline.pipeline.stages.initial_weights import ChooseWeights, FindWeights
from patchline.pipeline.stages.plan import PlanTraining
from patchline.pipeline.stages.read import Read
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.templates import escaped, render_markdown
from patchline.pipeline.terminal_words import counted, duration
from patchline.pipeline.training.config import with_changes
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.training.machine import resources_of
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.record import TrainingRecord, ValidationPlanSteps
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.data_names import may_be_image
from patchline.pipeline.workspace.files.workspace_folder import RUNS, WORKSPACE
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.shared_stage_memory import SharedStageMemory
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients, key_of
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender
from patchline.pipeline.workspace.tracking.tracked_run import NewRun, TrackedRun
from patchline.plugins.tools.forecast.fitting import FITTING, FittedShares, FittingJob
from patchline.plugins.tools.forecast.learning_curve import (
    FARTHEST,
    FEWEST_SIZES,
    LearningCurve,
    MeasuredFits,
    fit_learning_curve,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND, PRESET = "patchline forecast", "quick"
"""The command, and the preset that plans the learner unless another one is named."""
_STAGE, _FOLDER, _REPORT = "forecast", "forecasts", "report"
_STAGES = (Read, ChooseWeights, FindWeights, PlanTraining, Decode)
_POINTS = 2
"""Points of accuracy whose price in labels is told."""
_LISTED = 10
"""Classes that are listed."""
_VALIDATIONS = 10
"""Of a fit, which choose its weights."""


class Questions(FrozenModel):
    """What is asked besides what twice the labels would bring."""

    inbox: Path | None = None
    """Folder of images without labels."""
    seconds_per_label: float | None = None
    """Time that a person takes to label an image."""


class LabelledPoint(MetricEstimate):
    """The accuracy with a number of labels, measured or forecast."""

    labels: int

    @classmethod
    def of(cls, labels: int, estimate: MetricEstimate) -> LabelledPoint:
        """Return the point of an estimate."""
        return cls(labels=labels, **estimate.model_dump())


class ClassGain(FrozenModel):
    """What twice the labels would bring for the accuracy of a class."""

    name: str
    labels: int
    """Labels that the class has, and would have once more."""
    now: float
    then: LabelledPoint
    per_label: float
    """Gain in the accuracy of the class for each label of it."""


class FurtherLabels(FrozenModel):
    """How many labels besides take the accuracy up by two points."""

    labels: int
    low: int
    high: int | None
    """None if perhaps no number does."""
    seconds: float | None
    """What labelling them takes; None if the time of a label is not given."""


class Forecast(FrozenModel):
    """What more labels would bring."""

    name: str
    learner: str
    """What was fitted, in words."""
    labels: int
    """Number of training images."""
    test_images: int
    points: tuple[LabelledPoint, ...]
    """What was measured with each share."""
    forecast: tuple[LabelledPoint, ...]
    """With twice the labels, and with those of the inbox; empty if there are too few to tell."""
    classes: tuple[ClassGain, ...] = ()
    """The classes whose gain is certain enough, the largest gain for each label first."""
    further: FurtherLabels | None = None
    """None if there is no forecast, or it is more than three times the labels that there are."""
    inbox_images: int | None = None
    """Number of images of the inbox; None without one."""
    inbox_labels: int | None = None
    """The number of them that the forecast is for: as far as it reaches."""
    run_id: str
    page: str

    @property
    def metric(self) -> str:
        """The name of the metric."""
        return "accuracy"

    def sentences(self) -> list[str]:
        """Return the forecast in sentences, or that there are too few to tell."""
        words: dict[str, Any] = {"percent": "{:.1%}".format, "bare": _bare, "farthest": FARTHEST}
        words |= {"duration": duration, "counted": counted, "points": _POINTS}
        return render_markdown("sentences.md.j2", __package__, result=self, **words).splitlines()


def _bare(share: float) -> str:
    return f"{100 * share:.1f}"


def forecast(
    data: str | Path | None = None,
    /,
    *,
    inbox: str | Path | None = None,
    seconds_per_label: float | None = None,
    preset: str | None = None,
    config: str | Path | None = None,
    **settings: Any,
) -> Forecast:
    """Forecast the accuracy with more labels, as `patchline forecast` does.

    Args:
        data: a folder with one subfolder of images for each class, an archive, a table, or
            SOURCE:NAME; by default the built-in digits.
        inbox: a folder of images without labels, which might be labelled.
        seconds_per_label: time that a person takes to label an image.
        preset: plans the learner, by default quick.
        config: YAML file with settings.
        settings: the settings of a run, sections as dicts, such as `model={"init": "weights.pth"}`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
        DataError: if the images or their labels cannot be used.
    """
    file = None if config is None else Path(config)
    questions = Questions.model_validate({"inbox": inbox, "seconds_per_label": seconds_per_label})
    name = None if data is None else str(data)
    return forecast_accuracy(build_config(name, preset, file, settings), questions)


def build_config(
    data: str | None, preset: str | None, file: Path | None, flags: Mapping[str, Any]
) -> RunConfig:
    """Return the settings of a forecast, whose learner the preset quick plans by default."""
    preset = preset or (PRESET if file is None else None)
    return config_files.build_config(data, preset_name=preset, file=file, flags=dict(flags))


def forecast_accuracy(config: RunConfig, questions: Questions) -> Forecast:
    """Fit the shares that are not kept yet, and forecast the accuracy in an MLflow run of its own.

    Args:
        config: the settings of a run; data, model and length are used.
        questions: what is asked.

    Raises:
        ConfigError: for settings that no share can be fitted with.
        DataError: if the images or their labels cannot be used.
        PipelineError: if a fit fails.
    """
    _check(config, questions)
    tell_closed()
    enter_workspace()
    workspace = WORKSPACE.resolve()
    with worker_start.allow_prepared_workers(), use_chosen_launcher(config.launcher):
        context, learner = prepare_learner(config, workspace)
        new = NewRun(
            experiment=str(learner.config.name),
            name=f"forecast-{learner.config.name}",
            command=COMMAND,
            params=learner.config.flat(),
            tags={},
        )
        with tracked_run.open_run(new, workspace / RUNS) as run:
            display().stage(f"Fitting {learner.words} on shares of the training images")
            fitted = fit(learner, context)
            result = _publish(learner, fitted, questions, context.get(IngestedData), run)
    return result


def prepare_learner(config: RunConfig, workspace: Path) -> tuple[Context, Learner]:
    """Read and decode the images, and plan the learner.

    Args:
        config: the settings of a run, not resolved.
        workspace: the folder `.patchline`.
    """
    memory = SharedStageMemory(workspace, on_note=display().note, shared=chosen.find_shared_files())
    context = Context(config, memory, build_reporting(), workspace)
    for sentence in engine.check(_STAGES, config, workspace):
        display().note(sentence)
    engine.run_stages(_STAGES, context)
    return context, Learner.of(context.config, context.get(IngestedData))


def _check(config: RunConfig, questions: Questions) -> None:
    training = config.training
    for key in ("time_limit", "teacher"):
        if value := getattr(training, key):
            raise ConfigError(
                f"training.{key} is {value}, but all shares are fitted with equally many updates "
                f"and from labels alone. Leave out training.{key}."
            )
    if not uses_labels(config):
        raise ConfigError(
            f"objective.name is {config.objective.name}, which uses no labels, so more of them "
            "bring nothing. Choose supervised."
        )
    seconds = questions.seconds_per_label
    if seconds is not None and not seconds > 0:
        raise ConfigError(
            f"--seconds-per-label is {seconds:g}, but must be more than 0. Give the seconds that a "
            "person takes to label an image."
        )
    if questions.inbox is not None:
        check_images([questions.inbox])


class Learner(NamedTuple):
    """What is fitted on each share."""

    config: RunConfig
    """The settings, resolved, of a single fit; whatever the share, it makes as many updates.

    Were there as many epochs, more labels would also mean a longer training, and the curve would
    show both.
    """
    only_head: bool
    words: str

    @classmethod
    def of(cls, config: RunConfig, data: IngestedData) -> Learner:
        """Return the learner of settings that are planned and resolved.

        Raises:
            ConfigError: if the weights have learned from the training images.
            DataError: if an image has several labels.
        """
        if data.task == MULTI_LABEL:
            raise DataError(
                f"The images of {data.name} have sets of labels, for which there is no forecast. "
                "Give data with one class for each image."
            )
        if learned := data.seen_before.trained:
            raise ConfigError(
                f"model.init is {config.model.init}, which was trained on {learned:,} of the "
                f"{data.counts['train']:,} training images, so it does not show what fewer labels "
                "bring. Choose other weights, or --model.init none."
            )
        training, knots = config.training, config.record.step_plan
        epochs = training.epochs_without_limit
        whole = epochs * math.ceil(data.counts["train"] / training.batch_size)
        steps = knots[-1][2] if knots else whole
        single = {"folds": None, "final_model": None, "processes": 1, "epochs": epochs}
        plans = {"step_plan": ((0, 0.0, steps),), "validation_plan": _validations(steps, data)}
        record = config.record.of(TrainingRecord()).model_copy(
            update={"average_last": None, **plans}
        )
        own = with_changes(config, training=single).model_copy(update={"record": record})
        if config.model.init:
            name = display_name(config.model.init)
            return cls(own, True, f"a head on the frozen features of {name}")
        names = " with ".join(config.model.names)
        return cls(own, False, f"{names}, {counted(steps, 'update')} from random weights")


def _validations(steps: int, data: IngestedData) -> ValidationPlanSteps | None:
    """Return when a fit of any share is validated; None without validation images."""
    images = data.counts["validation"]
    at = sorted({max(1, steps * part // _VALIDATIONS) for part in range(1, _VALIDATIONS + 1)})
    return tuple((step, images) for step in at) if images else None


def fit(learner: Learner, context: Context) -> FittedShares:
    """Fit the learner on the shares in a process of its own, or recall the fits.

    Args:
        learner: what is fitted.
        context: what the stages have left.
    """
    data, prepared, config = context.get(IngestedData), context.get(PreparedData), learner.config
    key = _ingredients(learner, data, prepared)
    folder = context.workspace / _FOLDER / key_of(_STAGE, key)
    job = job_of(config, data, prepared, folder, _STAGE, context.workspace)
    fitting = FittingJob(
        training=job.model_copy(update={"unlabelled": None}), only_head=learner.only_head
    )
    return context.memory.once(
        _STAGE,
        key,
        FittedShares,
        folder,
        lambda: FITTING.run(folder, fitting, _show, resources_of(config.training)),
    )


def _ingredients(learner: Learner, data: IngestedData, prepared: PreparedData) -> Ingredients:
    """Return everything that determines the fits."""
    sections = ("seed", "augmentation", "model", "objective", "optimizer", "training", "record")
    return {
        "data": data.fingerprint,
        "images": repr(prepared.image),
        "only head": str(learner.only_head),
        **stage_keys.settings(learner.config, *sections),
        "code": stage_keys.code(FITTING.module),
        **stage_keys.software(
            learner.config, "augmentation", "model", "patch_embedding", "objective"
        ),
    }


def _show(event: Event) -> None:
    if event["kind"] == "progress" and event["unit"] == "share":
        display().advance("Fitting", event["done"], event["total"], unit="fits")
    elif event["kind"] != "metrics":  # of a dozen fits
        show_event(event)


class Measured(NamedTuple):
    """What the fits have shown on the test images."""

    fits: MeasuredFits
    tested: pd.DataFrame
    """The rows of the test images in the manifest."""
    images: Mapping[str, int]
    """Number of training images of each class."""
    seed: int

    @classmethod
    def of(cls, fitted: FittedShares, data: IngestedData, seed: int) -> Measured:
        """Compare the predictions of the fits with the labels."""
        rows = manifests.usable(manifests.load(data.manifest_file))
        tested = rows[rows["split"] == "test"].reset_index(drop=True)
        predicted_FM = np.stack([np.load(file, allow_pickle=False) for file in fitted.files])
        named_FM = np.array(data.classes, dtype=object)[predicted_FM]
        wrong_FM = named_FM != tested["label"].to_numpy(object)
        fits = MeasuredFits(np.array(fitted.sizes), wrong_FM, image_groups(tested))
        images = dict(zip(data.classes, manifests.class_images(rows, data.classes), strict=True))
        return cls(fits, tested, images, seed)

    def curve(self) -> LearningCurve | None:
        """Return the learning curve; None if it is too short to be continued."""
        if len(self.fits.sizes_S) < FEWEST_SIZES:
            return None
        return fit_learning_curve(self.fits, self.seed)

    def class_gains(self) -> Iterator[ClassGain]:
        """Yield what twice the labels would bring for each class, where that is certain enough."""
        largest = int(self.fits.sizes_S[-1])
        for name, labels in self.images.items():
            rows = np.flatnonzero(self.tested["label"] == name)
            if not len(rows):
                continue
            own = self._replace(fits=self.fits.of_images(rows))
            curve = own.curve()
            if curve is None or not curve.can_tell(2 * largest):
                continue
            yield ClassGain(
                name=name,
                labels=labels,
                now=own.fits.accuracy(largest).value,
                then=LabelledPoint.of(2 * labels, curve.accuracy(2 * largest)),
                per_label=curve.gain(2 * largest).value / labels,
            )


def measure(measured: Measured, learner: str, questions: Questions, name: str) -> Forecast:
    """Return the forecast of the fits, not yet published.

    Args:
        measured: the errors of the fits.
        learner: the learner, in words.
        questions: what is asked.
        name: name of the data.
    """
    sizes, curve = measured.fits.sizes_S.tolist(), measured.curve()
    points = tuple(LabelledPoint.of(size, measured.fits.accuracy(size)) for size in sizes)
    now, twice = points[-1], 2 * sizes[-1]
    result = Forecast(
        name=name,
        learner=learner,
        labels=now.labels,
        test_images=len(measured.tested),
        points=points,
        forecast=(),
        run_id="",
        page="",
        **_inbox(questions, now.labels),
    )
    if curve is None or not curve.can_tell(twice) or curve.accuracy(twice).value <= now.value:
        return result
    added = [now.labels, *([result.inbox_labels] if result.inbox_labels else [])]
    told = [
        LabelledPoint.of(now.labels + each, curve.accuracy(now.labels + each)) for each in added
    ]
    gains = sorted(measured.class_gains(), key=lambda each: -each.per_label)
    changes = {
        "forecast": tuple(told),
        "classes": tuple(gains),
        "further": _further(curve, questions.seconds_per_label),
    }
    return result.model_copy(update=changes)


def _inbox(questions: Questions, labels: int) -> dict[str, Any]:
    """Return how many images of the inbox there are, and for how many a forecast can be made."""
    if questions.inbox is None:
        return {}
    images = sum(may_be_image(each.path) for each in find_images([questions.inbox], in_order=False))
    return {"inbox_images": images, "inbox_labels": min(images, (FARTHEST - 1) * labels)}


def _further(curve: LearningCurve, seconds: float | None) -> FurtherLabels | None:
    value, low, high = curve.labels_for(_POINTS / 100)
    if value > (FARTHEST - 1) * curve.labels:
        return None
    return FurtherLabels(
        labels=round(value),
        low=round(low),
        high=round(high) if np.isfinite(high) else None,
        seconds=None if seconds is None else seconds * round(value),
    )


def _publish(
    learner: Learner,
    fitted: FittedShares,
    questions: Questions,
    data: IngestedData,
    run: TrackedRun,
) -> Forecast:
    """Measure, write the page, and log all of it in the MLflow run."""
    measured = Measured.of(fitted, data, learner.config.seed)
    folder = run.folder / _REPORT
    page = folder / "report.html"
    result = measure(measured, learner.words, questions, str(learner.config.name))
    result = result.model_copy(update={"run_id": run.run_id, "page": str(page)})
    write_page(result, measured.curve(), page)
    result.to_file(folder / "forecast.json")
    sender = MetricSender(run)
    for prefix, points in (("test", result.points), ("forecast", result.forecast)):
        for point in points:
            ends = {"": point.value, "_low": point.low, "_high": point.high}
            named = {f"{prefix}/{result.metric}{end}": value for end, value in ends.items()}
            sender.add_metrics(named, point.labels, time.time(), send=False)
    sender.flush()
    for file in sorted(folder.iterdir()):
        tracked_run.log_file(run, file, _REPORT)
    tracked_run.set_tags(run, {NOTE_TAG: "\n\n".join(map(escaped, result.sentences()))})
    return result


def write_page(result: Forecast, curve: LearningCurve | None, file: Path) -> None:
    """Write the page of a forecast.

    Args:
        result: the forecast.
        curve: the learning curve; it is drawn if there is a forecast.
        file: the HTML file.
    """
    picture = vector_graphic(learning_curve_picture(result, curve if result.forecast else None))
    values: Any = {"result": result, "picture": picture, "listed": _LISTED}
    write_text(file, render("forecast.html.j2", package=__package__, **values))


def learning_curve_picture(result: Forecast, curve: LearningCurve | None) -> Figure:
    """Return what was measured with each share, and the curve as far as the forecast reaches.

    Args:
        result: the forecast.
        curve: the curve to draw; None if there are too few to tell.
    """
    figure = new_figure(7.2, 4.2)
    axes = figure.add_subplot()
    if curve is not None:
        most = max(point.labels for point in result.forecast)
        grid = np.geomspace(result.points[0].labels, most, 60)
        drawn = [curve.accuracy(labels) for labels in grid]
        lows, highs = [each.low for each in drawn], [each.high for each in drawn]
        axes.fill_between(grid, lows, highs, color=ORANGE, alpha=0.18, linewidth=0)
        axes.plot(grid, [each.value for each in drawn], color=ORANGE, label="curve, 95% interval")
        axes.axvline(result.labels, color=GREY, linestyle=":", linewidth=1)
    sizes, values = zip(*((each.labels, each.value) for each in result.points), strict=True)
    ends = [(each.value - each.low, each.high - each.value) for each in result.points]
    axes.errorbar(sizes, values, np.transpose(ends), fmt="o", color=BLUE, label="measured")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel("labelled training images")
    axes.set_ylabel(f"test {result.metric}")
    plain_axes(axes)
    axes.legend(frameon=False, loc="lower right")
    return figure
