"""Averages of the weights: the moving average, and the uniform one of the last validations.

The weights of each validation are written to a file of their own, and only the last ones are kept.
A training that resumes from a checkpoint writes the same files again. Batch-norm statistics of an
average are not the average of the statistics, so they are measured again.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from patchline.pipeline.models.inference import PREDICTED_TOGETHER, normalize
from patchline.pipeline.models.model_description import DESCRIPTION_FILE
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.trained_model import save_model_of
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.workspace.files.stored_images import StoredImages
from patchline.pipeline.workspace.files.workspace_folder import LAST_WEIGHTS
from patchline.plugin_api import ImageSpec


class MovingAverage:
    """An exponential moving average whose decay is warmed up: min(decay, (1 + n) / (10 + n)).

    So even in a short run the average is no longer dominated by the initial weights.

    Args:
        model: the model on its device; its parameters and buffers are followed.
        decay: the decay after many steps, from 0 to 1.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(requires_grad=False)
        self.decay = decay
        # Listing them walks through all modules, which would take longer than the update. Batch
        # statistics belong to the averaged weights.
        pairs = [
            *zip(self.model.parameters(), model.parameters(), strict=True),
            *zip(self.model.buffers(), model.buffers(), strict=True),
        ]
        self._averaged = [mine for mine, _ in pairs if mine.is_floating_point()]
        self._followed = [theirs for _, theirs in pairs if theirs.is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the model after `step` steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self._averaged, self._followed, 1 - decay)
        for mine, theirs in self._copied:
            mine.copy_(theirs)

    @torch.no_grad()
    def take_averaged(self, model: nn.Module, optimizer: Any) -> None:
        """Take the weights that an optimizer such as Schedule-Free AdamW has averaged itself.

        Batch-norm statistics are those of other weights, at which the gradients were computed, and
        have to be measured afterwards. The optimizer converts the model's weights into the average
        and back, which rounds them, so the model gets back exactly what it had.
        """
        weights = [parameter.clone() for parameter in model.parameters()]
        optimizer.eval()
        self.model.load_state_dict(model.state_dict())
        optimizer.train()
        torch._foreach_copy_(list(model.parameters()), weights)


_MOST_IMAGES, _OFTEN = 10_000, 2_048
"""At most as many images tell batch-norm statistics: once, and in each validation."""

Integers = np.ndarray[Any, np.dtype[np.int64]]


class LastWeights:
    """The weights of the last validations of one training, as files.

    Args:
        folder: the folder of the training.
        count: how many validations are averaged; None keeps nothing.
    """

    def __init__(self, folder: Path, count: int | None) -> None:
        self._folder, self.count = folder / LAST_WEIGHTS, count
        self._checkpoints: tuple[int, ...] = ()  # steps of the last two

    def add(self, step: int, model: nn.Module) -> None:
        """Save the weights of a validation."""
        if self.count is None:
            return
        write_tensors(self._file(step), model.state_dict())
        steps = sorted(int(file.stem) for file in self._folder.glob("*.safetensors"))
        # Training may resume from the older checkpoint, and end soon after it.
        oldest = self._checkpoints[0] if len(self._checkpoints) > 1 else 0
        before = [each for each in steps if each <= oldest]
        for each in before[: -self.count]:
            self._file(each).unlink()

    def forget_after(self, step: int) -> None:
        """Delete the weights of later steps, which an attempt has left that was killed.

        With a time limit, training may not come to a validation after the same steps again.
        """
        for file in self._folder.glob("*.safetensors"):
            if int(file.stem) > step:
                file.unlink()

    def checkpointed(self, step: int) -> None:
        """Take note of a checkpoint, from which training may resume."""
        self._checkpoints = (*self._checkpoints[-1:], step)

    def load_average(self, steps: Sequence[int], model: nn.Module) -> None:
        """Set a model's weights to the average over the validations after these steps.

        Integer buffers are those of the last one.

        Raises:
            DamagedFileError: if a file is missing or damaged.
        """
        read = [read_tensors(self._file(step))[0] for step in steps]
        averages = dict(read[-1])
        for name, last in averages.items():
            if last.is_floating_point():
                parts = [tensors[name].double() for tensors in read]
                averages[name] = torch.stack(parts).mean(0).to(last.dtype)
        model.load_state_dict(averages)

    def save_average(
        self,
        steps: Sequence[int],
        model: nn.Module,
        folder: Path,
        data: TrainingData,
        job: TrainingJob,
    ) -> None:
        """Save the average over the validations after some steps, unless it is there already.

        It is saved before the single files are deleted, so a run that is killed in between
        comes to the same result.

        Args:
            steps: the steps of the validations.
            model: the model, which has the averaged weights afterwards.
            folder: the folder that receives the average.
            data: the training's data; batch-norm statistics are those of its training images.
            job: the training's job, which describes the model.

        Raises:
            DamagedFileError: if a file is missing or damaged.
        """
        if (folder / DESCRIPTION_FILE).exists():  # the last file that is written
            model.load_state_dict(load_model(folder)[0].state_dict())
        else:
            self.load_average(steps, model)
            rows, size = data.training.rows, job.config.training.batch_size
            measure_batch_norm(model, data.images, rows, job.image, size, job.config.seed)
            save_model_of(job, model, folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, step: int) -> Path:
        return self._folder / f"{step}.safetensors"


def measure_batch_norm_often(model: nn.Module, data: TrainingData, job: TrainingJob) -> None:
    """Set the statistics of all batch-norm layers to those of some training images.

    The same ones each time: every n-th row, so that all classes of a folder are among them.

    Args:
        model: the model that is about to be validated; without batch norm, nothing is done.
        data: the data with the training images.
        job: the training's job, which says how the images are normalised.
    """
    rows = data.training.rows
    rows = rows[:: max(1, math.ceil(len(rows) / _OFTEN))]
    batches = math.ceil(len(rows) / min(job.config.training.batch_size, PREDICTED_TOGETHER))
    size = math.ceil(len(rows) / batches)  # each batch counts alike, so none is a small rest
    measure_batch_norm(model, data.images, rows, job.image, size, job.config.seed)


@torch.no_grad()
def measure_batch_norm(
    model: nn.Module,
    images: StoredImages,
    rows: Integers,
    image: ImageSpec,
    batch_size: int,
    seed: int,
) -> None:
    """Set the statistics of all batch-norm layers to those of the training images.

    Args:
        model: the model, whose other layers run as in evaluation; without batch norm, nothing is
            done.
        images: the stored images.
        rows: the rows of the training images; at most 10,000 of them are used.
        image: how the images are normalised.
        batch_size: number of images in one batch.
        seed: the seed that decides which images are used, and their order.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    layers = [layer for layer in layers if layer.track_running_stats]
    if not layers:
        return
    device = next(model.parameters()).device
    chosen = np.random.default_rng([seed, len(rows)]).permutation(rows)[:_MOST_IMAGES]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
        layer.train()
    for start in range(0, max(1, len(chosen) - 1), batch_size):  # one image has no variance
        batch_BHWC = torch.from_numpy(np.array(images[chosen[start : start + batch_size]]))
        model.forward(normalize(batch_BHWC.to(device), image))  # a compiled one, as it is written
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum
    model.eval()
