"""The training stage: start the training process, forward what it says, return its result."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from pipeline import config_files, tracking
from pipeline.config import RunConfig
from pipeline.data.ingestion import IngestedData, PreparedData
from pipeline.event_log import Event
from pipeline.train_result import TrainResult
from pipeline.training.job import TrainingJob
from pipeline.worker_process import run_worker

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
OnEvent = Callable[[Event], None]


def train(
    config: RunConfig,
    data: IngestedData,
    prepared: PreparedData,
    run: tracking.TrackedRun,
    on_event: OnEvent,
) -> TrainResult:
    """Train in a process of its own; metrics and pictures reach the run while it goes on.

    Args:
        config: resolved.
        data: the manifest.
        prepared: the store.
        run: where metrics go.
        on_event: sees every event too, for a progress display.
    """
    job = TrainingJob(
        config=config,
        manifest_file=data.manifest_file.resolve(),
        store=prepared.store.resolve(),
        image=prepared.image,
        classes=data.classes,
        data_fingerprint=data.fingerprint,
        run_id=run.run_id,
        folder=run.folder / "training",
    )
    log = tracking.RunLog(run)

    def forward(event: Event) -> None:
        on_event(event)
        log.send()
        if event["kind"] == "metrics":
            log.add_metrics(event["values"], event["step"], event["time"])
        elif event["kind"] == "artifact":
            log.add_file(Path(event["path"]))
        elif event["kind"] == "warning":
            logger.warning(event["message"])

    with tracking.system_metrics(run):
        result = run_worker("pipeline.training", job.folder, job, TrainResult, forward)
    log.flush()
    return result


def replayable(config: RunConfig, result: TrainResult) -> RunConfig:
    """Return the config with all that the machine decided, so that it runs the same again."""
    planned = config.training.time_limit is not None
    training = config.training.model_copy(
        update={
            "precision": result.precision,
            "device": result.device,
            "threads": result.threads,
            "time_limit": None,
            "step_plan": result.step_plan if planned else config.training.step_plan,
        }
    )
    return config.model_copy(update={"training": training})


def log_config(config: RunConfig, run: tracking.TrackedRun) -> Path:
    """Write the resolved config into the run's folder and log it."""
    file = run.folder / CONFIG_FILE
    config_files.save(config, file)
    tracking.log_file(run, file)
    return file
