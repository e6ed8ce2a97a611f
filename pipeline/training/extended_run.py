"""Find the finished run whose training a new run extends to more epochs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.training.job import ExtendedTraining, TrainingJob, TrainingPart
from patchline.pipeline.training.record import TrainingRecord
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.worker_process import JOB_FILE, RESULT_FILE, read_result
from patchline.pipeline.workspace import run_folders
from patchline.pipeline.workspace.files.access import is_readable
from patchline.pipeline.workspace.files.workspace_folder import LAST_CHECKPOINT, REQUEST_FILE
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import RunRequest
from patchline.pipeline.workspace.tracking import liveness

_OPEN_SECTIONS = ("name", "optimizer", "training", "augmentation", "evaluation", "promotion")
"""Settings that may change when a run is extended."""


def build_extended_config(reference: str, flags: dict[str, Any], runs: Path) -> RunConfig:
    """Return the config of a run that extends the training of a finished one.

    Args:
        reference: the MLflow run's id, the first characters of the id, its name, or `last`.
        flags: nested settings, which override those of the finished run.
        runs: the folder with the folders of this workspace's runs.

    Raises:
        ConfigError: if the run cannot be extended, or a setting cannot be changed.
    """
    for section in flags:
        if section not in _OPEN_SECTIONS:
            raise ConfigError(
                f"'{section}' cannot be changed with --extend: the run keeps the data and the "
                "model that it was trained with. Leave it out, or start a new run."
            )
    run_id, folder = _find_finished_run(reference, runs)
    with _require_readable(folder / REQUEST_FILE, run_id):
        request = RunRequest.from_file(folder / REQUEST_FILE)
    if request.config.training.is_repeated:
        raise ConfigError(
            f"The run {run_id[:8]} has folds or a refit, and only a single fit can be "
            "extended. Start a new run with more epochs."
        )
    training = _training_of(run_id, folder)
    if training.probe is not None and training.fine_tuning is None:
        raise ConfigError(
            f"The run {run_id[:8]} fitted a head, which has no epochs to extend. Start a new run, "
            f"with model.init {run_id[:8]} and training.trainable all to train all weights."
        )
    settings = request.config.model_dump(mode="json")
    settings["training"]["time_limit"] = None
    settings["record"] |= {**TrainingRecord().model_dump(), "extends": run_id}
    config = config_files.validate_config(config_files.merge_settings(settings, flags))
    checkpoint = folder / TrainingPart().folder / LAST_CHECKPOINT
    if not checkpoint.is_file():
        raise ConfigError(
            f"The checkpoint {checkpoint} of the run {run_id[:8]} is gone, for example removed by "
            "`patchline clean`, so its training cannot be extended. Start a new run with more "
            "epochs."
        )
    epochs = flags.get("training", {}).get("epochs")
    if epochs is None or config.training.epochs_without_limit <= training.epochs:
        raise ConfigError(
            f"training.epochs is {epochs or 'not set'}, but the run {run_id[:8]} was trained for "
            f"{training.epochs:.4g} epochs already. Set training.epochs to a larger total number."
        )
    return config


def find_extended_training(job: TrainingJob, runs: Path) -> ExtendedTraining | None:
    """Return the training that a job extends, if any, after comparing what both train on.

    Args:
        job: the job of the new training.
        runs: the folder with the folders of this workspace's runs.

    Raises:
        ConfigError: if the run is not there, or its training was another one.
    """
    run_id = job.config.record.extends
    if run_id is None:
        return None
    _, folder = _find_finished_run(run_id, runs)
    result = _training_of(run_id, folder)
    training = folder / TrainingPart().folder
    with _require_readable(training / JOB_FILE, run_id):
        before = TrainingJob.from_file(training / JOB_FILE)
    config, old = job.config, before.config
    compared = {
        "The data": (job.data_fingerprint, before.data_fingerprint),
        "data.unlabelled": (_read_unlabelled_version(job), _read_unlabelled_version(before)),
        "training.teacher": (config.record.teacher_sha256, old.record.teacher_sha256),
        "The list of classes": (job.classes, before.classes),
        "The size or normalization of the images": (job.image, before.image),
        "seed": (config.seed, old.seed),
        "model": (config.model, old.model),
        "model.init": (config.record.init_sha256, old.record.init_sha256),
        "optimizer.name": (config.optimizer.name, old.optimizer.name),
        "optimizer.layer_decay": (config.optimizer.layer_decay, old.optimizer.layer_decay),
        "training.batch_size": (config.training.batch_size, old.training.batch_size),
    }
    changed = [name for name, (new, former) in compared.items() if new != former]
    if changed:
        raise ConfigError(
            f"{changed[0]} differs from that of the run {run_id[:8]}, so its training cannot be "
            "extended. Restore it, or start a new run."
        )
    return ExtendedTraining(run_id=run_id, folder=training, steps=result.steps)


def _read_unlabelled_version(job: TrainingJob) -> str:
    """Return the version of the images that a job trains on without labels."""
    return job.unlabelled.manifest_file.name if job.unlabelled else ""


def _find_finished_run(reference: str, runs: Path) -> tuple[str, Path]:
    """Return the id and the folder of a finished run."""
    run = interrupted_runs.find_named(reference, runs)
    run_id, folder = run.info.run_id, liveness.folder_of(run)
    if run.info.status != "FINISHED":
        raise ConfigError(
            f"The run {run_id[:8]} is {run.info.status}, so there is no finished training to "
            f"extend. Resume it first: `patchline run --resume {run_id[:8]}`."
        )
    if folder.parent == runs.resolve():
        run_folders.fetch(folder, results=True)
    if not is_readable(folder / REQUEST_FILE):
        raise ConfigError(
            f"The folder {folder} of the run {run_id[:8]} cannot be read on this machine, so its "
            "training cannot be extended. Start a new run with more epochs."
        )
    return run_id, folder


def _training_of(run_id: str, folder: Path) -> TrainResult:
    file = folder / TrainingPart().folder / RESULT_FILE
    with _require_readable(file, run_id):
        return read_result(file, TrainResult)


@contextmanager
def _require_readable(file: Path, run_id: str) -> Iterator[None]:
    """Refuse to extend the training of a run whose file cannot be read.

    Raises:
        ConfigError: if it is missing or damaged.
    """
    try:
        yield
    except (OSError, ValueError, PipelineError) as error:
        raise ConfigError(
            f"{file} cannot be read, so the training of the run {run_id[:8]} cannot be extended. "
            "Start a new run with more epochs."
        ) from error
