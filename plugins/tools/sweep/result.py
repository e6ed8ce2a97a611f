"""The result of a search: its trials, the final fits, what it gained, and its summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.markdown import render_markdown
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.tracking import addresses, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.plugins.tools.sweep.space import Value, value_at
from patchline.plugins.tools.sweep.study import TrialRecord

FinalKind = Literal["best", "plan"]


class FinalFit(FrozenModel):
    """One final fit: the best settings or the plan's, with a seed that no trial has used."""

    kind: FinalKind
    seed: int
    run_id: str
    validation: float
    test: float
    epochs: float


class SweepResult(FrozenModel):
    """Everything that the report of a search shows."""

    name: str
    """Of the experiment and the registered model."""
    study: str
    metric: str
    """accuracy, or mAP of sets of labels."""
    data_fingerprint: str
    images: dict[str, int]
    """By split."""
    space: dict[str, str]
    """Each dimension as it is typed."""
    outside: tuple[str, ...] = ()
    """Settings whose range does not contain the plan's value, which is then no trial."""
    rungs: tuple[int, ...]
    sampler: str
    reduction: int
    seed: int
    trials: tuple[TrialRecord, ...]
    search_seconds: float
    final_seconds: float = 0.0
    """Of the final fits and their tests."""
    best: TrialRecord
    is_plan: bool
    """Whether the best settings are the plan's own."""
    finals: tuple[FinalFit, ...]
    gain: MetricEstimate
    """Of the test metric, over the plan; all 0 if the best settings are the plan's."""
    best_test: MetricEstimate
    plan_test: MetricEstimate
    test_groups: int | None = None
    """Number of groups that the test images form; None if these are independent."""
    optimism: MetricEstimate
    """By how much the best validation metric exceeds what the same settings reach with other
    seeds, on the same validation images."""
    notes: tuple[str, ...] = ()
    registered: str = ""
    """Name and version; empty if the search gained nothing over the plan and there is a champion.
    """
    champion: str = ""
    """The champion and its test metric, in words, if nothing was registered."""

    @property
    def epochs(self) -> float:
        """Epochs that the trials have trained together."""
        return sum(each.epochs for each in self.trials)

    @property
    def whole_fits(self) -> float:
        """The same in whole fits."""
        return self.epochs / self.rungs[-1]

    def count(self, state: str) -> int:
        """Return how many trials ended so."""
        return sum(each.state == state for each in self.trials)

    def of(self, kind: FinalKind) -> list[FinalFit]:
        """Return the final fits of a kind; if the plan is the best, they are the same."""
        chosen = [each for each in self.finals if each.kind == kind]
        return chosen or list(self.finals)

    def gain_words(self) -> str:
        """Return the gain in a few words."""
        return "no gain" if self.is_plan else f"{_points(self.gain.value)} points"

    def verdict(self) -> str:
        """Return what the search gained, in one sentence."""
        return self._text("verdict.md.j2")

    def optimism_sentence(self) -> str:
        """Return how optimistic the best validation metric was, in one sentence."""
        again = [each.validation for each in self.of("best")]
        return self._text("optimism.md.j2", again=again, mean=sum(again) / len(again))

    def _text(self, template: str, **values: Any) -> str:
        words = {"points": _points, "counted": counted}
        return render_markdown(template, __package__, result=self, **words, **values)


def _points(share: float) -> str:
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


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


_OF_RESULT = ("study", "name", "gain", "optimism", "rungs", "space", "final_seconds", "notes")
"""What a summary has as the result has it."""


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
        trials=len(result.trials),
        best=best_trial(result.best),
        run_id=run.run_id,
        status="FINISHED",
        plan={key: value_at(plan, key) for key in result.space},
        verdict=result.verdict(),
        optimism_sentence=result.optimism_sentence(),
        mean_test={"best": result.best_test, "plan": result.plan_test},
        final_fits=result.finals,
        trial_table=result.trials,
        epochs=result.epochs,
        seconds=result.search_seconds,
        report=str(report),
        tracking_uri=without_credentials(tracking_store.use_store()),
        page=addresses.run_page(run),
        **{name: getattr(result, name) for name in _OF_RESULT},
        **of_version,
    )


def best_trial(record: TrialRecord) -> BestTrial:
    """Return the best trial as JSON has it."""
    return BestTrial(
        trial=record.number, settings=record.settings, validation=record.validation or 0.0
    )
