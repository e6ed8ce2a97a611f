"""The final fits of a search: the best settings and the plan's, with seeds that no trial has used.

Only the validation split chooses: the best trial among the trials, and among the final fits of its
settings the one that is registered. The test split is read once, when all fits are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.grouped_images import image_groups
from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.written_report import PREDICTIONS_FILE
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.tracking.nested_runs import FINAL, NestedRun
from patchline.plugins.tools.sweep.gain import (
    gain_of_map,
    gain_of_shares,
    mean_of_seeds,
    optimism_of,
)
from patchline.plugins.tools.sweep.result import FinalFit, FinalKind
from patchline.plugins.tools.sweep.search import score_of

FINALS_FOLDER = "finals"
FINAL_TAG = "patchline.sweep.final"
_COMMAND = "patchline sweep (final fit)"
_SPARSE = {"explanations": False, "gallery_size": 0, "corruptions": 0, "slices": ()}
"""Contents of the report on a fit that is not registered."""
_NAMES: dict[FinalKind, str] = {"best": "best settings", "plan": "the plan"}
Array = np.ndarray[Any, Any]


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


def planned_fits(
    best: RunConfig, plan: RunConfig, seeds: int, *, is_plan: bool
) -> Iterator[PlannedFit]:
    """Yield the final fits, in pairs of equal seeds.

    Args:
        best: the best settings, resolved.
        plan: those of the plan.
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


def compared(
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
