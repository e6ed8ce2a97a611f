"""What a training gives back: paths and numbers, nothing large."""

from __future__ import annotations

from pathlib import Path

from pipeline.section import Section


class EpochRecord(Section):
    """One line of the history."""

    epoch: float
    step: int
    train_loss: float
    train_accuracy: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    images_per_second: float


class TrainResult(Section):
    """Paths and numbers: nothing here is large."""

    best: Path
    """Folder with the weights that did best in validation."""
    best_step: int
    best_validation_accuracy: float
    steps: int
    epochs: float
    seconds: float
    """From the first step to the end of the last validation."""
    images_per_second: float
    """Training images over the time of the training steps, validation excluded."""
    step_plan: tuple[tuple[int, float, int], ...]
    precision: str
    device: str
    threads: int
    parameters: int
    stopped_because: str
    history: tuple[EpochRecord, ...]
