"""The settings that a search begins with: the plan's, with a length in epochs and a single fit.

Trials are compared after equal numbers of epochs, so that a busy machine changes no result. A time
limit, of a plan too, becomes the epochs that are expected in it.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.errors import ConfigError, DataError
from patchline.pipeline.evaluation.metrics.mean_average_precision import ranked_labels
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.plugin_system.plugin_loader import load_objective
from patchline.pipeline.terminal_words import by_number
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.record import TrainingRecord
from patchline.plugins.tools.sweep.ranges import shown


class WholeFit(NamedTuple):
    """The settings of a whole fit, and what was changed for them."""

    config: RunConfig
    notes: tuple[str, ...]
    seconds_per_epoch: float | None
    """As the plan measured or estimated it; None without a plan."""


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
        "training.refit": training.refit,
        "training.ensemble": training.ensemble,
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
        config: planned and resolved.
        plan: says how fast it trains; None without a preset.
        data: of the search.

    Raises:
        ConfigError: if the plan fits a head alone.
    """
    _check_trainable(config)
    training, notes = config.training, []
    several = {"folds": training.folds, "refit": training.refit, "ensemble": training.ensemble}
    planned = {f"training.{name}": value for name, value in several.items() if value}
    if planned:
        flags = " ".join(f"--{key} {shown(value)}" for key, value in planned.items())
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
    update = {
        **dict.fromkeys(("folds", "time_limit", "max_epochs")),
        "refit": False,
        "ensemble": False,
        "epochs": epochs,
    }
    if training.average_last is not None:
        update["average_last"] = min(training.average_last, max(2, epochs))
    settings = training.model_copy(update=update)
    rate = plan.images_per_second if plan else 0.0
    seconds = data.training_images / rate if rate else None
    record = config.record.of(TrainingRecord())
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
    if not ranked_labels(label_sets.matrix(list(tested["label"]), data.classes)).any():
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
        return training.epochs
    rate = plan.images_per_second if plan else 0.0
    expected = int(duration_seconds(training.time_limit) * rate / images)
    most = training.max_epochs or max(1, expected)
    return max(1, min(expected or most, most))


def _check_trainable(config: RunConfig) -> None:
    if config.training.trainable == "head":
        raise ConfigError(
            "training.trainable is head, but fitting a head on frozen features chooses its "
            "regularization by itself, so there is nothing to search. Set training.trainable to "
            "all or last_blocks, or use `patchline run`."
        )
