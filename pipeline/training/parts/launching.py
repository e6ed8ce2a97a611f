"""One training of a run: start the training process, forward its events, return its result.

Interrupted training resumes from its last checkpoint. Training that an earlier run has done already
is not repeated: its events are logged again, so that the new run has the curves too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.training import extended_run
from patchline.pipeline.training.config import duration_seconds, with_changes
from patchline.pipeline.training.initial_weights.record import weights_folder
from patchline.pipeline.training.job import (
    TRAINING,
    TeacherPredictions,
    TrainingJob,
    TrainingPart,
    UnlabelledStore,
)
from patchline.pipeline.training.machine import (
    MEMBER_MODULE,
    MODULE,
    choose_device,
    detect_cached_machine,
    resources_of,
)
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event, OnEvent
from patchline.pipeline.workers.host.processors import this_processor
from patchline.pipeline.workers.worker_process import JOB_FILE, Result, Worker, earlier_events
from patchline.pipeline.workspace.files.paths import safe_join, unsafe_reason
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import (
    Ingredients,
    StageMemory,
    result_files,
)
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
_RESUMES = re.compile(r"resuming from step \d+")


@dataclass(frozen=True)
class TrainingInputs:
    """What the fits of a run need.

    Attributes:
        config: the run's settings, resolved against the data.
        data: the manifest.
        prepared: the store.
        run: the run that gets metrics and pictures during training.
        memory: the memory of earlier results, which may hold the weights.
        on_event: called with every event, for a progress display.
        teacher: what a teacher has predicted, if there is one.
        share_of_limit: the part of the time limit that all fits together get.
    """

    config: RunConfig
    data: IngestedData
    prepared: PreparedData
    run: tracked_run.TrackedRun
    memory: StageMemory
    on_event: OnEvent
    teacher: TeacherPredictions | None = None
    share_of_limit: float = 1.0

    def folder_of(self, part: TrainingPart) -> Path:
        """Return the folder of a training run in the run's folder."""
        return self.run.folder / part.folder


def train_part(part: TrainingPart, result_class: type[Result], inputs: TrainingInputs) -> Result:
    """Do one of the fits that a run consists of in a separate process, or recall its result.

    A part that is continued later is not remembered for other runs, since the checkpoint in its
    folder changes. What was trained so far is resumed; if it has come that far, it ends at once.
    """
    memory, run, folder = inputs.memory, inputs.run, inputs.folder_of(part)
    own_ingredients, events = _ingredients(part, inputs), earlier_events(folder)
    if not part.is_continued:
        begun = bool(events)  # then it is resumed, whatever other runs have done since
        result = memory.recall(part.stage, own_ingredients, result_class, folder, own_only=begun)
        if result is not None:
            log_again(run, folder)
            return result
    config = with_time_left(inputs.config, inputs.share_of_limit, folder if events else None)
    own = (config, inputs.data, inputs.prepared, folder, run.run_id)
    job = job_of(*own, memory.workspace.resolve()).model_copy(update={"teacher": inputs.teacher})
    extends = extended_run.find_extended_training(job, run.folder.parent)
    job = job.model_copy(update={"part": part, "extends": extends})
    log = MetricSender(run)
    for event in events:
        _log(event, folder, log, send=False)
    log.send()

    def forward(event: Event) -> None:
        inputs.on_event(event)
        log.send()
        _log(event, folder, log)
        if event["kind"] == "warning":
            level = logging.INFO if resumes(event) else logging.WARNING
            logger.log(level, event["message"])

    with tracked_run.system_metrics(run):
        worker = Worker(MODULE, TrainingJob, result_class, MEMBER_MODULE)
        result = worker.run(folder, job, forward, resources_of(inputs.config.training))
    log.flush()
    if not part.is_continued:
        keys = [own_ingredients]
        if isinstance(result, TrainResult):
            replay = dataclasses.replace(inputs, config=replayable(inputs.config, result))
            keys.append(_ingredients(part, replay))
        memory.remember(part.stage, result, folder, *keys)
    return result


def with_time_left(config: RunConfig, share: float, earlier: Path | None = None) -> RunConfig:
    """Return the settings with the training's part of the time limit, if there is one.

    Args:
        config: the settings of a fit, with its part of the time of the whole run.
        share: which part of that the training gets.
        earlier: the folder of an interrupted attempt, whose limit stays; None for none.
    """
    limit = config.training.time_limit
    if limit is None or share == 1:
        return config
    left = f"{max(0.001, duration_seconds(limit) * share):.3f}s"
    if earlier and (earlier / JOB_FILE).exists():
        left = TrainingJob.from_file(earlier / JOB_FILE).config.training.time_limit or left
    return with_changes(config, training={"time_limit": left})


def recall_part(
    part: TrainingPart, result_class: type[Result], inputs: TrainingInputs
) -> Result | None:
    """Return the result of a part that this run has finished before, or None; logs nothing."""
    own_ingredients, folder = _ingredients(part, inputs), inputs.folder_of(part)
    return inputs.memory.recall(part.stage, own_ingredients, result_class, folder, own_only=True)


def job_of(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    folder: Path,
    run_id: str,
    workspace: Path | None = None,
) -> TrainingJob:
    """Return the job of an ordinary training, without a teacher.

    Args:
        config: the run's settings, resolved against the data.
        data: the manifest.
        prepared: the store.
        folder: the folder of the training.
        run_id: id of the MLflow run; without one, any name.
        workspace: the folder that keeps initial weights and measurements; None for neither.
    """
    unlabelled = None
    if data.unlabelled and prepared.unlabelled:
        unlabelled = UnlabelledStore(
            manifest_file=data.unlabelled.manifest_file.resolve(),
            store=prepared.unlabelled.resolve(),
        )
    sha256 = config.record.init_sha256
    initial = weights_folder(workspace, sha256) if workspace and sha256 else None
    return TrainingJob(
        config=config,
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        image=prepared.image,
        classes=data.classes,
        data_fingerprint=data.fingerprint,
        run_id=run_id,
        folder=folder,
        workspace=workspace,
        initial_weights=initial,
        unlabelled=unlabelled,
    )


def resumes(event: Event) -> bool:
    """Return whether a worker says only that it continues from an intact checkpoint."""
    return bool(_RESUMES.fullmatch(event.get("message", "")))


def log_again(run: tracked_run.TrackedRun, folder: Path) -> None:
    """Log the events of the training whose results were copied to a folder of the run."""
    job = TrainingJob.from_file(folder / JOB_FILE)
    log = MetricSender(run)
    for event in earlier_events(folder):
        if event["kind"] == "artifact":
            event["path"] = str(folder / os.path.relpath(event["path"], job.folder))
        _log(event, folder, log, send=False)
    log.flush()


def _log(event: Event, folder: Path, log: MetricSender, *, send: bool = True) -> None:
    """Log an event; a file only if it is in the folder of the training.

    The events of another machine name its own folder: what they logged is logged already.
    """
    if event["kind"] == "metrics":
        log.add_metrics(event["values"], event["step"], event["time"], send=send)
    elif event["kind"] == "artifact":
        path = Path(os.path.relpath(event["path"], folder)).as_posix()
        if not unsafe_reason(path) and (file := safe_join(folder, path, "An event")).is_file():
            log.add_file(file, send=send)


def _ingredients(part: TrainingPart, inputs: TrainingInputs) -> Ingredients:
    """Return everything that decides the weights.

    Raises:
        ConfigError: if the machine does not have the requested device.
    """
    config, data, machine = inputs.config, inputs.data, detect_cached_machine()
    sections = ("seed", "augmentation", "model", "objective", "optimizer", "training", "record")
    return {
        "data": data.fingerprint,
        "images": repr(inputs.prepared.image),
        "classes": ", ".join(data.classes),
        **({"unlabelled": data.unlabelled.fingerprint} if data.unlabelled else {}),
        **({"teacher": inputs.teacher.identity} if inputs.teacher else {}),
        **_provenance(data),
        **stage_keys.settings(config, *sections),
        **_part_ingredients(config, part),
        "code": stage_keys.code(*TRAINING.code),
        **stage_keys.software(config, "augmentation", "model", "patch_embedding", "objective"),
        "machine": f"{this_processor().name}, {machine.cpu_capability}",
        "device": machine.devices[choose_device(config.training, machine)],
        "threads": str(config.training.threads or machine.threads),
    }


def _provenance(data: IngestedData) -> Ingredients:
    """Return what the file of the weights says of its ancestors; nothing if all is recorded."""
    provenance = data.seen_before.provenance
    return {} if provenance.is_known else {"provenance": provenance.model_dump_json()}


def _part_ingredients(config: RunConfig, part: TrainingPart) -> dict[str, str]:
    """Return what distinguishes a part from the ordinary training; nothing for that itself."""
    if part == TrainingPart():
        return {}
    files = [file for folder in part.members for file in result_files(folder)]
    return {
        "part": part.model_dump_json(exclude={"members"}),
        "data.split_seed": str(config.data.split_seed),
        "members": ", ".join(digest_of(file).sha256 for file in files),
    }


def replayable(config: RunConfig, result: TrainResult) -> RunConfig:
    """Return the config with everything that the machine decided, to reproduce the run."""
    trainable = config.training.trainable
    if result.probe and not result.fine_tuning:  # also where no time was left for more
        trainable = "head"
    training = config.training.model_copy(
        update={
            "precision": result.precision,
            "compile": result.compiled,
            "device": result.device,
            "threads": result.threads,
            "time_limit": None,
            "trainable": trainable,
        }
    )
    record = config.record.of(result)
    if config.training.time_limit is None:  # epochs, or a plan that is recorded already
        kept = {name: getattr(config.record, name) for name in ("step_plan", "validation_plan")}
        record = record.model_copy(update=kept)
    return config.model_copy(update={"training": training, "record": record})


def machine_tags(result: TrainResult) -> dict[str, str]:
    """Return tags that say what the machine decided, and how the training went."""
    names = (
        "precision",
        "compiled",
        "device",
        "threads",
        "parameters",
        "stopped_because",
        "steps",
        "best_epoch",
    )
    return {f"training.{name}": str(getattr(result, name)) for name in names}


def log_config(config: RunConfig, run: tracked_run.TrackedRun) -> Path:
    """Write the resolved config into the run's folder and log it."""
    file = run.folder / CONFIG_FILE
    config_files.save(config, file)
    tracked_run.log_file(run, file)
    return file
