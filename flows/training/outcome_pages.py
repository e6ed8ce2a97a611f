"""The end of a training run: its pages in MLflow, its artifacts in Prefect, and its summary.

The model is registered by then, so a server error costs descriptions, never the run.
"""

from __future__ import annotations

import logging

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from patchline.flows.training import run_messages
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.metrics.multi_label.names import ALL_METRICS
from patchline.pipeline.registry import registered_models
from patchline.pipeline.registry.browsing import pages
from patchline.pipeline.registry.browsing.encoder_pages import (
    encoder_verdict,
    write_encoder_pages,
)
from patchline.pipeline.registry.browsing.outcome import (
    EncoderOutcome,
    Outcome,
    lineage,
    links,
    metrics_table,
    verdict,
)
from patchline.pipeline.registry.browsing.run_summary import RunSummary, summary_of
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.context import Context
from patchline.pipeline.stages.promote import Promoted
from patchline.pipeline.training.parts.launching import CONFIG_FILE
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workspace.tracking import addresses, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

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
        run_messages.update_flow_run(outcome.run_name, outcome.run)
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
    page, config = run_messages.flow_page(), context.config
    if evaluated is None:
        tested = context.get(PretrainingEvaluated)
        return EncoderOutcome(run, config, data, trained, tested, registered, aliases, page)
    decision = context.get(Promoted).promotion
    return Outcome(run, config, data, trained, evaluated, registered, aliases, decision, page)


def _write_artifacts(outcome: Outcome | EncoderOutcome) -> None:
    if isinstance(outcome, EncoderOutcome):
        text = "\n\n".join((f"## {outcome.run_name}", encoder_verdict(outcome), lineage(outcome)))
        create_markdown_artifact(
            key="summary", markdown=f"{text}\n", description="The encoder of this run"
        )
        return
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
