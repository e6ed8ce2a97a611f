"""What the Prefect UI shows of a training run: names, descriptions, artifacts, links."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.tasks import TaskRunNameCallbackWithParameters
from prefect.utilities.urls import url_for

from flows import prefect_session
from pipeline.browsing import pages
from pipeline.browsing.encoder_pages import encoder_verdict, write_encoder_pages
from pipeline.browsing.outcome import (
    EncoderOutcome,
    Outcome,
    lineage,
    links,
    metrics_table,
    recipe,
    verdict,
)
from pipeline.config import RunConfig
from pipeline.data.ingested_data import IngestedData
from pipeline.evaluation.cost import evaluation_seconds, predicted_images
from pipeline.metrics.names import METRICS
from pipeline.run_memory import live_runs
from pipeline.tracking import addresses, tracked_run, tracking_store
from pipeline.training.train_result import TrainResult

logger = logging.getLogger(__name__)

FLOW_DESCRIPTION = """\
From a folder of labelled images to a registered model: read and check the data, decode the images,
train, evaluate on images that were not used for training, package, register, and decide whether the
new version becomes champion. One MLflow run records everything; the artifact *summary* links to it.
"""
Parameters = dict[str, Any]


def training_recipe(config: RunConfig) -> str:
    """Return what is trained, and for how long."""
    if config.training.trainable == "head":
        head = f"the head of {' with '.join(config.model.names)} on frozen features"
        return f"{head}{_repeated(config)}"
    if config.objective.name != "supervised":
        return f"{_training_recipe(config)}, objective {config.objective.name}"
    return _training_recipe(config)


def _training_recipe(config: RunConfig) -> str:
    epochs = config.training.epochs
    length = config.training.time_limit or f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if config.training.step_plan:
        length = f"{config.training.step_plan[-1][2]} steps, as recorded"
    parts = f"{' with '.join(config.model.names)} for {length}"
    return f"{parts}{_repeated(config)}"


def _repeated(config: RunConfig) -> str:
    """Return what follows the first training; nothing for an ordinary run."""
    if config.training.folds is not None:
        final = "their ensemble" if config.training.ensemble else "a refit"
        return f", {config.training.folds} folds and {final}"
    return ", then a refit" if config.training.refit else ""


def planning_title(config: RunConfig) -> str:
    """Return what is planned: the preset, and the time limit if there is one."""
    limit = f" for {config.training.time_limit}" if config.training.time_limit else ""
    return (
        f"Planning the training (preset {config.preset.name if config.preset else 'none'}{limit})"
    )


def evaluation_title(config: RunConfig, data: IngestedData, trained: TrainResult) -> str:
    """Return what is evaluated, and about how long it takes."""
    images = predicted_images(data, trained)
    held_out = "" if trained.ensemble is not None else " with validation"
    if trained.probe is not None:
        return f"Evaluating on the test images ({images:,} images{held_out})"
    seconds = evaluation_seconds(config, data, trained)
    cost = f"{images:,} images{held_out}, about {max(1, round(seconds)):,} s"
    return f"Evaluating on the test images ({cost})"


# -- names in the Prefect UI -------------------------------------------------------------------


def _named(words: Callable[[Parameters], str]) -> TaskRunNameCallbackWithParameters:
    """Mark a function that names a task run after the task's arguments."""
    return cast("TaskRunNameCallbackWithParameters", words)


def flow_name() -> str:
    """Return the name of a new flow run: its data and its model."""
    config = flow_run.parameters.get("config")
    checked = config if isinstance(config, RunConfig) else RunConfig.model_validate(config or {})
    what = f"{checked.preset.name} preset" if checked.preset else recipe(checked)
    return f"{checked.name or data_name(checked)} {what}"


@_named
def read_name(parameters: Parameters) -> str:
    """Return the name of the task that reads the data."""
    return f"Read {data_name(parameters['config'])}"


@_named
def find_weights_name(parameters: Parameters) -> str:
    """Return the name of the task that finds the initial weights."""
    return f"Find the initial weights {parameters['config'].model.init}"


@_named
def plan_name(parameters: Parameters) -> str:
    """Return the name of the task that plans."""
    return planning_title(parameters["config"])


@_named
def decode_name(parameters: Parameters) -> str:
    """Return the name of the task that decodes the images."""
    return f"Decode {sum(parameters['data'].counts.values()):,} images"


@_named
def train_name(parameters: Parameters) -> str:
    """Return the name of the task that trains."""
    return f"Train {training_recipe(parameters['config'])}"


@_named
def evaluate_name(parameters: Parameters) -> str:
    """Return the name of the task that evaluates."""
    return f"Evaluate on {parameters['data'].counts['test']:,} test images"


@_named
def package_name(parameters: Parameters) -> str:
    """Return the name of the task that packages."""
    accuracy = parameters["evaluated"].report.accuracy.value
    return f"Package the model ({accuracy:.1%}) and check the package"


@_named
def register_name(parameters: Parameters) -> str:
    """Return the name of the task that registers."""
    return f"Register in {parameters['name']}"


@_named
def assign_aliases_name(parameters: Parameters) -> str:
    """Return the name of the task that assigns the aliases."""
    registered = parameters["registered"]
    return f"Assign aliases of {registered.name}, version {registered.version}"


def data_name(config: RunConfig) -> str:
    """Return the name of data that has not been read yet: its folder, or its source."""
    return Path(config.data.path).name if config.data.path else config.data.source


def tag_flow_run(run: tracked_run.TrackedRun, config: RunConfig) -> None:
    """Name the flow run after its data and model, and tag it with its MLflow run."""
    _update_flow_run(f"{config.name} {recipe(config)}", run)


def _update_flow_run(name: str, run: tracked_run.TrackedRun) -> None:
    owner = [tag for tag in flow_run.tags if tag.startswith(live_runs.OWNER)]
    tags = ["patchline", f"mlflow:{run.run_id}", *owner]
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=tags)


def flow_page() -> str:
    """Return the address of this flow run in the Prefect UI; empty on a temporary server."""
    if prefect_session.is_temporary() or not flow_run.id:
        return ""
    return url_for("flow-run", flow_run.id) or ""


# -- a finished run ----------------------------------------------------------------


def publish(outcome: Outcome) -> None:
    """Write about a finished run: descriptions and images in MLflow, the summary in Prefect.

    The model is registered already, so a server error costs descriptions, never the run.
    """
    pages.write_pages(outcome)
    try:
        _update_flow_run(outcome.run_name, outcome.run)
        _write_artifacts(outcome)
    except Exception as error:  # noqa: BLE001 - a server fails in many ways
        logger.warning("The summary could not be written to Prefect: %s", error)


def publish_encoder(outcome: EncoderOutcome) -> None:
    """Write about a finished run without labels."""
    write_encoder_pages(outcome)
    try:
        _update_flow_run(outcome.run_name, outcome.run)
        parts = (f"## {outcome.run_name}", encoder_verdict(outcome), lineage(outcome))
        create_markdown_artifact(
            key="summary", markdown="\n\n".join(parts) + "\n", description="The encoder of this run"
        )
    except Exception as error:  # noqa: BLE001 - a server fails in many ways
        logger.warning("The summary could not be written to Prefect: %s", error)


def _write_artifacts(outcome: Outcome) -> None:
    lasting = tracking_store.use_store().startswith("http")  # a file's server has no address yet
    where = (
        f"Run `{outcome.run.run_id}` in the experiment *{outcome.config.name}* of this folder's "
        "MLflow; `patchline up` prints a link to its UI, and `mlflow ui` starts it without `up`."
    )
    parts = (
        f"## {outcome.run_name}",
        verdict(outcome),
        links(outcome, f"{addresses.server()}/") if lasting else where,
        metrics_table(outcome),
        lineage(outcome),
    )
    create_markdown_artifact(
        key="summary", markdown="\n\n".join(parts) + "\n", description="The results of this run"
    )
    create_table_artifact(
        key="test-metrics",
        table=[
            {
                "metric": METRICS[key.removeprefix("test/")].title,
                "value": round(estimate.value, 4),
                "low": round(estimate.low, 4),
                "high": round(estimate.high, 4),
                "images": estimate.n,
                "key": key,
            }
            for key, estimate in outcome.evaluated.report.metrics.items()
        ],
        description="Metrics on the test images with 95% confidence intervals",
    )
    if lasting:
        page = addresses.run_page(outcome.run)
        create_link_artifact(key="mlflow-run", link=page, link_text="This run in MLflow")
    else:
        create_markdown_artifact(key="mlflow-run", markdown=where)
