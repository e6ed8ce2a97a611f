"""What a search leaves behind: what `patchline sweep --json` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.workspace.tracking import addresses, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.plugins.tools.sweep.ranges import Value
from patchline.plugins.tools.sweep.result import FinalFit, SweepResult
from patchline.plugins.tools.sweep.space import value_at
from patchline.plugins.tools.sweep.study import TrialRecord


class BestTrial(FrozenModel):
    """The trial that the validation split has chosen."""

    trial: int
    settings: dict[str, Value]
    validation: float


class SweepSummary(FrozenModel):
    """The results of a search and where its files are."""

    study: str
    trials: int
    """Number of trials."""
    best: BestTrial | None
    """None on a machine that joined the study of another one, if no trial is complete."""
    metrics: dict[str, MetricEstimate]
    """Test metrics of the version that was registered; if none was, the mean of the final fits."""
    run_id: str
    """The MLflow run of the search, in which the trials are nested."""
    status: str
    name: str = ""
    version: str = ""
    """Of the registered model; empty if nothing was registered."""
    aliases: tuple[str, ...] = ()
    registered_run_id: str = ""
    """The nested run that the version was registered from."""
    plan: dict[str, Value] = Field(default_factory=dict)
    """The plan's values of the searched settings."""
    gain: MetricEstimate | None = None
    """Of the test metric over the plan, over seeds and images."""
    verdict: str = ""
    optimism: MetricEstimate | None = None
    """By how much the best validation metric exceeds what the same settings reach again."""
    optimism_sentence: str = ""
    mean_test: dict[str, MetricEstimate] = Field(default_factory=dict)
    """Mean test metric of the final fits: of the best settings, and of the plan."""
    final_fits: tuple[FinalFit, ...] = ()
    trial_table: tuple[TrialRecord, ...] = ()
    epochs: float = 0.0
    """Trained by all trials together."""
    rungs: tuple[int, ...] = ()
    space: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0.0
    """Of the search, without the final fits."""
    final_seconds: float = 0.0
    """Of the final fits and their tests, as far as the last command computed them."""
    report: str = ""
    config: str = ""
    """Path of the settings that reproduce the registered version; empty if there is none."""
    tracking_uri: str = ""
    page: str = ""
    """Address of the search in the MLflow UI."""
    promotion: Any = None
    """The decision about the champion; None if it requires approval."""
    notes: tuple[str, ...] = ()
    caveat: str = ""
    approval: str = ""


def summary_of(
    result: SweepResult,
    registered: RunSummary | None,
    plan: RunConfig,
    report: Path,
    run: TrackedRun,
) -> SweepSummary:
    """Return the summary of a finished search.

    Args:
        result: of the search.
        registered: of the run whose model was registered; None if the search gained nothing.
        plan: the settings that it began with.
        report: the page.
        run: the MLflow run of the search.
    """
    of_version: dict[str, Any] = {"metrics": {f"test/{result.metric}": result.best_test}}
    if registered is not None:
        promotion = registered.promotion
        of_version = {
            "metrics": registered.metrics,
            "version": registered.version,
            "aliases": registered.aliases,
            "registered_run_id": registered.run_id,
            "config": registered.config,
            "promotion": promotion.model_dump(mode="json") if promotion else None,
            "caveat": registered.caveat,
            "approval": registered.approval,
        }
    return SweepSummary(
        study=result.study,
        trials=len(result.trials),
        best=best_trial(result.best),
        run_id=run.run_id,
        status="FINISHED",
        name=result.name,
        plan={key: value_at(plan, key) for key in result.space},
        gain=result.gain,
        verdict=result.verdict(),
        optimism=result.optimism,
        optimism_sentence=result.optimism_sentence(),
        mean_test={"best": result.best_test, "plan": result.plan_test},
        final_fits=result.finals,
        trial_table=result.trials,
        epochs=result.epochs,
        rungs=result.rungs,
        space=result.space,
        seconds=result.search_seconds,
        final_seconds=result.final_seconds,
        report=str(report),
        tracking_uri=without_credentials(tracking_store.use_store()),
        page=addresses.run_page(run),
        notes=result.notes,
        **of_version,
    )


def best_trial(record: TrialRecord) -> BestTrial:
    """Return the best trial as JSON has it."""
    return BestTrial(
        trial=record.number, settings=record.settings, validation=record.validation or 0.0
    )
