"""The final fits of a search, and its result.

The best settings and the plan's are trained with seeds that no trial has used.

Only the validation split chooses: the best trial among the trials, and among the final fits of its
settings the one that is registered. The test split is read once, when all fits are done.

Two things make the difference of one pair of fits uncertain: the seed, and which images happen to
be in the test split. Both are crossed, as readers and cases are in radiology (Obuchowski and
Rockette 1995; Gallas et al. 2009, Communications in Statistics 38). With R seeds and n images,

    Var(mean) = (MS_image + max(0, MS_seed - MS_residual)) / (R n),

with t quantiles at Satterthwaite's degrees of freedom (Hillis 2007, Statistics in Medicine 26). Few
seeds may agree by chance, which these allow for too little; so an interval is never narrower than
the t interval of the seeds alone, which with two of them shows large gains only.
Where images form groups, such as patients, the groups take the place of the images.

Shapes: R seeds, N images, G groups, K labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.html_report import PREDICTIONS_FILE
from patchline.pipeline.evaluation.metrics.intervals import TAIL, ImageGroups, MetricEstimate
from patchline.pipeline.evaluation.metrics.mean_average_precision import find_ranked_labels
from patchline.pipeline.evaluation.metrics.multi_label.resampling import (
    LabelRanking,
    Sample,
    compute_drawn_map,
    draws_for,
    rankings_of,
)
from patchline.pipeline.evaluation.predictions import image_groups
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.tracking import addresses, tracking_store
from patchline.pipeline.workspace.tracking.nested_runs import FINAL, NestedRun
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.plugins.tools.sweep.search import score_of
from patchline.plugins.tools.sweep.space import Value, value_at
from patchline.plugins.tools.sweep.study import TrialRecord

Array = np.ndarray[Any, Any]
_EQUAL_IMAGES = 0.5
"""Metrics that differ by less than this share of an image are equal."""
_UNKNOWN = 2.0
"""Half of an interval that spans everything."""


def gain_of_shares(
    before_RN: Array, after_RN: Array, *, groups: ImageGroups | None = None
) -> MetricEstimate:
    """Return the mean gain in accuracy with its 95% interval.

    Args:
        before_RN: whether each fit of the plan is right on each image.
        after_RN: the same of the best settings; row r has the same seed.
        groups: the groups that the images form; None if the images are independent.
    """
    difference_RN = after_RN.astype(np.float64) - before_RN.astype(np.float64)
    value, images = float(difference_RN.mean()), difference_RN.shape[1]
    half = _compute_crossed_half_width(difference_RN)
    if groups is not None:
        by_group_RG = np.stack([groups.linearised(each_N) for each_N in difference_RN])
        half = max(half, _compute_crossed_half_width(by_group_RG)) if groups.count > 1 else _UNKNOWN
    return _estimate(value, half, images)


def _compute_crossed_half_width(difference_RN: Array) -> float:
    """Return half of the interval of the mean difference over seeds and images, or groups."""
    seeds, images = difference_RN.shape
    value = float(difference_RN.mean())
    by_seed_R, by_image_N = difference_RN.mean(axis=1), difference_RN.mean(axis=0)
    ms_seed = images * _variance(by_seed_R)
    ms_image = seeds * _variance(by_image_N)
    residual = difference_RN - by_seed_R[:, None] - by_image_N[None] + value
    freedom = max(1, (seeds - 1) * (images - 1))
    ms_residual = float((residual**2).sum()) / freedom
    scale = seeds * images
    extra = max(0.0, ms_seed - ms_residual)
    half = _half_width(ms_image / scale, images - 1, extra / scale, ms_seed / scale, seeds - 1)
    if half == 0.0:  # equal predictions do not make it certain
        half = 3.0 / max(1, images)  # the rule of three (Hanley and Lippman-Hand 1983, JAMA 249)
    return half


def gain_of_map(
    labels_NK: Array,
    before_RNK: Array,
    after_RNK: Array,
    *,
    groups: ImageGroups | None = None,
    seed: int = 0,
) -> MetricEstimate:
    """Return the mean gain in mAP with its 95% interval; images are drawn by a bootstrap.

    Args:
        labels_NK: 1 where an image has a label, else 0.
        before_RNK: probabilities of each fit of the plan (R, N, K).
        after_RNK: the same of the best settings.
        groups: the groups that the images form, which are drawn together; None if the images are
            independent.
        seed: the seed of the draws.
    """
    images, labels = labels_NK.shape
    seeds = len(before_RNK)
    if not find_ranked_labels(labels_NK).any():
        return MetricEstimate(value=0.0, low=-1.0, high=1.0, n=images)
    rankings = [
        [rankings_of(each_NK, labels_NK) for each_NK in fits] for fits in (before_RNK, after_RNK)
    ]
    whole = np.ones((images, 1), np.uint8)
    values_R = _map_differences(rankings, whole)[:, 0]
    sample = Sample(groups, draws_for(images, labels), seed)
    drawn = [_map_differences(rankings, counts).mean(axis=0) for counts in sample.drawn(images)]
    of_images, units = _variance(np.concatenate(drawn)), images
    if groups is not None:
        units = groups.count
        of_images *= units / max(1, units - 1)
    of_seeds = _variance(values_R) / seeds
    half = _half_width(of_images, units - 1, of_seeds, of_seeds, seeds - 1) or 3.0 / units
    return _estimate(float(values_R.mean()), half if units > 1 else _UNKNOWN, images)


def mean_of_seeds(
    values: Sequence[float], images: int, units: float | None = None
) -> MetricEstimate:
    """Return the mean of a metric over seeds on the same images, with its 95% interval.

    Args:
        values: the metric of each seed, from 0 to 1.
        images: the number of images that each is computed on.
        units: independent images that would make it as certain; None if all are independent.
    """
    mean, units = float(np.mean(values)), images if units is None else units
    of_images = mean * (1 - mean) / max(1, units)
    of_seeds = _variance(np.array(values)) / len(values)
    half = _half_width(of_images, max(1, units - 1), of_seeds, of_seeds, len(values) - 1)
    half = half or 3.0 / max(1, units)
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return MetricEstimate(value=mean, low=low, high=high, n=images)


def optimism_of(
    best: float, again: Sequence[float], images: int, units: int | None = None
) -> MetricEstimate:
    """Return by how much the best validation metric exceeds what the same settings reach again.

    The best of many trials was partly lucky with its seed. The images are the same, so only the
    seeds make the difference uncertain. If all reach the same metric, to less than an image, they
    do not tell how much seeds vary; the interval is then that of the metric on so many images,
    as if each seed drew them again, which is too wide rather than too narrow.

    Args:
        best: validation metric of the best trial.
        again: validation metrics of fits with the same settings and other seeds.
        images: number of validation images.
        units: number of groups that they form; None if all are independent.
    """
    from scipy.special import stdtrit

    value, count = best - float(np.mean(again)), len(again)
    if float(np.ptp(again)) < _EQUAL_IMAGES / max(1, images):
        mean = mean_of_seeds([float(np.mean(again))], images, units)
        half = max(mean.high - mean.value, mean.value - mean.low)
    else:
        variance = _variance(np.array(again)) / count
        half = float(stdtrit(count - 1, 1 - TAIL)) * math.sqrt(variance)
    return _estimate(value, half, count)


def _map_differences(rankings: list[list[list[LabelRanking]]], counts_ND: Array) -> Array:
    """Return the differences (R, D) in mAP of each pair of fits in D draws of the images."""
    before, after = (
        np.stack([compute_drawn_map(fit, counts_ND) for fit in fits]) for fits in rankings
    )
    differences: Array = np.nan_to_num(after - before)
    return differences


def _half_width(
    images: float, images_freedom: float, extra: float, seeds: float, seeds_freedom: float
) -> float:
    """Return half of a 95% interval whose variance has a part of the images and one of the seeds.

    Args:
        images: the variance of the mean that comes from the images.
        images_freedom: its degrees of freedom.
        extra: the variance that the seeds add.
        seeds: the mean square that this was estimated from.
        seeds_freedom: its degrees of freedom.
    """
    from scipy.special import stdtrit

    variance = images + extra
    if variance <= 0:
        return 0.0
    uncertain = images**2 / max(1, images_freedom)
    if extra > 0:
        uncertain += seeds**2 / max(1, seeds_freedom)
    freedom = max(1.0, variance**2 / uncertain) if uncertain else images_freedom
    half = float(stdtrit(freedom, 1 - TAIL)) * math.sqrt(variance)
    alone = float(stdtrit(seeds_freedom, 1 - TAIL)) * math.sqrt(seeds) if seeds_freedom else 0.0
    return max(half, alone)


def _variance(values: Array) -> float:
    return float(np.var(values, ddof=1)) if len(values) > 1 else 0.0


def _estimate(value: float, half: float, n: int) -> MetricEstimate:
    low, high = max(-1.0, value - half), min(1.0, value + half)
    return MetricEstimate(value=value, low=low, high=high, n=n)


FINALS_FOLDER = "finals"
FINAL_TAG = "patchline.sweep.final"
_COMMAND = "patchline sweep (final fit)"
_SPARSE = {"explanations": False, "corruptions": 0, "slices": ()}
"""Contents of the report on a fit that is not registered."""
_NAMES: dict[FinalKind, str] = {"best": "best settings", "plan": "the plan"}


@dataclass(frozen=True)
class PlannedFit:
    """A final fit that is to be trained."""

    kind: FinalKind
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """Its name in lists of runs."""
        return f"{_NAMES[self.kind]}, seed {self.seed}"

    @property
    def nested(self) -> NestedRun:
        """Its MLflow run."""
        return NestedRun(
            key=f"{FINAL}{self.kind} {self.seed}",
            folder=FINALS_FOLDER,
            command=_COMMAND,
            experiment=str(self.config.name),
            name=self.name,
        )


@dataclass(frozen=True)
class TestedFit:
    """A final fit with its predictions of the test images."""

    planned: PlannedFit
    run_id: str
    trained: TrainResult
    evaluated: Evaluated

    @property
    def record(self) -> FinalFit:
        """What the report shows of it.

        Raises:
            RunError: if the test metric is unknown.
        """
        tested = self.evaluated.report.headline.estimate
        if tested is None:
            raise RunError("The test mAP is unknown. Add test images with other labels.")
        return FinalFit(
            kind=self.planned.kind,
            seed=self.planned.seed,
            run_id=self.run_id,
            validation=score_of(self.trained),
            test=tested.value,
            epochs=self.trained.epochs,
        )

    @property
    def is_of_label_sets(self) -> bool:
        """Whether an image has several labels."""
        return self.planned.config.data.task == MULTI_LABEL

    def predictions(self, split: str = "test") -> pd.DataFrame:
        """Return its predictions of the test images, in the order of their paths."""
        table = pd.read_parquet(self.evaluated.folder / PREDICTIONS_FILE)
        tested = table[table["split"] == split]
        return tested.sort_values("path", kind="stable").reset_index(drop=True)

    def groups(self, split: str = "test") -> ImageGroups | None:
        """Return the groups of the test images, in the same order, or of another split's."""
        return image_groups(self.predictions(split))

    def right(self) -> Array:
        """Return whether it is right on each test image (N)."""
        table = self.predictions()
        return (table["predicted"] == table["label"]).to_numpy()


@dataclass(frozen=True)
class FinalComparison:
    """What the final fits say about the search."""

    gain: MetricEstimate
    best: MetricEstimate
    plan: MetricEstimate
    optimism: MetricEstimate
    groups: int | None = None
    """Number of groups that the test images form; None if these are independent."""


def plan_fits(
    best: RunConfig, plan: RunConfig, seeds: int, *, is_plan: bool
) -> Iterator[PlannedFit]:
    """Yield the final fits, in pairs of equal seeds.

    Args:
        best: the best settings, resolved.
        plan: the plan's settings, resolved.
        seeds: number of seeds; they follow that of the trials.
        is_plan: whether both are the same: there is nothing to compare, so one fit is trained.
    """
    kinds: list[tuple[FinalKind, RunConfig]] = [("best", best)]
    if not is_plan:
        kinds.append(("plan", plan))
    for number in range(1, (1 if is_plan else seeds) + 1):
        seed = (plan.seed + number) % 2**32
        for kind, config in kinds:
            yield PlannedFit(kind, seed, config.model_copy(update={"seed": seed}))


def sparse(config: RunConfig) -> RunConfig:
    """Return the settings of a fit whose report nobody reads, only its metrics."""
    evaluation = config.evaluation.model_copy(update=_SPARSE)
    return config.model_copy(update={"evaluation": evaluation})


def winner(trained: Sequence[tuple[PlannedFit, TrainResult]]) -> int:
    """Return the position of the fit to register: of the best settings, by validation alone."""
    scores = [
        (score_of(result), -result.best_validation_loss, -position)
        for position, (fit, result) in enumerate(trained)
        if fit.kind == "best"
    ]
    return -max(scores)[2]


def compare_fits(
    fits: Sequence[TestedFit], best_validation: float, validation_images: int
) -> FinalComparison:
    """Compare the final fits of both settings on the test images.

    Args:
        fits: all of them; without any of the plan, both settings are the same.
        best_validation: validation metric of the best trial.
        validation_images: number of images that it is computed on.
    """
    ours = [fit for fit in fits if fit.planned.kind == "best"]
    theirs = [fit for fit in fits if fit.planned.kind == "plan"]
    images, groups = len(ours[0].predictions()), ours[0].groups()
    validated = ours[0].groups("validation")
    again = [score_of(fit.trained) for fit in ours]
    nothing = MetricEstimate(value=0.0, low=0.0, high=0.0, n=images)
    return FinalComparison(
        gain=_gain(theirs, ours, groups) if theirs else nothing,
        best=_mean(ours, images, groups),
        plan=_mean(theirs or ours, images, groups),
        optimism=optimism_of(
            best_validation, again, validation_images, validated.count if validated else None
        ),
        groups=groups.count if groups else None,
    )


def _mean(fits: Sequence[TestedFit], images: int, groups: ImageGroups | None) -> MetricEstimate:
    """Return the mean test metric; with groups, mAP is as certain as if each were one image."""
    units: float | None = None
    if groups is not None:
        units = groups.count
        if not fits[0].is_of_label_sets:
            units = groups.effective_size(np.mean([fit.right() for fit in fits], axis=0))
    return mean_of_seeds([fit.record.test for fit in fits], images, units)


def _gain(
    plan: Sequence[TestedFit], best: Sequence[TestedFit], groups: ImageGroups | None
) -> MetricEstimate:
    if not best[0].is_of_label_sets:
        before, after = (np.stack([fit.right() for fit in fits]) for fits in (plan, best))
        return gain_of_shares(before, after, groups=groups)
    classes = best[0].evaluated.report.classes
    tables = [[fit.predictions() for fit in fits] for fits in (plan, best)]
    labels_NK = label_sets.matrix(tables[0][0]["label"].tolist(), classes)
    before_RNK, after_RNK = (
        np.stack([np.stack(table["probabilities"].to_list()) for table in each]) for each in tables
    )
    return gain_of_map(labels_NK, before_RNK, after_RNK, groups=groups)


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
    """The name of the experiment and of the registered model."""
    study: str
    metric: str
    """The metric that trials are compared by: accuracy, or mAP of sets of labels."""
    data_fingerprint: str
    images: dict[str, int]
    """The number of images, by split."""
    space: dict[str, str]
    """The dimension of each setting, as it is typed."""
    outside: tuple[str, ...] = ()
    """Settings whose range does not contain the plan's value, which is then no trial."""
    rungs: tuple[int, ...]
    sampler: str
    reduction: int
    seed: int
    trials: tuple[TrialRecord, ...]
    search_seconds: float
    final_seconds: float = 0.0
    """Seconds that the final fits and their tests took."""
    best: TrialRecord
    is_plan: bool
    """Whether the best settings are the plan's own."""
    finals: tuple[FinalFit, ...]
    gain: MetricEstimate
    """The gain in the test metric over the plan; all 0 if the best settings are the plan's."""
    best_test: MetricEstimate
    plan_test: MetricEstimate
    test_groups: int | None = None
    """Number of groups that the test images form; None if these are independent."""
    optimism: MetricEstimate
    """The difference by which the best validation metric exceeds what the same settings reach with
    other seeds, on the same validation images."""
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
        return render_markdown(template, __package__, result=self, points=_points, **values)


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
    """The version of the registered model; empty if nothing was registered."""
    aliases: tuple[str, ...] = ()
    registered_run_id: str = ""
    """The nested run that the version was registered from."""
    plan: dict[str, Value] = Field(default_factory=dict)
    """The plan's values of the searched settings."""
    gain: MetricEstimate | None = None
    """The gain in the test metric over the plan, over seeds and images."""
    verdict: str = ""
    optimism: MetricEstimate | None = None
    """The difference by which the best validation metric exceeds what the same settings reach
    again."""
    optimism_sentence: str = ""
    mean_test: dict[str, MetricEstimate] = Field(default_factory=dict)
    """Mean test metric of the final fits: of the best settings, and of the plan."""
    final_fits: tuple[FinalFit, ...] = ()
    trial_table: tuple[TrialRecord, ...] = ()
    epochs: float = 0.0
    """Epochs that all trials together have trained."""
    rungs: tuple[int, ...] = ()
    space: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0.0
    """Seconds that the search took, without the final fits."""
    final_seconds: float = 0.0
    """Seconds that the final fits and their tests took, as far as the last command computed
    them."""
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
        result: the result of the search.
        registered: the summary of the run whose model was registered; None if the search gained
            nothing.
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
