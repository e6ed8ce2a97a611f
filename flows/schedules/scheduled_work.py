"""What a schedule does: train with the settings of a file, predict with a model, or use a tool.

Everything is checked when the schedule is created, not when it first runs at night.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from patchline.pipeline.config import NAME_RULE, is_name
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import DocumentedModel, FrozenModel
from patchline.pipeline.plugin_system.tools import Tool, tools
from patchline.pipeline.workspace.address import of_path
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import ToolWork, WorkRequest

CONFIG_FILE, CONFIG_SHA256 = "patchline.config_file", "patchline.config_sha256"

OfTool = tuple[Tool, ToolWork]


class ScheduleOptions(DocumentedModel):
    """What a schedule does, and when."""

    cron: str | None = None
    """When to run, as a five-field cron expression: "0 2 * * *" is every night at 02:00."""
    interval: str | None = None
    """How often to run, instead of --cron: 90s, 20m, 2h, 1d."""
    timezone: str | None = None
    """Time zone of the cron expression, such as Europe/Berlin. Default: this machine's."""
    config: Path | None = None
    """Train with the settings in this YAML file; they are stored with the schedule."""
    predict: str | None = None
    """Predict with this model instead of training, such as flowers@champion."""
    images: Path | None = None
    """Folder of images to predict, or of a tool's work: also a table, or recorded traffic."""
    out: Path | None = None
    """Table for the predictions: a .csv or .parquet file."""
    paused: bool = False
    """Create the schedule in the paused state."""
    work_pool: str | None = None
    """Work pool whose workers execute the runs, on any machine; see `patchline worker`. Default:
    the runner of `patchline up` in this folder."""


@dataclass(frozen=True)
class ScheduledWork:
    """What a schedule does each time it runs."""

    kind: str
    """`train`, `predict`, or what a tool calls it."""
    parameters: dict[str, Any]
    """The flow's parameters, as JSON."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names the config file that the settings came from."""
    of_tool: OfTool | None = None


def check_name(name: str) -> str:
    """Return the name of a schedule.

    Raises:
        ConfigError: if it contains characters that a name may not have.
    """
    if not is_name(name):
        raise ConfigError(f"The schedule's name is '{name}', but it {NAME_RULE}. Rename it.")
    return name


def read_scheduled_work(
    options: ScheduleOptions,
    tool_work: Sequence[tuple[Tool, ToolWork, str]] = (),
    columns: Mapping[str, Any] | None = None,
) -> ScheduledWork:
    """Return the work that the options ask for, after checking all of it.

    Args:
        options: the command's options.
        tool_work: what the flags of tools ask for, each with the flag's value.
        columns: columns of a table of images for a tool, by the name of their setting, such as
            `label_column`.

    Raises:
        ConfigError: if an option is missing or excluded by another, or the config file is wrong.
        DataError: if there is nothing to train on or to predict.
        ModelReferenceError: if there is no such model.
        PluginError: if a plugin is unknown or broken.
    """
    config, predict, images, out = options.config, options.predict, options.images, options.out
    core = {"--config": config, "--predict": predict}
    given = [option for option, value in core.items() if value is not None]
    given += [work.flag for _, work, _ in tool_work]
    if len(given) > 1:
        listed = " and ".join(given)
        raise ConfigError(f"{listed} are mutually exclusive. Give only one of them.")
    for tool, work, model in tool_work:
        request = WorkRequest(model, images, out, columns or {})
        return ScheduledWork(work.kind, tool.load(work.parameters)(request), {}, (tool, work))
    _check_no_columns(columns or {})
    if predict is None:
        for option, value in (("--images", images), ("--out", out)):
            if value is not None:
                raise ConfigError(f"{option} is for predictions. Add --predict MODEL.")
        if config is None:
            flags = ", ".join(each.flag for _, each in tools().work())
            raise ConfigError(
                "Set what to do: --config FILE.yaml to train, --predict MODEL --images FOLDER "
                f"--out FILE to predict, or the flag of a tool: {flags}."
            )
        return _training(config)
    if images is None or out is None:
        missing = "--images FOLDER" if images is None else "--out FILE.parquet"
        raise ConfigError(f"--predict {predict} also needs {missing}. Add it.")
    return _prediction(predict, images, out)


def config_labels(file: Path) -> dict[str, str]:
    """Return the labels that record which config file a deployment was created from."""
    return {CONFIG_FILE: str(file.absolute()), CONFIG_SHA256: _sha256(file) or ""}


def config_state(labels: Mapping[str, Any]) -> Literal["same", "changed", "gone"] | None:
    """Return how the config file differs from when the deployment was created; none without one."""
    file = labels.get(CONFIG_FILE)
    if not file:
        return None
    now = _sha256(Path(str(file)))
    if now is None:
        return "gone"
    return "same" if now == labels.get(CONFIG_SHA256) else "changed"


def _sha256(file: Path) -> str | None:
    try:
        return digest_of(file).sha256
    except OSError:
        return None


def _training(file: Path) -> ScheduledWork:
    from patchline.pipeline import config_files
    from patchline.pipeline.data import ingestion

    labels = config_labels(file)
    config = config_files.validate_config(
        config_files.assemble(preset_name=None, file=file, flags={})
    )
    path = config.data.path
    if path is not None and Path(path).exists():
        data = config.data.model_copy(update={"path": str(Path(path).resolve())})
        config = config.model_copy(update={"data": data})
    ingestion.check_source(config, WORKSPACE.resolve())
    return ScheduledWork("train", {"config": config.model_dump(mode="json")}, labels)


def _prediction(model: str, images: Path, out: Path) -> ScheduledWork:
    from patchline.pipeline.packaging.prediction.batch_prediction import check_table
    from patchline.pipeline.packaging.prediction.image_files import check_images, is_empty
    from patchline.pipeline.packaging.prediction.prediction_parts import parts_folder
    from patchline.pipeline.registry.registered_models import resolve

    images, out = Path(of_path(images)) if of_path(images) else images.resolve(), out.absolute()
    check_table(out, top_k=1)
    if not is_empty(images):  # an inbox may start empty
        check_images([images], (out, parts_folder(out)))
    resolve(model)
    parameters = {"model": model, "images": of_path(images) or str(images), "out": str(out)}
    return ScheduledWork("predict", parameters)


def _check_no_columns(columns: Mapping[str, Any]) -> None:
    for name in columns:
        raise ConfigError(
            f"--data.{name.replace('_', '-')} is for a table that a tool reads. Set it in the file "
            "of --config, or add the tool's flag."
        )


class LastRun(FrozenModel):
    """The newest run of a schedule."""

    state: str
    """Prefect's name of its state: Completed, Failed, Running, ..."""
    at: str | None
    """When it entered that state; ISO 8601."""
    flow_run_id: str
    message: str
    """Why it did not complete, if so."""


class ScheduleSummary(FrozenModel):
    """One schedule or watch."""

    name: str
    kind: str
    """`train`, `predict`, `watch`, what a tool calls it, or `unknown` without the tool."""
    what: str
    """What it does, in words."""
    trigger: str
    """A cron expression, an interval such as `every 20m`, or another trigger in words."""
    timezone: str | None
    """The time zone of a cron expression; None for other triggers."""
    paused: bool
    next: str | None
    """When it runs next, in this machine's time zone; ISO 8601. None while it is paused."""
    last: LastRun | None
    config_file: str | None
    config_changed: bool | None
    """Whether the file has changed or was deleted; None without a file."""
    config_missing: bool

    @property
    def when(self) -> str:
        """The trigger, with the time zone of a cron expression."""
        return f"{self.trigger} {self.timezone}" if self.timezone else self.trigger

    @property
    def next_words(self) -> str:
        """When it runs next, in words."""
        if self.paused:
            return "paused"
        return local_time(self.next) if self.next else "-"


def work_words(kind: str, parameters: Mapping[str, Any], watched: object = None) -> str:
    """Return in words what a schedule does.

    Args:
        kind: the kind of schedule, such as `train`, `predict` or `watch`.
        parameters: the parameters of the schedule's flow.
        watched: the folder of a watch.
    """
    if kind == "predict":
        return f"predicts {parameters.get('images')} with {parameters.get('model')}"
    if kind == "watch":
        return f"trains on new images in {watched}"
    data = parameters.get("config", {}).get("data", {})
    return f"trains on {data.get('path') or data.get('source')}"


def local_time(text: str) -> str:
    """Return an ISO 8601 time in this machine's time zone, for people."""
    return dt.datetime.fromisoformat(text).astimezone().strftime("%a %Y-%m-%d %H:%M:%S %Z")
