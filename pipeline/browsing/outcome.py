"""What came out of a training run, in the words that its pages share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.browsing import saved_views
from pipeline.config import AUTO, RunConfig
from pipeline.data.ingestion import IngestedData
from pipeline.evaluation.evaluating import Evaluated
from pipeline.metrics.names import METRICS
from pipeline.packaging.model_card import escaped
from pipeline.registry.promotion import Promotion
from pipeline.registry.registration import Registered
from pipeline.tracking import addresses, provenance
from pipeline.tracking.tracked_run import TrackedRun
from pipeline.training.train_result import TrainResult

_SHOWN = ("accuracy", "balanced_accuracy", "macro_f1", "roc_auc", "log_loss", "ece")


@dataclass(frozen=True)
class Outcome:
    """A run that is done but for its pages."""

    run: TrackedRun
    config: RunConfig
    """Resolved."""
    data: IngestedData
    trained: TrainResult
    evaluated: Evaluated
    registered: Registered
    aliases: tuple[str, ...]
    promotion: Promotion | None
    """None where a person has to decide."""
    flow_page: str = ""
    """Address of the flow run in the Prefect UI; empty without one."""

    @property
    def accuracy(self) -> float:
        """On the test images."""
        return self.evaluated.report.accuracy.value

    @property
    def run_name(self) -> str:
        """Data, model and accuracy: what a list of runs has to tell."""
        return f"{self.config.name} {recipe(self.config)} {self.accuracy:.1%}"


def recipe(config: RunConfig) -> str:
    """Return the model with its patch embedding, short: `vit+conv`."""
    return "+".join(name for name in config.model.names if name != AUTO)


def verdict(outcome: Outcome) -> str:
    """Return in Markdown how good the model is, and what became of it."""
    report, registered = outcome.evaluated.report, outcome.registered
    accuracy = report.accuracy
    warning = f"\n\nWatch out: {escaped(report.warning)}." if report.warning else ""
    aliases = f"at first {', '.join(outcome.aliases)}" if outcome.aliases else "without an alias"
    return (
        f"**{accuracy.value:.1%}** of {accuracy.n:,} test images recognised (95 % interval "
        f"{accuracy.low:.1%} to {accuracy.high:.1%}), {_errors(report.errors)}.{warning}\n\n"
        f"Registered as **{escaped(registered.name)}, version {registered.version}** ({aliases}). "
        f"{promotion_words(outcome.promotion)}"
    )


def _errors(number: int) -> str:
    return "1 error" if number == 1 else f"{number:,} errors"


def promotion_words(promotion: Promotion | None) -> str:
    """Return what was decided about the champion, in words that stay true afterwards."""
    if promotion is None:
        return "At the end of the run it was left to a person whether it becomes champion."
    decided = "became the champion" if promotion.promoted else "was not promoted"
    return f"At the end of the run it {decided}: {escaped(promotion.reason)}."


def links(outcome: Outcome, base: str = "") -> str:
    """Return the ways on, in Markdown.

    Args:
        outcome: of the run.
        base: what stands in front of a path of the MLflow UI; nothing on its own pages.
    """
    run, registered = outcome.run, outcome.registered
    ways = {
        "Report": addresses.report_path(run),
        "Curves and images, beside other runs": saved_views.path(
            run.experiment_id, saved_views.CURVES
        ),
        "Model version": addresses.model_path(registered.name, registered.version),
        "All runs, best first": saved_views.path(run.experiment_id),
    }
    found = {words: f"{base}{path}" for words, path in ways.items()}
    if base:
        found = {"Run in MLflow": f"{base}{addresses.run_path(run)}", **found}
    elif outcome.flow_page:
        found["Flow run in Prefect"] = outcome.flow_page
    return " · ".join(f"[{words}]({address})" for words, address in found.items())


def figures(outcome: Outcome) -> str:
    """Return the figures that decide, as a table in Markdown."""
    lines = ["| on the test images | value | 95 % interval |", "|---|---|---|"]
    for name in _SHOWN:
        estimate = outcome.evaluated.report.metrics.get(f"test/{name}")
        if estimate is not None:
            better = "" if METRICS[name].higher_is_better else " (lower is better)"
            lines.append(
                f"| {METRICS[name].title}{better} | {estimate.value:.4f} "
                f"| {estimate.low:.4f} to {estimate.high:.4f} |"
            )
    return "\n".join(lines)


def lineage(outcome: Outcome) -> str:
    """Return where the model comes from, as a table in Markdown."""
    rows = [f"| {key} | {value} |" for key, value in _lineage(outcome)]
    return "\n".join(["| made of | |", "|---|---|", *rows])


def _lineage(outcome: Outcome) -> Iterator[tuple[str, str]]:
    data, trained, config = outcome.data, outcome.trained, outcome.config
    counts = ", ".join(f"{count:,} {split}" for split, count in data.counts.items())
    length = f"{trained.epochs:.4g} epochs ({trained.steps:,} steps) in {trained.seconds:.0f} s"
    yield "data", f"{escaped(data.name)}: {counts}"
    yield "data version", f"`{data.fingerprint}`"
    yield "model", f"{escaped(recipe(config))}, {trained.parameters:,} parameters"
    yield "training", f"{length} on {trained.device}, {trained.precision}, seed {config.seed}"
    yield "run", f"`{outcome.run.run_id}`"
    head, dirty = provenance.commit()
    if head:
        yield "code", f"`{head[:12]}`{', with changes' if dirty else ''}"
