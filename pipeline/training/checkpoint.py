"""Checkpoints: the training state on disk, from which training resumes bit for bit.

A checkpoint names the step of the best weights. Newer weights must not replace them before the next
checkpoint is complete: training that resumes from the old checkpoint may take other steps under a
time limit and never reach the newer weights again.

The last two checkpoints are kept during training, each with the best weights that it names and with
the state after its last validation, from which training restarts if it diverges. If the last one is
damaged, training resumes from the previous one; if both are, it starts from the beginning. In a
shared workspace each checkpoint is also sent to the store, so that another machine can resume.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.training.processes.ranks import SharedClock
from patchline.pipeline.training.train_state import Numbers, Tensors, TrainState
from patchline.pipeline.workspace.files.sealed_files import read_tensors, verify, write_tensors
from patchline.pipeline.workspace.files.workspace_folder import (
    LAST_CHECKPOINT,
    PREVIOUS_CHECKPOINT,
    PROGRESS,
)
from patchline.pipeline.workspace.workspace import workspace_of

logger = logging.getLogger(__name__)

FINAL = "best"


def folder_of(job_folder: Path, step: int) -> Path:
    """Return the folder of a step's weights during training."""
    return job_folder / f"{FINAL}-{step}"


def keep_only(job_folder: Path, *steps: int | None) -> None:
    """Delete the weights of all other steps."""
    kept = {folder_of(job_folder, step) for step in steps if step is not None}
    for folder in job_folder.glob(f"{FINAL}-*"):
        if folder not in kept:
            shutil.rmtree(folder, ignore_errors=True)


def finish(job_folder: Path, step: int) -> Path:
    """Move the weights of a step to their final folder, and return it."""
    final = job_folder / FINAL
    shutil.rmtree(final, ignore_errors=True)
    return folder_of(job_folder, step).rename(final)


def take_back(job_folder: Path, step: int) -> None:
    """Undo `finish` for a training run that was killed right after it."""
    folder, final = folder_of(job_folder, step), job_folder / FINAL
    if final.exists() and not folder.exists():
        final.rename(folder)


LAST, PREVIOUS = LAST_CHECKPOINT, PREVIOUS_CHECKPOINT
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 5.0, 15.0
_SHARE = 0.05
"""Largest share of the time that may be spent on writing checkpoints."""
_NUMBERS = PROGRESS
"""Key of the metadata with everything that is not a tensor."""
_RESTART = "restart-"


@dataclass(frozen=True)
class RestartPoint:
    """A copy of the state after the last validation, or of the beginning, in memory.

    If training diverges, it restarts from here. Checkpoints are written when the clock says so, but
    validations come after the same steps in every attempt, so an interrupted run restarts from the
    same state. A checkpoint that is written later writes it to a file as well.

    Of several ranks, whose states are equal, the first one has the copy.
    """

    tensors: Tensors
    """Copies of the state's tensors, by name; empty on other ranks."""
    numbers: Numbers
    names: tuple[str, ...]
    """Names of the state's tensors, on all ranks."""

    @classmethod
    def of(
        cls, state: TrainState, earlier: RestartPoint | None = None, *, copies: bool = True
    ) -> Self:
        """Copy a state to the CPU's memory; from a GPU, while training continues.

        Args:
            state: the state to copy.
            earlier: a point of the same training that is not needed any more. Its memory is used
                again: two copies of a large model and its moments may be too much for a machine.
            copies: whether this rank has the copy.
        """
        room, tensors = earlier.tensors if earlier else {}, state.tensors()
        copied = {
            name: _copy_on_cpu(each.detach(), room.get(name))
            for name, each in (tensors.items() if copies else ())
        }
        numbers: Numbers = json.loads(json.dumps(state.numbers()))
        return cls(copied, numbers, tuple(tensors))

    @classmethod
    def read(cls, folder: Path, step: int, *, copies: bool = True) -> Self:
        """Read the restart point of a step.

        Args:
            folder: the folder of the training run.
            step: the step after which the point was taken.
            copies: whether this rank has the copy.

        Raises:
            DamagedFileError: if its file is missing or damaged.
        """
        file = _restart_file(folder, step)
        if not file.exists():
            raise DamagedFileError(f"{file} is missing. Restore it, or train again.")
        tensors, numbers = _read(file)
        return cls(tensors if copies else {}, numbers, tuple(tensors))

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.numbers["step"])

    def write(self, folder: Path, checkpoint_step: int) -> None:
        """Write it for a checkpoint of a later step, if it is not written yet.

        The beginning is not written, since it can be built again, nor is a state that is equal to
        the checkpoint.
        """
        file = _restart_file(folder, self.step)
        _wait_for_copies()
        if 0 < self.step < checkpoint_step and not file.exists():
            _write(file, self.tensors, self.numbers)

    def restore(
        self, state: TrainState, take_from_first: Callable[[torch.Tensor], None] | None = None
    ) -> None:
        """Bring a state back here, except for its clock.

        Args:
            state: the state to overwrite.
            take_from_first: a function that gives a tensor the values that it has on the first of
                several ranks, which all call this together.
        """
        elapsed, own = state.elapsed_seconds, state.tensors()
        _wait_for_copies()
        state.restore(self.tensors or {name: own[name] for name in self.names}, self.numbers)
        state.elapsed_seconds = elapsed
        if take_from_first is not None:
            restored = state.tensors()
            for name in self.names:
                take_from_first(restored[name])


def _copy_on_cpu(tensor: torch.Tensor, room: torch.Tensor | None) -> torch.Tensor:
    """Return a copy; that of a tensor on a GPU is complete after `_wait_for_copies`.

    Args:
        tensor: the tensor to copy, on any device.
        room: memory for the copy, if it fits.
    """
    if room is None or not _fits(tensor, room):
        room = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
    return room.copy_(tensor, non_blocking=True)


def _fits(tensor: torch.Tensor, room: torch.Tensor) -> bool:
    """Return whether the memory of a copy can be used again for a tensor.

    An optimizer that was restored on a CPU continues with the tensors of the copy.
    """
    return (
        (room.shape, room.stride(), room.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
        and room.is_pinned() == tensor.is_cuda
        and room.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    )


def _wait_for_copies() -> None:
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        torch.cuda.synchronize()


class Checkpoints:
    """The checkpoints of one training run, in its folder.

    Args:
        folder: the folder of the training run.
        writes: whether this rank writes the files; the others read them.
        clock: the clock that says when the next checkpoint is due.
    """

    def __init__(
        self, folder: Path, *, writes: bool = True, clock: SharedClock | None = None
    ) -> None:
        self.restart_point: RestartPoint | None = None
        self.exist = False
        """Whether there is a checkpoint."""
        self._writes, self._clock = writes, clock or SharedClock()
        self._restart_steps: tuple[int, ...] = ()  # of the restart points of both checkpoints
        self._folder = folder
        self._last, self._previous = folder / LAST, folder / PREVIOUS
        self._best_steps: tuple[int, ...] = ()  # of the best weights in both checkpoints
        self._written_at = self._clock.now
        self._pause = min(_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS)
        self._workspace = workspace_of(folder)

    def start_clock(self) -> None:
        """Start measuring the time to the next checkpoint."""
        self._written_at = self._clock.now

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return self._clock.now - self._written_at > self._pause

    def mark(self, state: TrainState) -> None:
        """Keep a state, which has just been validated or built, in memory as the restart point."""
        earlier = self.restart_point
        self.restart_point = RestartPoint.of(state, earlier, copies=self._writes)

    def write(self, state: TrainState) -> None:
        """Write the state, and keep the previous checkpoint; all ranks call this together."""
        self._clock.read()
        if self._writes:
            self._write(state)
            self._workspace.send_checkpoint(self._folder, state.step)
        seconds = self._clock.read()
        self.exist, self._written_at = True, self._clock.now
        self._pause = max(_PAUSE_SECONDS, seconds / _SHARE)

    def _write(self, state: TrainState) -> None:
        if self.restart_point:
            self.restart_point.write(self._folder, state.step)
        if self._last.exists():
            self._last.replace(self._previous)
        save(self._last, state)
        if state.best is not None:
            self._best_steps = (*self._best_steps[-1:], state.best.step)
            keep_only(self._folder, *self._best_steps)
        if self.restart_point:
            self._restart_steps = (*self._restart_steps[-1:], self.restart_point.step)
            _keep_restart_points(self._folder, *self._restart_steps)

    def keep_best(self, step: int) -> None:
        """Delete all best weights except those of a step and those named by a checkpoint."""
        if self._writes:
            keep_only(self._folder, step, *self._best_steps)

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
                self.exist = True
                return f"resuming from step {state.step}{why}"
        if why:
            keep_only(self._folder)
            return f"starting from the beginning{why}"
        return ""

    def _take_back_restart_point(self, state: TrainState) -> None:
        """Load the restart point of a state that was just loaded.

        Raises:
            DamagedFileError: if its file is missing or damaged.
        """
        step = state.history[-1].step if state.history else 0
        if step == 0:
            return
        if step == state.step:
            self.mark(state)
        else:
            self.restart_point = RestartPoint.read(self._folder, step, copies=self._writes)
        self._restart_steps = (step,)

    def finish(self, best_step: int) -> Path:
        """Keep only the last checkpoint and the best weights, and return the weights' folder."""
        if not self._writes:
            return self._folder / FINAL
        self._workspace.finish_sending()
        self._previous.unlink(missing_ok=True)
        _keep_restart_points(self._folder)
        keep_only(self._folder, best_step)
        return finish(self._folder, best_step)


def save(file: Path, state: TrainState) -> None:
    """Write a state with its digest, atomically."""
    _write(file, state.tensors(), state.numbers())


def load(file: Path, state: TrainState, folder: Path | None = None) -> None:
    """Restore the state from a file.

    Args:
        file: the checkpoint.
        state: the state to overwrite, of the same model.
        folder: the training run's folder, where the best weights that the checkpoint names are
            verified, too; None leaves that out.

    Raises:
        DamagedFileError: if a file is damaged, or the checkpoint is of another model; the state is
            then unchanged.
    """
    tensors, numbers = _read(file)
    if folder and numbers["best"]:
        step = numbers["best"]["step"]
        take_back(folder, step)
        verify(folder_of(folder, step) / WEIGHTS_FILE)
    state.restore(tensors, numbers)


def _write(file: Path, tensors: Tensors, numbers: Numbers) -> None:
    """Write a state with its digest, atomically."""
    write_tensors(file, tensors, {_NUMBERS: json.dumps(numbers)})


def _read(file: Path) -> tuple[Tensors, Numbers]:
    """Read a state.

    Raises:
        DamagedFileError: if the file is damaged.
    """
    tensors, metadata = read_tensors(file)
    if _NUMBERS not in metadata:
        raise DamagedFileError(f"{file} is not a checkpoint. Delete it, and train again.")
    numbers: Numbers = json.loads(metadata[_NUMBERS])
    return tensors, numbers


def _keep_restart_points(folder: Path, *steps: int) -> None:
    """Delete the restart points of all other steps."""
    kept = {_restart_file(folder, step) for step in steps}
    for file in folder.glob(f"{_RESTART}*.safetensors"):
        if file not in kept:
            file.unlink(missing_ok=True)


def _restart_file(folder: Path, step: int) -> Path:
    return folder / f"{_RESTART}{step}.safetensors"
