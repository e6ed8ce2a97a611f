"""The outcome of a training run, as Markdown for its pages in MLflow and Prefect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from patchline.pipeline.config import AUTO, RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import caveat_on_test_images
from patchline.pipeline.evaluation.chosen_images import EXPLANATIONS, TITLES
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.evaluation.multi_label.label_set_report import MultiLabelReport
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.markdown import escaped
from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.terminal_words import counted, epochs_in_words
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.tracking import addresses, provenance
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

_SHOWN = (
    "accuracy", "balanced_accuracy", "mAP", "micro_mAP", "macro_f1", "exact_match", "roc_auc",
    "ranking_loss", "log_loss", "ece",
)  # fmt: skip
"""Of both kinds of classifiers."""


@dataclass(frozen=True)
class Outcome:
    """A finished run whose pages are not written yet."""

    run: TrackedRun
    config: RunConfig
    """Resolved."""
    data: IngestedData
    trained: TrainResult
    evaluated: Evaluated
    registered: Registered
    aliases: tuple[str, ...]
    promotion: Promotion | None
    """None where the run made none."""
    flow_page: str = ""
    """Address of the flow run in the Prefect UI; empty if there is none."""

    @property
    def run_name(self) -> str:
        """Data, model and main metric, for lists of runs."""
        return f"{self.config.name} {recipe(self.config)} {self.evaluated.report.headline.short}"


@dataclass(frozen=True)
class EncoderOutcome:
    """A finished run without labels, whose pages are not written yet."""

    run: TrackedRun
    config: RunConfig
    """Resolved."""
    data: IngestedData
    trained: TrainResult
    evaluated: PretrainingEvaluated
    registered: Registered
    aliases: tuple[str, ...]
    flow_page: str = ""
    """Address of the flow run in the Prefect UI; empty if there is none."""

    @property
    def run_name(self) -> str:
        """Data, model, objective and loss, for lists of runs."""
        loss = self.evaluated.report.loss.value
        return f"{self.config.name} {recipe(self.config)} {self.config.objective.name} {loss:.4g}"


def recipe(config: RunConfig) -> str:
    """Return the model with its patch embedding: `vit+conv`."""
    return "+".join(name for name in config.model.names if name != AUTO)


def verdict(outcome: Outcome) -> str:
    """Return the main test metric, the registered version and the promotion decision."""
    report, registered = outcome.evaluated.report, outcome.registered
    warning = f"\n\nWarning: {escaped(report.warning)}." if report.warning else ""
    aliases = f"initially {', '.join(outcome.aliases)}" if outcome.aliases else "no alias"
    return (
        f"{_result(report)}{warning}{_caveat(outcome)}\n\n"
        f"Registered as **{escaped(registered.name)}, version {registered.version}** ({aliases}). "
        f"{promotion_sentence(outcome.promotion)}"
    )


def _result(report: EvaluationReport | MultiLabelReport) -> str:
    main = report.headline.estimate
    interval = f"95% interval {main.low:.1%} to {main.high:.1%}" if main else ""
    if isinstance(report, MultiLabelReport):
        errors = (
            f"{report.false_positives:,} false positives, {report.false_negatives:,} false "
            "negatives"
        )
        if main is None:
            return (
                f"mAP **unknown**: no label is on some of the {report.images:,} test images and "
                f"not on others; {errors}."
            )
        known = len(report.classes) - len(report.unknown_labels) - len(report.unranked_labels)
        return (
            f"mAP **{main.value:.1%}** on {main.n:,} test images ({interval}), mean of "
            f"{counted(known, 'label')}: {errors}."
        )
    main = report.accuracy
    return (
        f"**{main.value:.1%}** of {main.n:,} test images classified correctly ({interval}), "
        f"{counted(report.errors, 'error')}."
    )


def _caveat(outcome: Outcome | EncoderOutcome) -> str:
    """Return a paragraph if the initial weights have seen the test images, or may have."""
    caveat = caveat_on_test_images(outcome.data.seen_before)
    return f"\n\n{escaped(caveat)}" if caveat else ""


def promotion_sentence(promotion: Promotion | None) -> str:
    """Return the promotion decision, in words that stay true when the champion changes."""
    if promotion is None:
        needed = "`patchline promote` or an approval"
        return f"At the end of the run, it was not promoted: that takes {needed}."
    decided = "promoted to champion" if promotion.promoted else "not promoted"
    return f"At the end of the run, it was {decided}: {escaped(promotion.reason)}."


def _explanations(outcome: Outcome | EncoderOutcome) -> dict[str, str]:
    """Return the pages that explain a prediction; they are missing if they could not be made."""
    folder = outcome.evaluated.folder / EXPLANATIONS
    return {
        f"{title}, explained": addresses.artifact_path(
            outcome.run, f"report/{EXPLANATIONS}/{page}.html"
        )
        for page, title in TITLES.items()
        if (folder / f"{page}.html").is_file()
    }


def links(outcome: Outcome | EncoderOutcome, base: str = "") -> str:
    """Return links to the related pages.

    Args:
        outcome: of the run.
        base: prefix for paths in the MLflow UI; empty on MLflow's own pages.
    """
    run, registered = outcome.run, outcome.registered
    paths = {
        "Report": addresses.report_path(run),
        **_explanations(outcome),
        "Curves and images, compared with other runs": saved_views.path(
            run.experiment_id, saved_views.CURVES
        ),
        "Model version": addresses.model_path(registered.name, registered.version),
        "All runs, best first": saved_views.path(run.experiment_id),
    }
    urls = {label: f"{base}{path}" for label, path in paths.items()}
    if base:
        urls = {"Run in MLflow": f"{base}{addresses.run_path(run)}", **urls}
    elif outcome.flow_page:
        urls["Flow run in Prefect"] = outcome.flow_page
    return " · ".join(f"[{label}]({address})" for label, address in urls.items())


def metrics_table(outcome: Outcome) -> str:
    """Return the main test metrics as a table."""
    lines = ["| on the test images | value | 95% interval |", "|---|---|---|"]
    for name in _SHOWN:
        estimate = outcome.evaluated.report.metrics.get(f"test/{name}")
        if estimate is not None:
            better = "" if ALL_METRICS[name].higher_is_better else " (lower is better)"
            lines.append(
                f"| {ALL_METRICS[name].title}{better} | {estimate.value:.4f} "
                f"| {estimate.low:.4f} to {estimate.high:.4f} |"
            )
    return "\n".join(lines)


def lineage(outcome: Outcome | EncoderOutcome) -> str:
    """Return the origin of the model as a table: data, model, training, run, code."""
    rows = [f"| {key} | {value} |" for key, value in _lineage(outcome)]
    return "\n".join(["| origin | |", "|---|---|", *rows])


def _ancestors(outcome: Outcome | EncoderOutcome) -> Iterator[tuple[str, str]]:
    """Yield the models that the weights come from."""
    if outcome.config.model.init:
        yield "initial weights", escaped(display_name(outcome.config.model.init))
    if outcome.data.taught_by:
        yield "teacher", escaped(outcome.data.taught_by)


def _lineage(outcome: Outcome | EncoderOutcome) -> Iterator[tuple[str, str]]:
    data, trained, config = outcome.data, outcome.trained, outcome.config
    counts = ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
    length = (
        f"{epochs_in_words(trained.epochs)}, {trained.steps:,} steps, in {trained.seconds:.0f} s"
    )
    if trained.probe is not None:
        length = f"the head alone, on frozen features, in {trained.seconds:.0f} s"
    yield "data", f"{escaped(data.name)}: {counts}"
    yield "data version", f"`{data.fingerprint}`"
    if not data.classes:
        yield "objective", escaped(config.objective.name)
    yield "model", f"{escaped(recipe(config))}, {trained.parameters:,} parameters"
    yield from _ancestors(outcome)
    if trained.folds is not None:
        yield "cross-validation", trained.folds.sentence()
    if trained.fine_tuning is not None:
        yield "fine-tuning", trained.fine_tuning.sentence()
    yield "training", f"{length} on {trained.device}, {trained.precision}, seed {config.seed}"
    if trained.refit is not None:
        refit = trained.refit
        again = f"{refit.images:,} images (train and validation)"
        if trained.probe is None:
            again += f" for {epochs_in_words(refit.epochs)}"
        yield "refit", f"{again} in {refit.seconds:.0f} s; these weights were tested"
    if trained.ensemble is not None:
        yield "ensemble", f"of {trained.ensemble.models} models, one of each fold"
    yield "run", f"`{outcome.run.run_id}`"
    head, dirty = provenance.commit()
    if head:
        yield "code", f"`{head[:12]}`{', with changes' if dirty else ''}"
