"""The tokens of a frozen network between two blocks, and a fit of the last blocks from them.

The tokens lie beside the features of the same network and images, half as precise: float16 has 11
significant bits, as many as the products of a bfloat16 pass have errors left.

Shapes: M images, B images of a batch, V views, N tokens, D embedding, H, W and C of an image.

Several processes leave the trained weights in a file, and the process that has started them reads
them: what follows a fit, such as the choice of the weights, is computed in one process.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.errors import RunError, StorageError
from patchline.pipeline.models.inference import (
    autocast,
    normalize,
)
from patchline.pipeline.models.layers.last_blocks import whole_model
from patchline.pipeline.models.layers.vision_transformer import VisionTransformer
from patchline.pipeline.models.probing.linear_head import use_evaluation_mode
from patchline.pipeline.models.probing.stored_rows import Batch, Progress, Rows, StoredRows
from patchline.pipeline.training.checkpoint import PREVIOUS
from patchline.pipeline.training.job import TOKEN_VIEWS, TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import fine_tuning
from patchline.pipeline.training.parts.after_folds import Refit
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.start import initial_model
from patchline.pipeline.training.train_result import EpochRecord, RefitResult, TrainResult
from patchline.pipeline.training.trained_model import save_model_of
from patchline.pipeline.training.training_data import TrainingData, Truth, open_data
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.resumable_work import ResumableArray
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Array = np.ndarray[Any, Any]

_FORMAT = 1
"""Increase it when the same inputs give other tokens; stored ones are then not used."""
_LEFT_BYTES = 2**30
"""Space that stays free on the disk."""


@dataclass(frozen=True)
class TokenStore(StoredRows):
    """The tokens of some images after the first blocks of a network, on disk.

    Attributes:
        blocks: number of blocks before the tokens.
        augmentation: what makes the second view, unless `mirrored`; it looks as in epoch 1.
        augmented: text that identifies the augmentation with its settings and seed.
        mirrored: whether the second view is the mirror image.
    """

    what = "tokens"
    model: VisionTransformer
    blocks: int
    augmentation: SeededAugmentation
    augmented: str
    mirrored: bool

    def bytes_per_image(self) -> int:
        """Return the size of the tokens of all views of an image."""
        array = self.array()
        return 2 * int(np.prod(array.shape[1:]))

    def check_space(self) -> None:
        """Check that the disk has space for what is not there yet.

        Raises:
            StorageError: if it has not.
        """
        make_folder(self.folder)
        needed, free = self.array().bytes_to_allocate(), shutil.disk_usage(self.folder).free
        if needed + _LEFT_BYTES > free and needed:
            raise StorageError(
                f"The tokens of {len(self.rows):,} images in {TOKEN_VIEWS} views take "
                f"{needed / 1e9:.3g} GB more, but the disk of {self.folder} has {free / 1e9:.3g} "
                "GB left, of which 1 stays free. Free some, or set training.trainable to head."
            )

    def file(self, on_progress: Progress | None = None) -> Path:
        """Compute what is not stored yet, and return the file of all tokens, (M, V, N, D).

        If another process is computing the same tokens, wait for it. In a group, all processes
        call this together.

        Raises:
            StorageError: if the disk is full or read-only.
            RunError: if a value does not fit float16.
        """
        if not (self.group and self.group.rank):
            self.check_space()
        return self._complete(on_progress).file

    def array(self) -> ResumableArray:
        """Return the array on disk, (M, V, N, D)."""
        rows = hashlib.sha256(np.ascontiguousarray(self.rows, np.int64).tobytes()).hexdigest()
        identity = [
            *(_FORMAT, rows, self.blocks, self.batch_size, self.precision, self.device.type),
            *(TOKEN_VIEWS, self.mirrored, self.augmented),
        ]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        with use_evaluation_mode(self.model):
            zeros_1CHW = torch.zeros(
                1, self.image.channels, self.image.height, self.image.width, device=self.device
            )
            _, tokens, dimensions = self.model.tokens_after(zeros_1CHW, 0).shape
        shape = (len(self.rows), TOKEN_VIEWS, tokens, dimensions)
        return ResumableArray(
            self.folder / f"tokens-{name}.npy", shape, np.float16, "stored tokens"
        )

    def _finish(self, batches: list[Batch]) -> Array:
        """Wait for some batches, and return them together.

        Raises:
            RunError: if a value does not fit float16.
        """
        half_MVND = super()._finish(batches)
        if not np.isfinite(half_MVND).all():
            raise RunError(
                f"After {self.blocks} blocks of the network some tokens are beyond float16, in "
                "which they are stored. Train more blocks (training.last_blocks), or set "
                "training.trainable to head or all."
            )
        return half_MVND

    def _of_rows(self, rows: Rows) -> torch.Tensor:
        """Return the tokens (B, V, N, D) of some images."""
        to_device = self._transfers.to_device
        original_BHWC = np.array(self.images[rows])
        pixels_BHWC = to_device(original_BHWC)
        first_BND = self._tokens(pixels_BHWC)
        if self.mirrored:
            pixels_BHWC = pixels_BHWC.flip(2)
        else:
            changed = self.augmentation.by_image(original_BHWC, 1, rows.tolist())
            pixels_BHWC = self.augmentation.by_batch(to_device(changed), 1, to_device(rows))
        return self._transfers.to_host(torch.stack([first_BND, self._tokens(pixels_BHWC)], 1))

    def _tokens(self, images_BHWC: torch.Tensor) -> torch.Tensor:
        """Return the tokens (B, N, D) of one view of some images, on the device."""
        with autocast(self.device, self.precision):
            tokens_BND = self.model.tokens_after(normalize(images_BHWC, self.image), self.blocks)
        return tokens_BND.half()


_TRAINED_FILE = "trained.safetensors"
"""The weights at the end of a fit in several processes, until the fit's result is saved."""
Tensors = dict[str, torch.Tensor]


class LastBlocksTraining(Training):
    """A training from tokens, which keeps its last weights."""

    def _keep_weights(self, record: EpochRecord) -> None:
        """Keep nothing: the weights are chosen between the first and the last ones."""


@dataclass(frozen=True)
class TokenFit:
    """A finished fit from tokens: from the fitted head to the trained weights.

    Attributes:
        job: the job of the fit.
        result: the result of the fit; its folder of weights does not exist yet.
        data: tokens and labels.
        model: the last blocks, with the trained weights.
        fitted: the weights that the fit began with.
        ended: the time when the fit ended, on the monotonic clock.
    """

    job: TrainingJob
    result: TrainResult | RefitResult
    data: TrainingData
    model: nn.Module
    fitted: Tensors
    ended: float = field(default_factory=time.monotonic)

    @property
    def truth(self) -> Truth:
        """The classes (N), or sets of labels (N, K), of the validation images."""
        return self.data.truth(self.data.validation_rows)

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return self.data.order(self.job.config).steps_per_epoch

    def logits_along(self) -> Array:
        """Return the logits (S, N, K) of the validation images from the head to the weights."""
        model, rows = self.model.to(self.job.config.training.device), self.data.validation_rows
        logits_SNK = fine_tuning.logits_along(
            model, self.fitted, copy_weights(model), self.data.images, rows, self.job.image
        )
        model.cpu()  # whose memory the next fit may need
        return logits_SNK

    def save_at(self, share: float, folder: Path) -> None:
        """Save the whole model with the weights at a share of the way."""
        trained = copy_weights(self.model)
        self.model.load_state_dict(fine_tuning.between(self.fitted, trained, share))
        save_model_of(self.job, whole_model(self.model), folder)

    def clean(self) -> None:
        """Delete what is not needed once the result is saved."""
        for name in (PREVIOUS, _TRAINED_FILE):
            (self.job.folder / name).unlink(missing_ok=True)


def fit_alone(job: TrainingJob, events: EventWriter) -> TokenFit:
    """Train from the tokens of a job in this process."""
    training, fitted = _train(job, events)
    model = training.state.average.model
    return TokenFit(job, _result_of(training), training.data, model, fitted)


def fit_together(job: TrainingJob, events: EventWriter, ranks: Ranks) -> TrainResult | RefitResult:
    """Train from the tokens of a job as one of several ranks; the first writes the weights."""
    training, _ = _train(job, events, ranks)
    if ranks.is_first:
        write_tensors(job.folder / _TRAINED_FILE, copy_weights(training.state.average.model))
    return _result_of(training)


def fit_of_ranks(
    job: TrainingJob, result: TrainResult | RefitResult, events: EventWriter
) -> TokenFit:
    """Return the fit that ranks have done together, each by `fit_together`."""
    data = open_data(job)
    model = initial_model(job, data, events)
    fitted = copy_weights(model)
    model.load_state_dict(read_tensors(job.folder / _TRAINED_FILE)[0])
    return TokenFit(job, result, data, model, fitted)


def copy_weights(model: nn.Module) -> Tensors:
    """Return copies of all weights on the CPU."""
    weights = model.state_dict()
    return {name: each.detach().to("cpu", copy=True) for name, each in weights.items()}


def _train(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> tuple[Training, Tensors]:
    """Train to the end; return the training, and the weights that it began with."""
    training = (Refit if job.part.refit else LastBlocksTraining)(job, events, ranks)
    fitted = copy_weights(training.state.model)
    training.train_to_the_end()
    return training, fitted


def _result_of(training: Training) -> TrainResult | RefitResult:
    folder = training.job.folder
    if isinstance(training, Refit):
        return training.result_of(folder)
    return training.result_with(folder, training.state.history[-1])
