"""Checkpoints: the training state on disk, from which training resumes bit for bit.

The last two checkpoints are kept during training, each with the best weights that it names. If the
last one is damaged, training resumes from the previous one; if both are, it starts from the
beginning.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from pipeline.errors import DamagedFileError
from pipeline.files.sealed_files import read_tensors, verify, write_tensors
from pipeline.models.model_files import WEIGHTS_FILE
from pipeline.training import best_weights
from pipeline.training.train_state import Numbers, TrainState

logger = logging.getLogger(__name__)

LAST, PREVIOUS = "last.safetensors", "previous.safetensors"
_PAUSE_SECONDS = 15.0
_SHARE = 0.05
"""Largest share of the time that may be spent on writing checkpoints."""
_NUMBERS = "progress"
"""Key of the metadata with everything that is not a tensor."""


class Checkpoints:
    """The checkpoints of one training run, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last, self._previous = folder / LAST, folder / PREVIOUS
        self._best_steps: tuple[int, ...] = ()  # of the best weights in both checkpoints
        self._written_at = time.monotonic()
        self._pause = _PAUSE_SECONDS

    def start_clock(self) -> None:
        """Start measuring the time to the next checkpoint."""
        self._written_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() - self._written_at > self._pause

    @property
    def exist(self) -> bool:
        """Whether there is a checkpoint."""
        return self._last.exists()

    def write(self, state: TrainState) -> None:
        """Write the state, and keep the previous checkpoint."""
        began = time.monotonic()
        if self._last.exists():
            self._last.replace(self._previous)
        save(self._last, state)
        self._written_at = time.monotonic()
        self._pause = max(_PAUSE_SECONDS, (self._written_at - began) / _SHARE)
        if state.best is not None:
            self._best_steps = (*self._best_steps[-1:], state.best.step)
            best_weights.keep_only(self._folder, *self._best_steps)

    def keep_best(self, step: int) -> None:
        """Delete all best weights except those of a step and those named by a checkpoint."""
        best_weights.keep_only(self._folder, step, *self._best_steps)

    def resume(self, state: TrainState) -> str:
        """Restore the newest intact state and describe what was done; empty without checkpoints."""
        why = ""
        for file in (self._last, self._previous):
            if not file.exists():
                continue
            try:
                load(file, state, self._folder)
            except DamagedFileError as error:
                logger.warning("%s", error)
                why += f" ({file.name} or its best weights are damaged)"
                file.unlink()  # so that it never replaces an intact one
            else:
                self._best_steps = (state.best.step,) if state.best else ()
                return f"resuming from step {state.step}{why}"
        if why:
            best_weights.keep_only(self._folder)
            return f"starting from the beginning{why}"
        return ""

    def finish(self, best_step: int) -> Path:
        """Keep only the last checkpoint and the best weights, and return the weights' folder."""
        self._previous.unlink(missing_ok=True)
        best_weights.keep_only(self._folder, best_step)
        return best_weights.finish(self._folder, best_step)


def save(file: Path, state: TrainState) -> None:
    """Write a state with its digest, atomically."""
    write_tensors(file, state.tensors(), {_NUMBERS: json.dumps(state.numbers())})


def load(file: Path, state: TrainState, folder: Path | None = None) -> None:
    """Restore the state from a file.

    Args:
        file: the checkpoint.
        state: of the same model; it is overwritten.
        folder: of the best weights that the checkpoint names; they are verified too.

    Raises:
        DamagedFileError: if a file is damaged, or the checkpoint is of another model; the state is
            then unchanged.
    """
    tensors, metadata = read_tensors(file)
    if _NUMBERS not in metadata:
        raise DamagedFileError(f"{file} is not a checkpoint. Delete it, and train again.")
    numbers: Numbers = json.loads(metadata[_NUMBERS])
    if folder and numbers["best"]:
        step = numbers["best"]["step"]
        best_weights.take_back(folder, step)
        verify(best_weights.folder_of(folder, step) / WEIGHTS_FILE)
    state.restore(tensors, numbers)
