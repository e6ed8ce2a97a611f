"""What a training run shows: its name in Prefect, its events, its pages at the end, its summary.

The model is registered by then, so a server error costs descriptions, never the run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.context import TagsContext
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from patchline.flows import prefect_session
from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display
from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.errors import TakenOverError
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.registry import registered_models
from patchline.pipeline.registry.browsing import pages
from patchline.pipeline.registry.browsing.outcome import (
    EncoderOutcome,
    Outcome,
    links,
    outcome_text,
    recipe,
)
from patchline.pipeline.registry.browsing.pages import write_encoder_pages
from patchline.pipeline.registry.browsing.run_summary import RunSummary, summary_of
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.lines import Pipeline
from patchline.pipeline.stages.promote import Promoted
from patchline.pipeline.stages.read import data_name
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.training.parts import launching
from patchline.pipeline.training.parts.launching import CONFIG_FILE
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import InterruptedRun
from patchline.pipeline.workspace.tracking import addresses, tracked_run, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

FLOW_DESCRIPTION = """\
From a folder of labelled images to a registered model: read and check the data, decode the images,
train, evaluate on images that were not used for training, package, register, and decide whether the
new version becomes champion. One MLflow run records everything; the artifact *summary* links to it.
"""


def flow_config() -> RunConfig:
    """Return the parameter `config` of the current flow run."""
    config = flow_run.parameters.get("config")
    return config if isinstance(config, RunConfig) else RunConfig.model_validate(config or {})


def flow_name() -> str:
    """Return the name of a new flow run: its data and its model."""
    config = flow_config()
    what = f"{config.preset.name} preset" if config.preset else recipe(config)
    return f"{config.name or data_name(config)} {what}"


@contextmanager
def flow_process(what: str) -> Iterator[None]:
    """Let a flow run train in the block, whose process other commands find as long as it lives.

    Its tasks do not get the tag that names its owner: see `stage_tasks.training_tags`.
    """
    quiet_libraries.apply()  # a worker starts the flow without the command line
    redaction.install()
    alive = live_runs.alive(WORKSPACE.resolve(), str(flow_run.id), what)
    of_tasks = {
        tag for tag in TagsContext.get().current_tags if not tag.startswith(live_runs.OWNER)
    }
    with alive, worker_start.allow_prepared_workers(), TagsContext(current_tags=of_tasks):
        yield


def reopen(
    interrupted: InterruptedRun, line: Pipeline, context: Context, **tags: str
) -> AbstractContextManager[TrackedRun]:
    """Return the MLflow run of an interrupted run, which this flow run continues."""
    tags |= engine.early_tags(line.before_run, context)
    tags[tracked_run.FLOW_RUNS_TAG] = f"{interrupted.flow_runs},{flow_run.id}"
    params = context.config.flat()
    return tracked_run.continue_run(interrupted.run_id, interrupted.folder, params, tags)


@contextmanager
def enter_run(
    opened: AbstractContextManager[TrackedRun],
    line: Pipeline,
    context: Context,
    what: str,
    event: str,
) -> Iterator[TrackedRun]:
    """Open an MLflow run with what is known before it, name the flow run, and emit its start.

    Args:
        opened: the MLflow run.
        line: the stages of the run.
        context: what the earlier ones have left.
        what: what is done with the data, such as `sweep`; it ends the name of the flow run.
        event: the name of the event to emit.
    """
    name = str(context.config.name)
    with opened as run:
        engine.enter(run, line.before_run, context)
        launching.log_config(context.config, run)
        update_flow_run(f"{name} {what}", run)
        data = context.get(IngestedData).fingerprint
        emit(event, f"run.{run.run_id}", name=name, run_id=run.run_id, data=data)
        yield run


def update_flow_run(name: str, run: tracked_run.TrackedRun) -> None:
    """Name the current flow run, and tag it with its MLflow run."""
    owner = [tag for tag in flow_run.tags if tag.startswith(live_runs.OWNER)]
    tags = ["patchline", f"mlflow:{run.run_id}", *owner]
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=name, tags=tags)


def flow_page() -> str:
    """Return the address of this flow run in the Prefect UI; empty on a temporary server."""
    if prefect_session.is_temporary() or not flow_run.id:
        return ""
    return url_for("flow-run", flow_run.id) or ""


logger = logging.getLogger(__name__)


def publish_outcome(context: Context, approval: str) -> RunSummary:
    """Write about a finished run in MLflow and Prefect, and return its summary.

    Args:
        context: what its stages have left.
        approval: the approval that was requested; empty without one.
    """
    outcome = outcome_of(context)
    reused, config_file = context.memory.reused, outcome.run.folder / CONFIG_FILE
    if isinstance(outcome, EncoderOutcome):
        write_encoder_pages(outcome)
    else:
        pages.write_pages(outcome)
    summary = summary_of(outcome, context.seconds, config_file, approval, reused)
    try:
        update_flow_run(outcome.run_name, outcome.run)
        _write_artifacts(outcome)
    except Exception as error:  # noqa: BLE001 - a server fails in many ways
        logger.warning("The summary could not be written to Prefect: %s", error)
    return summary


def accuracy(context: Context) -> float | None:
    """Return the accuracy on the test images; None for an encoder, or for sets of labels."""
    evaluated = context.find(Evaluated)
    found = evaluated.report.metrics.get("test/accuracy") if evaluated else None
    return found.value if found else None


def outcome_of(context: Context) -> Outcome | EncoderOutcome:
    """Return what a finished run has left."""
    run, data = context.get(TrackedRun), context.get(IngestedData)
    trained, registered = context.get(TrainResult), context.get(Registered)
    evaluated = context.find(Evaluated)
    aliases = registered_models.aliases(registered.name, registered.version)
    page, config = flow_page(), context.config
    if evaluated is None:
        tested = context.get(PretrainingEvaluated)
        return EncoderOutcome(run, config, data, trained, registered, aliases, page, tested)
    decision = context.get(Promoted).promotion
    return Outcome(run, config, data, trained, registered, aliases, page, evaluated, decision)


def _write_artifacts(outcome: Outcome | EncoderOutcome) -> None:
    if isinstance(outcome, EncoderOutcome):
        text = f"## {outcome.run_name}\n\n{outcome_text(outcome, '')}\n"
        create_markdown_artifact(
            key="summary", markdown=text, description="The encoder of this run"
        )
        return
    lasting = tracking_store.use_store().startswith("http")  # a file's server has no address yet
    where = (
        f"Run `{outcome.run.run_id}` in the experiment *{outcome.config.name}* of this folder's "
        "MLflow; `patchline up` prints a link to its UI, and `mlflow ui` starts it without `up`."
    )
    text = outcome_text(outcome, links(outcome, f"{addresses.server()}/") if lasting else where)
    create_markdown_artifact(
        key="summary",
        markdown=f"## {outcome.run_name}\n\n{text}\n",
        description="The results of this run",
    )
    create_table_artifact(
        key="test-metrics",
        table=[
            {
                "metric": ALL_METRICS[key.removeprefix("test/")].title,
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


def announce(context: Context, result: FrozenModel) -> str:
    """Emit that a version was registered, or what was decided about it.

    Args:
        context: the context of the run that registers the version.
        result: the result of a stage; of most stages, nothing is emitted.

    Returns:
        The approval that was requested; empty without one.
    """
    if isinstance(result, Registered):
        run = context.get(TrackedRun)
        made = {"name": result.name, "version": result.version, "run_id": run.run_id}
        reached = accuracy(context)
        metrics = {} if reached is None else {"accuracy": reached}
        emit(events.MODEL_REGISTERED, f"model.{result.name}", **made, **metrics)
    elif isinstance(result, Promoted):
        return _announce_decision(context, result)
    return ""


def tell_failure(context: Context, error: BaseException, command: str) -> None:
    """Emit that a run failed or was killed, and say how it can be resumed.

    Args:
        context: the context of the run.
        error: the exception that ended the run.
        command: the command that resumes runs of its kind, such as `patchline run`.
    """
    if isinstance(error, TakenOverError):
        return  # the run continues in another process
    failed = isinstance(error, Exception)
    run = context.find(TrackedRun)
    run_id = run.run_id if run else ""
    emit(
        events.RUN_FAILED if failed else events.RUN_KILLED,
        f"run.{run_id or flow_run.id}",
        name=context.config.name or data_name(context.config),
        run_id=run_id,
        reason=str(error) if failed else "it was stopped by a signal",
    )
    if run_id:
        display().note(f"resume it with: {command} --resume {run_id[:8]}")
    elif not failed:
        display().note("it was stopped before training started, so there is nothing to resume")


def emit(event: str, resource: str, **payload: Any) -> None:
    """Send an event about a resource of Patchline."""
    events.emit(event, f"patchline.{resource}", payload)


def _announce_decision(context: Context, promoted: Promoted) -> str:
    """Emit the decision, and request an approval where the config asks for one."""
    if promoted.promotion:
        events.emit_decision(promoted.promotion)
    if not promoted.requests_approval:
        return ""
    from patchline.flows.approval import approval_flow  # imports what no other run needs

    reference = context.get(Registered).reference
    return approval_flow.request_approval(reference, context.config.promotion) or ""
