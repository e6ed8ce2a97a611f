"""The outcome of a training run, as Markdown for its pages in MLflow and Prefect."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.config import AUTO, RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.seen_images import caveat_on_test_images
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.galleries import EXPLANATIONS, TITLES
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.registry.browsing import saved_views
from patchline.pipeline.registry.promotion import Promotion
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.tracking import addresses, provenance
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class FinishedRun:
    """A finished run whose pages are not written yet."""

    run: TrackedRun
    config: RunConfig
    """The run's settings, resolved."""
    data: IngestedData
    trained: TrainResult
    registered: Registered
    aliases: tuple[str, ...]
    flow_page: str
    """Address of the flow run in the Prefect UI; empty if there is none."""


@dataclass(frozen=True)
class Outcome(FinishedRun):
    """A finished run of a classifier."""

    evaluated: Evaluated
    promotion: Promotion | None
    """None where the run made none."""

    @property
    def run_name(self) -> str:
        """Data, model and main metric, for lists of runs."""
        return f"{self.config.name} {recipe(self.config)} {self.evaluated.report.headline.short}"


@dataclass(frozen=True)
class EncoderOutcome(FinishedRun):
    """A finished run without labels."""

    evaluated: PretrainingEvaluated

    @property
    def run_name(self) -> str:
        """Data, model, objective and loss, for lists of runs."""
        loss = self.evaluated.report.loss.value
        return f"{self.config.name} {recipe(self.config)} {self.config.objective.name} {loss:.4g}"


def recipe(config: RunConfig) -> str:
    """Return the model with its patch embedding: `vit+conv`."""
    return "+".join(name for name in config.model.names if name != AUTO)


def links(outcome: Outcome | EncoderOutcome, base: str = "") -> str:
    """Return links to the related pages; those that explain a prediction may not have been made.

    Args:
        outcome: the outcome of the run, for a classifier or an encoder.
        base: prefix for paths in the MLflow UI; empty on MLflow's own pages.
    """
    explained = [
        (f"{title}, explained", f"{EXPLANATIONS}/{page}.html") for page, title in TITLES.items()
    ]
    return render_markdown(
        "links.md.j2",
        __package__,
        outcome=outcome,
        base=base,
        explanations=[
            (label, addresses.artifact_path(outcome.run, f"report/{file}"))
            for label, file in explained
            if (outcome.evaluated.folder / file).is_file()
        ],
        addresses=addresses,
        views=saved_views,
    )


def outcome_text(outcome: Outcome | EncoderOutcome, links: str) -> str:
    """Return the result, the registered version, metrics and origin of a run, as Markdown.

    Args:
        outcome: the outcome of the run, for a classifier or an encoder.
        links: Markdown with links to related pages; empty for none.
    """
    head, dirty = provenance.commit()
    return render_markdown(
        f"{'encoder_' if isinstance(outcome, EncoderOutcome) else ''}outcome.md.j2",
        __package__,
        outcome=outcome,
        links=links,
        caveat=caveat_on_test_images(outcome.data.seen_before),
        metrics=ALL_METRICS,
        recipe=recipe,
        display_name=display_name,
        head=head,
        dirty=dirty,
    )
