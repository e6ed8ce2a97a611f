"""The command `patchline data watch`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from patchline.flows import prefect_session
from patchline.flows.commands.switches import Json, emit, terminal_lines
from patchline.flows.new_data import watched_folders
from patchline.flows.notifications import events
from patchline.flows.schedules import scheduled_work
from patchline.pipeline import local_services
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError

if TYPE_CHECKING:
    from prefect.events import DeploymentEventTrigger


def watch(
    folder: Path,
    /,
    *,
    config: Path | None = None,
    name: str | None = None,
    quiet_seconds: float | None = None,
    as_json: Json = False,
) -> None:
    """Watch a folder and train when it has enough new images; stop with `schedule remove`.

    Parameters
    ----------
    folder
        Folder with one subfolder of images per class, or a table of its images; also on an object
        store, such as s3://bucket/photos.
    config
        YAML file with the settings of the run; data.min_new_images is the number of new images
        that starts it.
    name
        Name of the watch. Default: the folder's name.
    quiet_seconds
        How long nothing in the folder may change before a run starts, so that no run reads a folder
        that is still being copied. Default: 60; 3 if its subfolders are those of the last run.
    """
    quiet_seconds = watched_folders.checked_quiet_seconds(quiet_seconds)
    watched = watched_folders.checked_folder(folder)
    name = watched_folders.checked_name(watched, name)
    settings, notes = watched_folders.run_settings(watched, config)
    with prefect_session.connected():
        deployment_id = _deploy(name, watched, settings, config, quiet_seconds)
        notes += _missing_services()
    content = {
        "name": name,
        "folder": watched,
        "min_new_images": settings.data.min_new_images,
        "quiet_seconds": quiet_seconds,
        "deployment_id": str(deployment_id),
        "notes": notes,
    }
    quiet = watched_folders.quiet_words(quiet_seconds)
    lines = terminal_lines("watched.txt.j2", __package__, quiet=quiet, **content)
    emit(content, *lines, as_json=as_json)


def trigger(name: str, folder: str) -> DeploymentEventTrigger:
    """Return the trigger of a watch for other programs: the event `patchline.data.updated`."""
    from prefect.events import DeploymentEventTrigger

    from patchline.flows.prefect_api import folder_labels

    resources = [f"patchline.watch.{name}", f"patchline.folder.{folder}"]
    if identity := folder_labels.with_id(Path()).get(folder_labels.ID):
        resources.append(f"patchline.watch.{identity}.{name}")
    return DeploymentEventTrigger(
        name=f"Patchline watch: {name}",
        expect={events.DATA_UPDATED},
        match={"prefect.resource.id": resources},
    )


def _deploy(
    name: str, folder: str, settings: RunConfig, file: Path | None, quiet_seconds: float | None
) -> UUID:
    from patchline.flows.new_data.watch_flow import retrain_when_new
    from patchline.flows.new_data.watched_folders import KIND
    from patchline.flows.schedules import deployments

    for watch in deployments.deployments(KIND):
        other = str(watch.labels.get(deployments.WATCH_FOLDER))
        if deployments.name_of(watch) == name and other != folder:
            raise ConfigError(
                f"The watch '{name}' already watches {other}. Choose another name with --name, or "
                f"remove that watch with `patchline schedule remove {name}`."
            )
    labels = {deployments.KIND: KIND, deployments.WATCH_FOLDER: folder}
    if quiet_seconds is not None:
        labels[deployments.QUIET_SECONDS] = str(quiet_seconds)
    if file is not None:
        labels |= scheduled_work.config_labels(file)
    return deployments.deploy(
        retrain_when_new,
        name,
        parameters={"config": settings.model_dump(mode="json")},
        triggers=[trigger(name, folder)],
        labels=labels,
        description=(
            f"Watches `{folder}` and trains when at least {settings.data.min_new_images} images "
            f"are new. {watched_folders.quiet_words(quiet_seconds)}"
        ),
        concurrency="enqueue",
    )


def _missing_services() -> list[str]:
    if local_services.running() is None:
        hint = "The folder is watched only while `patchline up` runs here; until then, only the "
        return [f"{hint}event patchline.data.updated starts a run."]
    return []
