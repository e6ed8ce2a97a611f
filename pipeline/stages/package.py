"""Package the classifier or the encoder, and check the package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.seen_images import describe_seen_images
from patchline.pipeline.evaluation.answers_report import REFERENCE_FILE
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.html_report import PREDICTIONS_FILE
from patchline.pipeline.evaluation.metrics.label_calibration import LabelThresholds
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import LabelMetrics
from patchline.pipeline.evaluation.trained_run import TrainedRun
from patchline.pipeline.models.model_description import AnswerRules
from patchline.pipeline.models.reference_images import REFERENCE_IMAGES_FILE
from patchline.pipeline.packaging.job import PACKAGING, Package
from patchline.pipeline.packaging.model_card import CardFacts, CardLabel
from patchline.pipeline.packaging.packaging import package_model
from patchline.pipeline.registry import registration
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.training.initial_weights.starting_point import StartingPoint
from patchline.pipeline.training.parts import run_parts
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import Ingredients
from patchline.pipeline.workspace.tracking import provenance
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

FOLDER = "package"


@dataclass(frozen=True)
class PackageStage(Stage[Package]):
    """Leaves the package of whatever a line trains."""

    name = "package"
    output = Package
    worker = PACKAGING
    code = (*PACKAGING.code, "patchline.pipeline.packaging.mlflow_classifier")
    rehearsal: ClassVar[str]

    evaluated: Evaluated | PretrainingEvaluated
    trained: TrainResult
    data: IngestedData
    prepared: PreparedData
    start: StartingPoint | None
    run: TrackedRun

    def title(self) -> str:
        """Return what is done."""
        return self.rehearsal

    def card(self) -> CardFacts:
        """Return the facts for the model card that only the run knows."""
        config, start, report = self.config, self.start, self.evaluated.report
        answers = getattr(report, "answers", None)
        return CardFacts(
            answers=tuple(answers.sentences("test images"))
            if answers
            else tuple(_warning_sentences(getattr(report, "warning_rules", None))),
            name=str(config.name),
            images=self.data.counts,
            metrics=report.metrics,
            labels=_card_labels(report),
            initial_weights=display_name(config.model.init) if config.model.init else "",
            license=start.weights.license if start and start.weights else "",
            taught_by=self.data.taught_by,
            seen_before=tuple(describe_seen_images(self.data.seen_before, self.data.counts)),
            training=run_parts.length(self.trained),
            commit=provenance.commit()[0][:12],
        )

    @property
    def trained_run(self) -> TrainedRun:
        """What the run has trained, with its data and settings."""
        return TrainedRun(self.config, self.data, self.prepared, self.trained)

    def key(self) -> Ingredients:
        """Return everything that determines the package."""
        return {
            **self.trained_run.ingredients,
            "card": self.card().model_dump_json(),
            "code": stage_keys.code(*self.code),
        }

    def folder(self, result: Package | None) -> Path:
        """Return the folder of the package."""
        return self.run.folder / FOLDER

    def compute(self) -> Package:
        """Export to ONNX, and compare with the model in torch."""
        return package_model(
            self.trained_run,
            self.evaluated if isinstance(self.evaluated, Evaluated) else None,
            self.card(),
            self.folder(None),
            self.context.reporting.event,
        )

    def log(self, result: Package, run: TrackedRun) -> None:
        """Log how long batches take."""
        registration.log_package_latency(run, result)


@dataclass(frozen=True)
class PackageModel(PackageStage):
    """Leaves the package: ONNX, weights, model card, and a server that needs no torch."""

    task = "Package the model"
    rehearsal = "Packaging the model and checking the package"

    evaluated: Evaluated

    def task_run(self) -> str:
        """Return what is done, with the main metric on the test images."""
        return f"Package the model ({self.evaluated.report.headline.short}) and check the package"

    def key(self) -> Ingredients:
        """Return everything that determines the package."""
        return {
            **super().key(),
            "calibration": self.evaluated.report.calibration.model_dump_json(),
            **_thresholds(self.evaluated),
            "reported": digest_of(self.evaluated.folder / PREDICTIONS_FILE).sha256,
            "answers": _answers(self.evaluated),
            "reference images": _digest_if_any(self.evaluated.folder / REFERENCE_IMAGES_FILE),
        }


def _thresholds(evaluated: Evaluated) -> Ingredients:
    """Return what determines the labels that a multi-label model gives; nothing of any other."""
    thresholds: LabelThresholds | None = getattr(evaluated.report, "thresholds", None)
    return {} if thresholds is None else {"thresholds": thresholds.model_dump_json()}


def _warning_sentences(rules: AnswerRules | None) -> Iterator[str]:
    """Say which warnings a multi-label model gives; their rates were not measured."""
    if rules is None:
        return
    limits = {"dark": rules.dark, "blurred": rules.blurred}
    limits |= {"too_small": rules.least_side, "far": rules.far}
    given = ["blank", *(kind for kind, limit in limits.items() if limit is not None)]
    yield f"warnings of the kinds {', '.join(given)} have limits from {rules.basis}"
    if rules.far is not None and rules.far_split == "test":
        yield "the limit of far comes from the test images, as the model was trained on all others"
    yield "how often test images get a warning was not measured"
    for kind, why in rules.unknown.items():
        yield f"the warning {kind} is never given: {why}"


def _card_labels(report: object) -> tuple[CardLabel, ...]:
    """Return what was measured of each label; nothing of a model with one label for each image."""
    by_label: tuple[LabelMetrics, ...] = getattr(report, "by_label", ())
    return tuple(
        CardLabel(images=each.images, average_precision=each.average_precision) for each in by_label
    )


def _answers(evaluated: Evaluated) -> str:
    """Return everything that determines the sets and warnings of the package."""
    answers = evaluated.report.answers
    fitted = answers.rules if answers else getattr(evaluated.report, "warning_rules", None)
    rules = fitted.model_dump_json() if fitted else ""
    return rules + _digest_if_any(evaluated.folder / REFERENCE_FILE)


def _digest_if_any(file: Path) -> str:
    return digest_of(file).sha256 if file.is_file() else ""


@dataclass(frozen=True)
class PackageEncoder(PackageStage):
    """Leaves the package of an encoder, whose features are compared with those in torch."""

    task = "Package the encoder"
    rehearsal = "Packaging the encoder and checking the package"

    evaluated: PretrainingEvaluated
