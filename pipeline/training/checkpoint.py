"""Checkpoints: the state of a training on disk, from which it resumes bit for bit.

The last checkpoint and the one before it are kept while the training runs, each with the best
weights that it names. One that is damaged gives way to the one before; without a whole one the
training starts from the beginning.
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
"""Of the time, at most, for writing checkpoints; those of a large model take long."""
_NUMBERS = "progress"
"""Key of the metadata that holds what is no tensor."""


class Checkpoints:
    """The checkpoints of one training, in its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last, self._previous = folder / LAST, folder / PREVIOUS
        self._best_steps: tuple[int, ...] = ()  # of the best weights in both checkpoints
        self._written_at = time.monotonic()
        self._pause = _PAUSE_SECONDS

    def start_clock(self) -> None:
        """Let the time to the next checkpoint begin now."""
        self._written_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next one."""
        return time.monotonic() - self._written_at > self._pause

    @property
    def exist(self) -> bool:
        """Whether there is one."""
        return self._last.exists()

    def write(self, state: TrainState) -> None:
        """Write the state; the checkpoint before it stays beside it."""
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
        """Delete all best weights but those of a step and those that a checkpoint names."""
        best_weights.keep_only(self._folder, step, *self._best_steps)

    def resume(self, state: TrainState) -> str:
        """Restore the newest state that is whole, and say what was done; empty without any."""
        why = ""
        for file in (self._last, self._previous):
            if not file.exists():
                continue
            try:
                load(file, state, self._folder)
            except DamagedFileError as error:
                logger.warning("%s", error)
                why += f" ({file.name} or its best weights are damaged)"
                file.unlink()  # so that it does not take the place of a good one
            else:
                self._best_steps = (state.best.step,) if state.best else ()
                return f"going on from step {state.step}{why}"
        if why:
            best_weights.keep_only(self._folder)
            return f"starting from the beginning{why}"
        return ""

    def finish(self, best_step: int) -> Path:
        """Keep the last checkpoint and the best weights alone, and return where these are."""
        self._previous.unlink(missing_ok=True)
        best_weights.keep_only(self._folder, best_step)
        return best_weights.finish(self._folder, best_step)


def save(file: Path, state: TrainState) -> None:
    """Write a state with its digest, whole or not at all."""
    write_tensors(file, state.tensors(), {_NUMBERS: json.dumps(state.numbers())})


def load(file: Path, state: TrainState, folder: Path | None = None) -> None:
    """Restore the state that a file holds.

    Args:
        file: the checkpoint.
        state: of the same model; it becomes the one that was saved.
        folder: where the best weights are that the checkpoint names; they are verified too.

    Raises:
        DamagedFileError: if a file is not what was written, or the checkpoint is of another model;
            the state is then as it was.
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
