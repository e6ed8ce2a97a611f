"""The result of training: paths and numbers."""

from __future__ import annotations

from pathlib import Path

from pipeline.section import Section


class EpochRecord(Section):
    """The metrics of one validation."""

    epoch: float
    step: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    images_per_second: float


class TrainResult(Section):
    """Paths and numbers; large data stays in files."""

    best: Path
    """Folder of the weights with the best validation metrics."""
    best_step: int
    best_validation_accuracy: float
    steps: int
    epochs: float
    seconds: float
    """From the first step to the end of the last validation."""
    images_per_second: float
    """Training images per second of training steps, without validation."""
    step_plan: tuple[tuple[int, float, int], ...]
    precision: str
    device: str
    threads: int
    parameters: int
    stopped_because: str
    history: tuple[EpochRecord, ...]
