"""What a search begins with, and what it is going to do.

Trials are compared after equal numbers of epochs, so that a busy machine changes no result. A time
limit, of a plan too, becomes the epochs that are expected in it.

The time is that of training alone, from the speed that the plan measured: starting a process and
validating come on top, so short fits take longer than that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from patchline.flows.commands.switches import terminal_lines
from patchline.flows.training.dry_run import dry_run
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.metrics.mean_average_precision import find_ranked_labels
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.plugin_system.plugin_loader import load_objective
from patchline.pipeline.terminal_words import by_number
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.record import TrainingRecord
from patchline.plugins.tools.sweep.config import SweepConfig, compute_expected_epochs, rungs
from patchline.plugins.tools.sweep.space import (
    Dimension,
    SearchSpace,
    Value,
    check_given,
    shown,
    value_at,
)


class WholeFit(NamedTuple):
    """The settings of a whole fit, and what was changed for them."""

    config: RunConfig
    notes: tuple[str, ...]
    seconds_per_epoch: float | None
    """Seconds that an epoch takes, as the plan measured or estimated it; None without a plan."""


def check_settings(config: RunConfig) -> None:
    """Refuse settings that cannot be searched around, before any data is read.

    Raises:
        ConfigError: for the first one.
    """
    training, objective = config.training, config.objective.name
    if not load_objective(objective).uses_labels:
        raise ConfigError(
            f"objective.name is {objective}, which uses no labels, but a search compares trials by "
            "their validation metric. Set objective.name to supervised, or use `patchline run`."
        )
    refused = {
        "training.folds": training.folds,
        "training.final_model": training.final_model != "best" and training.final_model,
        "record.extends": config.record.extends,
    }
    for name, value in refused.items():
        if value:
            raise ConfigError(
                f"{name} is {value}, but each trial of a search is one fit that the validation "
                f"split judges. Leave out {name}."
            )
    if training.time_limit is not None and config.preset is None:
        raise ConfigError(
            f"training.time_limit is {training.time_limit}, but trials are compared after equal "
            "numbers of epochs. Set training.epochs instead; --sweep.time-limit limits the search."
        )
    _check_trainable(config)


def whole_fit(config: RunConfig, plan: Plan | None, data: IngestedData) -> WholeFit:
    """Return the settings that a search begins with.

    Args:
        config: the run's settings, planned and resolved.
        plan: the plan, which says how fast it trains; None without a preset.
        data: the data that the search uses.

    Raises:
        ConfigError: if the plan fits a head alone.
    """
    _check_trainable(config)
    training, notes = config.training, []
    several = {"folds": training.folds, "final_model": training.final_model}
    planned = {f"training.{name}": value for name, value in several.items() if value}
    if training.is_repeated:
        flags = " ".join(f"--{key} {shown(value)}" for key, value in planned.items())
        flags = flags.replace("_", "-")
        notes.append(
            f"the plan's {' and '.join(planned)} {by_number(len(planned), 'is', 'are')} left out: "
            "each trial and each final fit is judged by the validation images, so none is trained "
            f"on them; add {flags} to the `patchline run` that is printed at the end to do so with "
            "the settings that were found"
        )
    epochs = _epochs(config, plan, data)
    knots = config.record.step_plan
    if limit := training.time_limit or (f"{knots[-1][2]} steps" if knots else None):
        notes.append(
            f"a whole fit has {epochs} epochs, as many as are expected in the plan's {limit}"
        )
    update = {**dict.fromkeys(("folds", "final_model", "time_limit")), "epochs": epochs}
    settings = training.model_copy(update=update)
    rate = plan.images_per_second if plan else 0.0
    seconds = data.training_images / rate if rate else None
    record = config.record.of(TrainingRecord())
    if (count := record.average_last) is not None:
        record = record.model_copy(update={"average_last": min(count, max(2, epochs))})
    whole = config.model_copy(update={"training": settings, "record": record})
    return WholeFit(whole, tuple(notes), seconds)


def check_test_labels(data: IngestedData) -> None:
    """Refuse test images that cannot tell what a search gains, before anything is trained.

    Raises:
        DataError: if images have sets of labels, and those of all test images are the same.
    """
    if data.task != MULTI_LABEL:
        return
    rows = pd.read_parquet(data.manifest_file, columns=["split", "status", "label"])
    tested = rows[(rows["split"] == "test") & (rows["status"] == "ok")]
    if not find_ranked_labels(label_sets.matrix(list(tested["label"]), data.classes)).any():
        raise DataError(
            f"All {len(tested):,} test images have the same labels, so their mAP is unknown, by "
            "which a search compares its best settings with the plan's. Add images with other "
            "labels to the test split."
        )


def has_rungs(config: RunConfig) -> bool:
    """Return whether a fit can stop at an epoch: one of all weights, from its first step on."""
    return config.training.trainable in (None, "all")


def _epochs(config: RunConfig, plan: Plan | None, data: IngestedData) -> int:
    training, images = config.training, max(1, data.training_images)
    if knots := config.record.step_plan:
        steps_per_epoch = max(1, -(-images // training.batch_size))
        return max(1, round(knots[-1][2] / steps_per_epoch))
    if training.time_limit is None:
        return training.epochs_without_limit
    rate = plan.images_per_second if plan else 0.0
    expected = int(duration_seconds(training.time_limit) * rate / images)
    most = training.epochs or max(1, expected)
    return max(1, min(expected or most, most))


def _check_trainable(config: RunConfig) -> None:
    if config.training.trainable == "head":
        raise ConfigError(
            "training.trainable is head, but fitting a head on frozen features chooses its "
            "regularization by itself, so there is nothing to search. Set training.trainable to "
            "all or last_blocks, or use `patchline run`."
        )


class SearchOutline(FrozenModel):
    """A search that has not begun."""

    space: dict[str, Dimension]
    """The values to search, for each setting."""
    plan: dict[str, Value]
    """The plan's values of these settings."""
    outside: tuple[str, ...] = ()
    """Settings whose range does not contain the plan's value, so the plan is no trial."""
    trials: int | None
    """None if only time ends the search."""
    time_limit: str | None
    rungs: tuple[int, ...]
    """Epochs at which trials are compared; the last is the end of a whole fit."""
    reduction: int
    seeds: int
    epochs: float | None = None
    """Expected epochs of all trials together; None without a number of trials."""
    seconds_per_epoch: float | None = None
    """None if nothing is known about the speed."""
    notes: tuple[str, ...] = ()
    """What differs from the plan."""

    @classmethod
    def of(
        cls,
        settings: SweepConfig,
        space: SearchSpace,
        plan: RunConfig,
        seconds_per_epoch: float | None,
        notes: tuple[str, ...] = (),
    ) -> SearchOutline:
        """Return the outline of a search.

        Args:
            settings: the settings of the search.
            space: the search space, with a dimension for each setting.
            plan: the plan's settings, resolved, with the length of a whole fit in epochs.
            seconds_per_epoch: seconds that an epoch of one fit takes; None if that is not known.
            notes: what differs from the plan.
        """
        steps = rungs(plan.training.epochs_without_limit, settings.reduction)
        if not has_rungs(plan):
            steps = steps[-1:]
        trials = settings.most_trials
        return cls(
            space=space.dimensions,
            plan={key: value_at(plan, key) for key in space.dimensions},
            outside=tuple(space.outside(plan)),
            trials=trials,
            time_limit=settings.time_limit,
            rungs=steps,
            reduction=settings.reduction,
            seeds=settings.seeds,
            epochs=compute_expected_epochs(steps, settings.reduction, trials) if trials else None,
            seconds_per_epoch=seconds_per_epoch,
            notes=notes,
        )

    def lines(self) -> list[str]:
        """Return the space as a table, then how, and about how long is searched."""
        return terminal_lines("outline.txt.j2", __package__, outline=self, shown=shown)


def search_dry_run(
    config: RunConfig, sweep: SweepConfig, space: dict[str, Any], workspace: Path
) -> tuple[Plan | None, SearchOutline]:
    """Return the plan, and the outline of the search that would begin with it.

    Args:
        config: what all trials have in common, not resolved.
        sweep: length and method of the search.
        space: nested settings with their ranges; empty for the default space.
        workspace: the folder `.patchline`.

    Raises:
        PipelineError: if the data, the weights, the settings or the space cannot be used.
    """
    check_settings(config)
    check_given(space)
    tried = dry_run(config, workspace)
    start = whole_fit(tried.config, tried.plan, tried.data)
    searched = SearchSpace.of(space, start.config)
    outline = SearchOutline.of(sweep, searched, start.config, start.seconds_per_epoch, start.notes)
    return tried.plan, outline
