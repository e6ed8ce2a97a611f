"""The command `patchline data watch`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from flows import prefect_session
from flows.commands.switches import Json
from flows.schedules import schedule_plan
from pipeline import config_files, local_services
from pipeline.config import NAME_RULE, RunConfig, is_name
from pipeline.data.config import DataConfig
from pipeline.errors import ConfigError, DataError
from pipeline.terminal_words import visible
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from prefect.events import DeploymentEventTrigger

_IMAGE_FOLDER = "image_folder"


def watch(
    folder: Path,
    /,
    *,
    config: Path | None = None,
    name: str | None = None,
    as_json: Json = False,
) -> None:
    """Train again whenever enough images of a folder are new; `schedule remove` ends it.

    Parameters
    ----------
    folder
        A folder with one subfolder of images for each class.
    config
        YAML file with the settings of the run; data.min_new_images says how much is enough.
    name
        What the watch is called; by default as the folder is.
    """
    folder = _checked_folder(folder)
    name = _checked_name(folder, name)
    settings, notes = _settings(folder, config)
    _check_source(settings)
    with prefect_session.connected():
        deployment_id = _deploy(name, folder, settings, config)
        notes += _missing_services()
    if as_json:
        content = {
            "name": name,
            "folder": str(folder),
            "min_new_images": settings.data.min_new_images,
            "deployment_id": str(deployment_id),
            "notes": notes,
        }
        print(json.dumps(content, indent=2))
        return
    asked = settings.data.min_new_images
    enough = "one image is" if asked == 1 else f"{asked} images are"
    print(
        f"{name}: {visible(str(folder))} is watched. It is trained on when at least {enough} new."
    )
    for note in notes:
        print(f"  {visible(note)}")
    print(f"`patchline schedule list` shows the watch; `patchline schedule remove {name}` ends it.")


def trigger(name: str, folder: Path) -> DeploymentEventTrigger:
    """Return what starts a watch from outside: the event `patchline.data.updated` about it."""
    from prefect.events import DeploymentEventTrigger

    from flows.notifications.events import DATA_UPDATED

    return DeploymentEventTrigger(
        name=f"Patchline watch: {name}",
        expect={DATA_UPDATED},
        match={"prefect.resource.id": [f"patchline.watch.{name}", f"patchline.folder.{folder}"]},
    )


def _deploy(name: str, folder: Path, settings: RunConfig, file: Path | None) -> UUID:
    from flows.new_data.data_watch import KIND
    from flows.new_data.watch_flow import retrain_when_new
    from flows.schedules import deployments

    for watch in deployments.deployments(KIND):
        other = str(watch.labels.get(deployments.WATCH_FOLDER))
        if deployments.name_of(watch) == name and other != str(folder):
            raise ConfigError(
                f"The watch '{name}' looks at {other}. Choose another name with --name, or end "
                f"that one with `patchline schedule remove {name}`."
            )
    labels = {deployments.KIND: KIND, deployments.WATCH_FOLDER: str(folder)}
    if file is not None:
        labels |= schedule_plan.config_labels(file)
    return deployments.deploy(
        retrain_when_new,
        name,
        parameters={"config": settings.model_dump(mode="json")},
        triggers=[trigger(name, folder)],
        labels=labels,
        description=(
            f"Looks at `{folder}` after each change and trains when at least "
            f"{settings.data.min_new_images} images are new."
        ),
        concurrency="enqueue",
    )


def _checked_folder(folder: Path) -> Path:
    folder = folder.expanduser()
    if not folder.exists():
        raise DataError(f"There is no folder {folder}. Check the path.")
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Name the folder that holds the class folders.")
    folder = folder.resolve()
    if Path.cwd().resolve().is_relative_to(folder):
        raise ConfigError(
            f"{folder} holds the working directory, whose files change with every run. Watch a "
            "folder of images only, or work in another folder."
        )
    return folder


def _checked_name(folder: Path, name: str | None) -> str:
    if name is None:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-._")[:100] or "images"
    if not is_name(name):
        raise ConfigError(f"The watch's name is '{name}', but it {NAME_RULE}. Choose another one.")
    return name


def _settings(folder: Path, file: Path | None) -> tuple[RunConfig, list[str]]:
    """Return the settings of the run; the folder beats the path that the file names.

    A source that the file chooses stays; the built-in one would read no folder.
    """
    given = config_files.read_settings(file) if file is not None else {}
    data = given.get("data")
    data = data if isinstance(data, dict) else {}
    flags: dict[str, Any] = {"data": {"path": str(folder)}}
    if data.get("source", DataConfig().source) == DataConfig().source:
        flags["data"]["source"] = _IMAGE_FOLDER
    merged = config_files.assemble(preset_name=None, file=file, flags=flags)
    notes = []
    if data.get("path") is not None and Path(str(data["path"])).expanduser().resolve() != folder:
        notes.append(
            f"{file} names the data {data['path']}; the folder given here is used instead."
        )
    return config_files.validated(merged), notes


def _check_source(settings: RunConfig) -> None:
    from pipeline.data import ingestion

    ingestion.check_source(settings, WORKSPACE.resolve())


def _missing_services() -> list[str]:
    if local_services.running() is None:
        words = (
            "Nobody looks at the folder until `patchline up` runs here; only the event "
            "patchline.data.updated starts a run."
        )
        return [words]
    return []
