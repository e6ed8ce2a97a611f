"""What a training run leaves behind: what `patchline run` prints in the end, also with `--json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from patchline.pipeline.data.seen_images import caveat_on_test_images
from patchline.pipeline.evaluation.headline import headline_of
from patchline.pipeline.evaluation.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.registry.browsing.outcome import EncoderOutcome, Outcome
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.terminal_words import pasted_path, pasted_program
from patchline.pipeline.workspace.tracking import addresses, tracking_store


class RunSummary(FrozenModel):
    """The results of a training run and where its files are."""

    run_id: str
    name: str
    version: str
    aliases: tuple[str, ...]
    status: str
    seconds: dict[str, float]
    """Duration of each stage."""
    metrics: dict[str, MetricEstimate]
    report: str
    """Path of the HTML report."""
    tracking_uri: str
    config: str
    """Path of the resolved config."""
    data_fingerprint: str
    example_image: str
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    """Remarks about the data, such as damaged files."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the model has seen are recorded."""
    caveat: str = ""
    """Why the test metrics may be optimistic because of the initial weights; empty if they are not.
    """
    groups_note: str = ""
    """What the groups of the test images mean for the intervals; empty if there are none."""
    promotion: Promotion | None
    """The decision about the champion; None if the run made none."""
    approval: str = ""
    """The approval that was requested, or why it could not be; empty unless the config asks."""
    reused: dict[str, str] = Field(default_factory=dict)
    """For each stage that was not computed again, the run whose result was used."""
    cross_validation: MetricEstimate | None = None
    """With folds, their mean validation accuracy with its t interval."""
    calibration: TemperatureFit | LabelCalibration | None = None
    """The temperature of the probabilities, or scale and shift of each label, and whether
    validation images determine them."""
    thresholds: LabelThresholds | None = None
    """With sets of labels: from which probability on each label is predicted."""
    labels: tuple[str, ...] = ()
    """With sets of labels: their names, in the order of calibration and thresholds."""
    page: str = ""
    """Address of the run in the MLflow UI; for a local store, while `mlflow ui` runs."""


def summary_of(
    outcome: Outcome | EncoderOutcome,
    seconds: dict[str, float],
    config_file: Path,
    approval: str,
    reused: dict[str, str],
) -> RunSummary:
    """Return the summary of a finished run, of a classifier or of an encoder.

    Args:
        outcome: of the run.
        seconds: duration of each stage.
        config_file: the resolved config.
        approval: the approval that was requested; empty without one.
        reused: for each stage that was not computed again, the run whose result was used.
    """
    run, data, registered = outcome.run, outcome.data, outcome.registered
    classifier = outcome if isinstance(outcome, Outcome) else None
    folds = classifier.trained.folds if classifier else None
    report = classifier.evaluated.report.with_robustness if classifier else outcome.evaluated.report
    return RunSummary(
        run_id=run.run_id,
        name=registered.name,
        version=registered.version,
        aliases=outcome.aliases,
        status="FINISHED",
        seconds=seconds,
        metrics=report.metrics,
        report=str(outcome.evaluated.html),
        tracking_uri=without_credentials(tracking_store.use_store()),
        config=str(config_file),
        data_fingerprint=data.fingerprint,
        example_image=data.example_image,
        notes=data.notes,
        provenance=data.seen_before.provenance,
        caveat=caveat_on_test_images(data.seen_before),
        groups_note=classifier.evaluated.report.groups_note if classifier else "",
        promotion=classifier.promotion if classifier else None,
        approval=approval,
        reused=reused,
        cross_validation=folds.accuracy if folds else None,
        calibration=classifier.evaluated.report.calibration if classifier else None,
        **_of_label_sets(outcome),
        page=addresses.run_page(run),
    )


def _of_label_sets(outcome: EncoderOutcome | Outcome) -> dict[str, Any]:
    report = outcome.evaluated.report
    if not isinstance(report, MultiLabelReport):
        return {}
    return {"thresholds": report.thresholds, "labels": report.classes}


Command = tuple[str, str]
"""A command line and what it does."""


def next_steps(summary: RunSummary, seconds: float, plugins: Sequence[Path] = ()) -> str:
    """Return the results of a run and what to do with them, in lines.

    Args:
        summary: of the run.
        seconds: duration of the whole command.
        plugins: plugin files that were given with `--plugin`.
    """
    parts = {**summary.seconds, "start-up and end": seconds - sum(summary.seconds.values())}
    stages = ", ".join(f"{stage} {each:.0f}" for stage, each in parts.items())
    activation, commands = _commands(summary, plugins)
    width = max(len(command) for command, _ in commands)
    lines = [
        "",
        _result_line(summary),
        *(f"               {note}" for note in (summary.caveat, summary.groups_note) if note),
        *_fold_lines(summary),
        *_calibration_lines(summary),
        f"Registered     {summary.name}, version {summary.version} ({', '.join(summary.aliases)})",
        *_promotion_lines(summary),
        f"Report         {pasted_path(summary.report)}",
        f"Took           {seconds:.0f} s ({stages})",
        "",
        f"What's next{f' (after `{activation}`)' if activation else ''}:",
        *(f"  {command:<{width}}  {meaning}" for command, meaning in commands),
    ]
    return "\n".join([*lines, *address_lines(summary.page, summary.tracking_uri)])


def _result_line(summary: RunSummary) -> str:
    main = headline_of(summary.metrics)
    if main is None:
        loss = summary.metrics["test/loss"]
        interval = f"95% interval {loss.low:.4g} to {loss.high:.4g}"
        return f"Test loss      {loss.value:.4g} on {loss.n:,} images ({interval})"
    found = main.estimate
    if found is None:
        return (
            f"{f'Test {main.name}':<14} unknown: no label is on some test images and not on others"
        )
    joint = "of" if main.name == "accuracy" else "on"
    return (
        f"{f'Test {main.name}':<14} {found.value:.1%} {joint} {found.n:,} images "
        f"(95% interval {found.low:.1%} to {found.high:.1%})"
    )


def _commands(summary: RunSummary, plugins: Sequence[Path]) -> tuple[str, list[Command]]:
    """Return the command that activates the environment, if one is needed, and the others."""
    program, activation = pasted_program("patchline")
    champion = "champion" in summary.aliases
    model = f"{summary.name}@champion" if champion else f"{summary.name}/{summary.version}"
    promote = [(f"{program} promote {summary.name}", "make it champion if it is better")]
    if champion:
        promote = []
    elif summary.approval:
        promote = [(f"{program} approve {model}", "make it champion, or `reject` it")]
    files = "".join(f" --plugin {pasted_path(str(file))}" for file in plugins)
    again = f"{program} run --config {pasted_path(summary.config)}{files} --fresh"
    of_encoder = [
        (f"{program} run FOLDER --model.init {model}", "train a classifier from it"),
        (f"{program} models {summary.name}", "list all versions with their metrics"),
        (again, "reproduce this run"),
    ]
    of_classifier = [
        (f"{program} predict {model} {pasted_path(summary.example_image)}", _predicts(summary)),
        (f"{program} explain {model} {pasted_path(summary.example_image)}", "show how it sees it"),
        (f"{program} serve {model}", "a page to try images on, and answers over HTTP"),
        *promote,
        (f"{program} models {summary.name}", "list all versions with their metrics"),
        (again, "reproduce this run"),
    ]
    commands = of_classifier if _is_classifier(summary) else of_encoder
    if not _has_server(summary.tracking_uri):
        commands.append((f"{pasted_program('mlflow')[0]} ui", "browse the runs in this folder"))
    return activation, commands


def _is_classifier(summary: RunSummary) -> bool:
    return headline_of(summary.metrics) is not None


def _predicts(summary: RunSummary) -> str:
    headline = headline_of(summary.metrics)
    return "classify an image" if headline and headline.name == "accuracy" else "label an image"


def _has_server(tracking_uri: str) -> bool:
    return tracking_uri.startswith("http")


def address_lines(page: str, tracking_uri: str) -> list[str]:
    """Return where the MLflow UI shows a run, in its layout for model training.

    Args:
        page: address of the run; empty if there is none.
        tracking_uri: of the store; without a server, the UI has to be started.
    """
    when = "This run in MLflow" if _has_server(tracking_uri) else "This run, while `mlflow ui` runs"
    return [f"{when}: {page}"] if page else []


def _fold_lines(summary: RunSummary) -> list[str]:
    folds = summary.cross_validation
    if folds is None:
        return []
    interval = f"95% t interval {folds.low:.1%} to {folds.high:.1%}"
    return [f"Validation     {folds.value:.1%}, mean of {folds.n} folds ({interval})"]


def _calibration_lines(summary: RunSummary) -> list[str]:
    """Return why the probabilities may be uncalibrated; nothing where images determine them."""
    fit = summary.calibration
    return [] if fit is None or fit.is_calibrated else [f"Calibration    {fit.sentence()}"]


def _promotion_lines(summary: RunSummary) -> list[str]:
    decision = summary.promotion
    if "champion" in summary.aliases or not _is_classifier(summary):
        return []
    if decision is None:
        program = pasted_program("patchline")[0]
        how = (
            "approval is pending"
            if summary.approval
            else f"`{program} promote {summary.name}` compares this version with it"
        )
        lines = [f"               the champion has not changed; {how}"]
    else:
        lines = [f"Not promoted   {decision.reason}"]
    return [*lines, f"Approval       {summary.approval}"] if summary.approval else lines
