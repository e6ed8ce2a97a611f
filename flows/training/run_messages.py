"""What the Prefect UI shows of a training run: the flow's name, description, tags and page."""

from __future__ import annotations

from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from patchline.flows import prefect_session
from patchline.pipeline.config import RunConfig
from patchline.pipeline.registry.browsing.outcome import recipe
from patchline.pipeline.stages.read import data_name
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking import tracked_run

FLOW_DESCRIPTION = """\
From a folder of labelled images to a registered model: read and check the data, decode the images,
train, evaluate on images that were not used for training, package, register, and decide whether the
new version becomes champion. One MLflow run records everything; the artifact *summary* links to it.
"""


def flow_name() -> str:
    """Return the name of a new flow run: its data and its model."""
    config = flow_run.parameters.get("config")
    checked = config if isinstance(config, RunConfig) else RunConfig.model_validate(config or {})
    what = f"{checked.preset.name} preset" if checked.preset else recipe(checked)
    return f"{checked.name or data_name(checked)} {what}"


def tag_flow_run(run: tracked_run.TrackedRun, config: RunConfig) -> None:
    """Name the flow run after its data and model, and tag it with its MLflow run."""
    update_flow_run(f"{config.name} {recipe(config)}", run)


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
