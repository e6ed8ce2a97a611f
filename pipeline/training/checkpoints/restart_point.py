"""The restart point: the state after the last validation, or of the beginning.

If training diverges, it restarts from here. Checkpoints are written when the clock says so, but
validations come after the same steps in every attempt, so an interrupted run restarts from the same
state. The state is kept in memory; a checkpoint that is written later writes it to a file as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from patchline.pipeline.errors import DamagedFileError
from patchline.pipeline.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.training.train_state import Numbers, Tensors, TrainState

_NUMBERS = "progress"
"""Key of the metadata with everything that is not a tensor."""
_PREFIX = "restart-"


@dataclass(frozen=True)
class RestartPoint:
    """A copy of a state, in memory."""

    tensors: Tensors
    numbers: Numbers

    @classmethod
    def of(cls, state: TrainState) -> Self:
        """Copy a state to the CPU's memory."""
        copies = {
            name: each.detach().to("cpu", copy=True) for name, each in state.tensors().items()
        }
        numbers: Numbers = json.loads(json.dumps(state.numbers()))
        return cls(copies, numbers)

    @classmethod
    def read(cls, folder: Path, step: int) -> Self:
        """Read the restart point of a step.

        Raises:
            DamagedFileError: if its file is missing or damaged.
        """
        file = _file_of(folder, step)
        if not file.exists():
            raise DamagedFileError(f"{file} is missing. Restore it, or train again.")
        return cls(*read(file))

    @property
    def step(self) -> int:
        """Number of steps done."""
        return int(self.numbers["step"])

    def write(self, folder: Path, checkpoint_step: int) -> None:
        """Write it for a checkpoint of a later step, if it is not written yet.

        The beginning is not written, since it can be built again, nor is a state that is equal to
        the checkpoint.
        """
        file = _file_of(folder, self.step)
        if 0 < self.step < checkpoint_step and not file.exists():
            write(file, self.tensors, self.numbers)

    def restore(self, state: TrainState) -> None:
        """Bring a state back here, except for its clock."""
        elapsed = state.elapsed_seconds
        state.restore(self.tensors, self.numbers)
        state.elapsed_seconds = elapsed


def keep_only(folder: Path, *steps: int) -> None:
    """Delete the restart points of all other steps."""
    kept = {_file_of(folder, step) for step in steps}
    for file in folder.glob(f"{_PREFIX}*.safetensors"):
        if file not in kept:
            file.unlink(missing_ok=True)


def write(file: Path, tensors: Tensors, numbers: Numbers) -> None:
    """Write a state with its digest, atomically."""
    write_tensors(file, tensors, {_NUMBERS: json.dumps(numbers)})


def read(file: Path) -> tuple[Tensors, Numbers]:
    """Read a state.

    Raises:
        DamagedFileError: if the file is damaged.
    """
    tensors, metadata = read_tensors(file)
    if _NUMBERS not in metadata:
        raise DamagedFileError(f"{file} is not a checkpoint. Delete it, and train again.")
    numbers: Numbers = json.loads(metadata[_NUMBERS])
    return tensors, numbers


def _file_of(folder: Path, step: int) -> Path:
    return folder / f"{_PREFIX}{step}.safetensors"
