"""The training process: `python -P -m pipeline.training FOLDER`. Plain torch, no orchestration."""

from __future__ import annotations

import importlib

from pipeline.section import Section
from pipeline.training.ensemble_members import combine_members
from pipeline.training.job import TrainingJob
from pipeline.training.leading import lead
from pipeline.training.machine import look
from pipeline.training.probe import probe
from pipeline.training.process_group import ProcessGroup
from pipeline.training.process_launch import train_in_processes
from pipeline.workers.event_log import EventWriter
from pipeline.workers.worker_process import worker_main


def train(job: TrainingJob, events: EventWriter) -> Section:
    """Train in this process, or in several that this one starts; return the part's result."""
    if job.part.members:
        return combine_members(job, events)
    if job.config.training.trainable == "head":
        return probe(job, events)
    if job.config.training.processes > 1:
        return train_in_processes(job)
    return lead(job, events, ProcessGroup())


def _get_ready() -> str:
    """Import what most training runs need, and describe this machine."""
    importlib.import_module("albumentations")
    return look().model_dump_json()


if __name__ == "__main__":
    worker_main(TrainingJob, train, _get_ready)
