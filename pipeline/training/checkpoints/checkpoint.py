"""Checkpoints: the training state on disk, from which training resumes bit for bit.

The last two checkpoints are kept during training, each with the best weights that it names and with
the state after its last validation, from which training restarts if it diverges. If the last one is
damaged, training resumes from the previous one; if both are, it starts from the beginning.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.files.sealed_files import verify
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.run_memory.cleaning import LAST_CHECKPOINT, PREVIOUS_CHECKPOINT
from patchline.pipeline.training.checkpoints import best_weights, restart_point
from patchline.pipeline.training.checkpoints.restart_point import RestartPoint
from patchline.pipeline.training.train_state import TrainState

logger = logging.getLogger(__name__)

LAST, PREVIOUS = LAST_CHECKPOINT, PREVIOUS_CHECKPOINT
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 5.0, 15.0
_SHARE = 0.05
"""Largest share of the time that may be spent on writing checkpoints."""


class Checkpoints:
    """The checkpoints of one training run, in its folder.

    Args:
        folder: of the training run.
        restarts: whether training may restart from its last validation.
    """

    def __init__(self, folder: Path, *, restarts: bool = False) -> None:
        self.restart_point: RestartPoint | None = None
        self._restarts = restarts
        self._restart_steps: tuple[int, ...] = ()  # of the restart points of both checkpoints
        self._folder = folder
        self._last, self._previous = folder / LAST, folder / PREVIOUS
        self._best_steps: tuple[int, ...] = ()  # of the best weights in both checkpoints
        self._written_at = time.monotonic()
        self._pause = min(_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS)

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

    def mark(self, state: TrainState) -> None:
        """Keep a state, which has just been validated or built, in memory as the restart point."""
        if self._restarts:
            self.restart_point = RestartPoint.of(state)

    def write(self, state: TrainState) -> None:
        """Write the state, and keep the previous checkpoint."""
        began = time.monotonic()
        if self.restart_point:
            self.restart_point.write(self._folder, state.step)
        if self._last.exists():
            self._last.replace(self._previous)
        save(self._last, state)
        self._written_at = time.monotonic()
        self._pause = max(_PAUSE_SECONDS, (self._written_at - began) / _SHARE)
        if state.best is not None:
            self._best_steps = (*self._best_steps[-1:], state.best.step)
            best_weights.keep_only(self._folder, *self._best_steps)
        if self.restart_point:
            self._restart_steps = (*self._restart_steps[-1:], self.restart_point.step)
            restart_point.keep_only(self._folder, *self._restart_steps)

    def keep_best(self, step: int) -> None:
        """Delete all best weights except those of a step and those named by a checkpoint."""
        best_weights.keep_only(self._folder, step, *self._best_steps)

    def resume(self, state: TrainState) -> str:
        """Restore the newest intact state and describe what was done; empty without checkpoints."""
        why = ""
        self.mark(state)  # a training run that has not been validated restarts from its beginning
        for file in (self._last, self._previous):
            if not file.exists():
                continue
            try:
                load(file, state, self._folder)
                self._take_back_restart_point(state)
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

    def _take_back_restart_point(self, state: TrainState) -> None:
        """Load the restart point of a state that was just loaded.

        Raises:
            DamagedFileError: if its file is missing or damaged.
        """
        step = state.history[-1].step if state.history else 0
        if not self._restarts or step == 0:
            return
        if step == state.step:
            self.mark(state)
        else:
            self.restart_point = RestartPoint.read(self._folder, step)
        self._restart_steps = (step,)

    def finish(self, best_step: int) -> Path:
        """Keep only the last checkpoint and the best weights, and return the weights' folder."""
        self._previous.unlink(missing_ok=True)
        restart_point.keep_only(self._folder)
        best_weights.keep_only(self._folder, best_step)
        return best_weights.finish(self._folder, best_step)


def save(file: Path, state: TrainState) -> None:
    """Write a state with its digest, atomically."""
    restart_point.write(file, state.tensors(), state.numbers())


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
    tensors, numbers = restart_point.read(file)
    if folder and numbers["best"]:
        step = numbers["best"]["step"]
        best_weights.take_back(folder, step)
        verify(best_weights.folder_of(folder, step) / WEIGHTS_FILE)
    state.restore(tensors, numbers)
