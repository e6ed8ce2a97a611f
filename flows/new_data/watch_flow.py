"""The flow behind `patchline data watch`: train when enough images are new."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import deployment, flow_run
from prefect.states import Completed

from patchline.flows.new_data import watched_folders
from patchline.flows.notifications import events
from patchline.flows.prefect_api.failures import build_failed_state
from patchline.flows.prefect_api.prefect_client import flow_runs, open_client
from patchline.flows.progress.progress_display import display
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.labels.label_sets import by_task
from patchline.pipeline.data.manifests import earlier_manifests
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.data_diff import NewImages, count_new_images
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.plugin_system import plugin_settings
from patchline.pipeline.stages.read import data_name
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workers.host.system_errors import system_error
from patchline.pipeline.workspace.files.file_locks import Liveness
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import interrupted_runs, live_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import InterruptedRun

SKIPPED = "Skipped"
"""The state name of a run that found too few new images to train on."""


@flow(name="Train if data is new", flow_run_name="New data in {config.data.path}")
def retrain_when_new(config: RunConfig, min_new_images: int | None = None) -> State[Any]:
    """Compare the folder with the last training's data, and train if enough images are new.

    Args:
        config: the settings of the run.
        min_new_images: how many images must be new; by default one.
    """
    workspace, own = WORKSPACE.resolve(), str(flow_run.id)
    with live_runs.alive(workspace, own, "watch"):
        if deployment.id:
            watched_folders.cancel_waiting(UUID(str(deployment.id)), UUID(own))
        try:
            config, data, new_images = _compare(config, workspace)
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            name = config.name or data_name(config)
            facts = {"name": name, "reason": str(system_error(error) or error)}
            events.emit(events.RUN_FAILED, f"patchline.run.{flow_run.id}", facts)
            return build_failed_state(error)
        try:
            least = min_new_images or _least_of_earlier_version()
            return _train_if_enough(config, data, new_images, workspace, least)
        except Exception as error:  # noqa: BLE001 - raised again if it is not explained
            return build_failed_state(error)


def _compare(config: RunConfig, workspace: Path) -> tuple[RunConfig, IngestedData, NewImages]:
    config = plugin_settings.check_plugins(config)
    data = read_data(config, workspace)
    return config, data, compare_with_last_run(config.name or data.name, data)


def _least_of_earlier_version() -> int:
    """Return how many images must be new by the config that a watch was stored with."""
    return watched_folders.former_min_new_images(deployment.parameters.get("config"))


def _train_if_enough(
    config: RunConfig, data: IngestedData, images: NewImages, workspace: Path, least: int
) -> State[Any]:
    name = config.name or data.name
    if not images.first and images.new < least:
        return _skip(name, images, least)
    _publish(name, images, "" if images.first else "That is enough to train again.")
    from patchline.flows.training.training_flow import training_flow  # slow, and often not needed

    begun = _find_interrupted_training(data, workspace)
    summary = training_flow(config, resume=begun.run_id if begun else None)
    return Completed(
        message=f"{images.words()}: {summary.name}, registered version {summary.version}."
    )


def _find_interrupted_training(data: IngestedData, workspace: Path) -> InterruptedRun | None:
    """Return this flow run's killed training if it can resume with the same data."""
    with open_client() as client:
        training_runs = flow_runs(client, {"parent_flow_run_id": {"any_": [flow_run.id]}})
    for training_run in training_runs:
        with contextlib.suppress(ConfigError):  # its folder was deleted
            begun = interrupted_runs.of_flow_run(str(training_run.id), workspace / "runs")
            if begun is None or begun.finished or begun.owner is not Liveness.DEAD:
                continue
            if begun.request.data_fingerprint == data.fingerprint:
                return begun
    return None


@task(name="Read the data", cache_policy=NO_CACHE)
def read_data(config: RunConfig, workspace: Path) -> IngestedData:
    """List the folder and check every image."""
    return ingestion.ingest(config, workspace, display().advance)


@task(name="Compare with the data of the last run", cache_policy=NO_CACHE)
def compare_with_last_run(name: str, data: IngestedData) -> NewImages:
    """Count the new, removed and relabelled images since the last finished training."""
    before = earlier_manifests.manifest_of_last_run(name)
    return count_new_images(before, manifests.load(data.manifest_file))


def _skip(name: str, images: NewImages, least: int) -> State[Any]:
    reason = f"{images.words()}; --min-new-images is {least}"
    _publish(name, images, f"Training needs at least {least}, so nothing was trained.")
    facts = {
        "name": name,
        "new_images": images.new,
        "asked": least,
        "removed": images.removed,
        "relabelled": images.relabelled,
        "reason": reason,
    }
    events.emit(events.RUN_SKIPPED, f"patchline.model.{name}", facts)
    return Completed(name=SKIPPED, message=f"{reason}.")


def _publish(name: str, images: NewImages, verdict: str) -> None:
    values = {"new": images, "name": name, "verdict": verdict, "one": by_task(images.task).one}
    create_markdown_artifact(
        key="new-data",
        markdown=render_markdown("new_images.md.j2", __package__, **values),
        description="New images since the last training",
    )
