"""What a run says to the people who watch it: lines on the terminal, words in the Prefect UI."""

from __future__ import annotations

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.progress import display
from pipeline import tracking
from pipeline.config import RunConfig
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.evaluation.evaluating import Evaluated
from pipeline.registry.promoting import Promotion
from pipeline.registry.registering import Registered


def note_data(data: IngestedData) -> None:
    """Say how many images there are and what is odd about them."""
    total = sum(data.counts.values())
    parts = ", ".join(f"{count} {split}" for split, count in data.counts.items())
    display().note(f"{total} images in {len(data.classes)} classes: {parts}")
    for note in data.notes:
        display().note(note)


def note_reuse(prepared: PreparedData) -> None:
    """Say it if nothing had to be decoded."""
    if prepared.reused:
        display().note("nothing changed: the images decoded before are used again")


def training_words(config: RunConfig) -> str:
    """Return what is trained, and for how long."""
    length = config.training.time_limit or f"{config.training.epochs} epochs"
    if config.training.step_plan:
        length = f"{config.training.step_plan[-1][2]} steps, as recorded"
    return f"Training {' with '.join(config.model.names)} for {length}"


def tag_flow_run(run: tracking.TrackedRun, name: str) -> None:
    """Name the flow run after the data, and lead from Prefect to MLflow."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(
            flow_run.id, name=f"{name} {run.run_id[:8]}", tags=["patchline", f"mlflow:{run.run_id}"]
        )


def _promotion_words(promotion: Promotion | None) -> str:
    if promotion is None:
        return "Whether it becomes champion is for a person to decide."
    verdict = "Champion" if promotion.promoted else "Not promoted"
    return f"{verdict}: {promotion.reason}."


def publish(
    run: tracking.TrackedRun,
    evaluated: Evaluated,
    registered: Registered,
    aliases: tuple[str, ...],
    promotion: Promotion | None,
) -> None:
    """Write the summary, the figures and the way to MLflow into the Prefect UI."""
    report = evaluated.report
    accuracy = report.metrics["test/accuracy"]
    create_markdown_artifact(
        key="summary",
        markdown=(
            f"## {registered.name}, version {registered.version}\n\n"
            f"**{accuracy.value:.1%}** of {accuracy.n} test images recognised (95 % interval "
            f"{accuracy.low:.1%} to {accuracy.high:.1%}), {report.errors} errors.\n\n"
            f"Aliases: {', '.join(aliases)}. {_promotion_words(promotion)}\n\n"
            f"Data version `{report.data_fingerprint}`. MLflow run `{run.run_id}`.\n"
        ),
        description="The verdict on this run",
    )
    create_table_artifact(
        key="test-metrics",
        table=[
            {"metric": key, "value": m.value, "low": m.low, "high": m.high, "images": m.n}
            for key, m in report.metrics.items()
        ],
        description="Figures on the test images with 95 % intervals",
    )
    create_link_artifact(
        key="mlflow-run",
        link=tracking.run_page(run),
        link_text="This run in MLflow",
        description="For a local store, start `mlflow ui` in the working directory first.",
    )
