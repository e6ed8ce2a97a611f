"""Write the pages of a finished run in the MLflow UI."""

from __future__ import annotations

import logging
import time

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.packaging.model_card import escaped
from patchline.pipeline.registry.browsing import image_grids, saved_views
from patchline.pipeline.registry.browsing.outcome import (
    Outcome,
    lineage,
    links,
    metrics_table,
    verdict,
)
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracking_store import client

logger = logging.getLogger(__name__)

NOTE_TAG = "mlflow.note.content"
PROMOTED_TAG = "patchline.promoted"
_LISTED_CLASSES = 30


def write_pages(outcome: Outcome) -> bool:
    """Name and describe the run, its version, its model and its experiment; log the image grids.

    The model is already registered, so a failure of the store only costs these pages.

    Returns:
        Whether everything was written.
    """
    try:
        _write_run(outcome)
        _write_version(outcome)
        saved_views.write_views(
            outcome.run.experiment_id,
            _experiment_text(outcome),
            outcome.evaluated.report.headline.name,
        )
        image_grids.log_grids(outcome)
    except Exception as error:  # noqa: BLE001 - the store can fail in many ways
        logger.warning("The run's pages in MLflow could not be written: %s", error)
        return False
    return True


def _write_run(outcome: Outcome) -> None:
    from mlflow.entities import Metric, RunTag

    store, run_id = client(), outcome.run.run_id
    moment, step = int(time.time() * 1000), outcome.trained.steps
    numbers = {
        "train/seconds": outcome.trained.seconds,
        "train/parameters": float(outcome.trained.parameters),
    }
    promoted = outcome.promotion is not None and outcome.promotion.promoted
    parts = (verdict(outcome), links(outcome), metrics_table(outcome), lineage(outcome))
    store.log_batch(
        run_id,
        metrics=[Metric(key, value, moment, step) for key, value in numbers.items()],
        tags=[
            RunTag(NOTE_TAG, "\n\n".join(parts)),
            RunTag(f"test {outcome.evaluated.report.headline.name}", _main_metric_text(outcome)),
            RunTag(PROMOTED_TAG, str(promoted).lower()),
        ],
    )
    store.update_run(run_id, name=outcome.run_name)


def _main_metric_text(outcome: Outcome) -> str:
    main = outcome.evaluated.report.headline.estimate
    if main is None:
        return "unknown"
    return f"{main.value:.1%} ({100 * main.low:.1f} to {100 * main.high:.1f})"


def _write_version(outcome: Outcome) -> None:
    store, registered = client(), outcome.registered
    if not store.get_registered_model(registered.name).description:
        store.update_registered_model(registered.name, _model_text(outcome))
    run = f"[Run in MLflow]({addresses.run_path(outcome.run)})"
    report = f"[Report]({addresses.report_path(outcome.run)})"
    parts = (verdict(outcome), f"{run} · {report}", metrics_table(outcome), lineage(outcome))
    store.update_model_version(registered.name, registered.version, "\n\n".join(parts))


def _model_text(outcome: Outcome) -> str:
    classes, name = outcome.data.classes, outcome.registered.name
    listed = ", ".join(escaped(label) for label in classes[:_LISTED_CLASSES])
    rest = len(classes) - _LISTED_CLASSES
    more = f" and {rest:,} more" if rest > 0 else ""
    return (
        f"{_task_text(outcome)}: {listed}{more}.\n\n"
        "The alias **champion** is the version to use; **challenger** is the newest version, which "
        "may replace it. Each version below shows its origin and its test metrics.\n\n"
        f"```sh\npatchline predict {name}@champion IMAGE\npatchline models {name}\n"
        f"patchline promote {name}\n```\n\n"
        f"[All training runs, best first]({saved_views.path(outcome.run.experiment_id)})"
    )


def _task_text(outcome: Outcome) -> str:
    number = len(outcome.data.classes)
    if outcome.config.data.task == MULTI_LABEL:
        return f"Finds which of {number:,} labels an image has, if any"
    return f"Labels an image with one of {number:,} classes"


def _experiment_text(outcome: Outcome) -> str:
    experiment, name = outcome.run.experiment_id, outcome.registered.name
    questions = "\n".join(
        f"- [{view.question}]({saved_views.path(experiment, view)})" for view in saved_views.VIEWS
    )
    return (
        f"All Patchline training runs for **{escaped(name)}**. The menu *Views* "
        f"answers common questions:\n\n{questions}\n\n"
        f"The [registered model]({addresses.model_path(name)}) holds the versions."
    )
