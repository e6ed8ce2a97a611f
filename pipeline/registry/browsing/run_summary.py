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
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.terminal_words import find_program, pasted_path
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
    """The run whose result was used, for each stage that was not computed again."""
    cross_validation: MetricEstimate | None = None
    """The mean validation accuracy over the folds, with its t interval; None without folds."""
    calibration: TemperatureFit | LabelCalibration | None = None
    """The temperature of the probabilities, or scale and shift of each label, and whether
    validation images determine them."""
    thresholds: LabelThresholds | None = None
    """The probability from which on each label is predicted; None unless images have sets of
    labels."""
    labels: tuple[str, ...] = ()
    """The names of the labels, in the order of calibration and thresholds; empty unless images have
    sets of labels."""
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
        outcome: the outcome of the run, for a classifier or an encoder.
        seconds: duration of each stage.
        config_file: the resolved config.
        approval: the approval that was requested; empty without one.
        reused: the run whose result was used, for each stage that was not computed again.
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


def next_steps(summary: RunSummary, seconds: float, plugins: Sequence[Path] = ()) -> str:
    """Return the results of a run and what to do with them, in lines.

    Args:
        summary: the summary of the run.
        seconds: duration of the whole command.
        plugins: plugin files that were given with `--plugin`.
    """
    program, activation = find_program("patchline")
    return render_markdown(
        "next_steps.txt.j2",
        __package__,
        summary=summary,
        seconds=seconds,
        stages={**summary.seconds, "start-up and end": seconds - sum(summary.seconds.values())},
        headline=headline_of(summary.metrics),
        program=program,
        activation=activation,
        mlflow=find_program("mlflow")[0],
        plugins="".join(f" --plugin {pasted_path(str(file))}" for file in plugins),
        has_server=_has_server(summary.tracking_uri),
        address=address_lines(summary.page, summary.tracking_uri),
    ).removesuffix("\n")


def _has_server(tracking_uri: str) -> bool:
    return tracking_uri.startswith("http")


def address_lines(page: str, tracking_uri: str) -> list[str]:
    """Return where the MLflow UI shows a run, in its layout for model training.

    Args:
        page: address of the run; empty if there is none.
        tracking_uri: URI of the tracking store; without a server, the UI has to be started.
    """
    when = "This run in MLflow" if _has_server(tracking_uri) else "This run, while `mlflow ui` runs"
    return [f"{when}: {page}"] if page else []
