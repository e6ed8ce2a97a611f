"""One fit of the last blocks of a network from its tokens, in this process or in several.

Several processes leave the trained weights in a file, and the process that has started them reads
them: what follows a fit, such as the choice of the weights, is computed in one process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.layers.last_blocks import whole_model
from patchline.pipeline.training.checkpoints.checkpoint import PREVIOUS
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts import interpolation
from patchline.pipeline.training.parts.refit import Refit
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.start.initial_model import initial_model
from patchline.pipeline.training.train_result import EpochRecord, RefitResult, TrainResult
from patchline.pipeline.training.trained_model import save_model_of
from patchline.pipeline.training.training_data import TrainingData, Truth, open_data
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors

_TRAINED_FILE = "trained.safetensors"
"""The weights at the end of a fit in several processes, until the fit's result is saved."""
Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]


class LastBlocksTraining(Training):
    """A training from tokens, which keeps its last weights."""

    def _keep_weights(self, record: EpochRecord) -> None:
        """Keep nothing: the weights are chosen between the first and the last ones."""


@dataclass(frozen=True)
class TokenFit:
    """A finished fit from tokens: from the fitted head to the trained weights.

    Attributes:
        job: of the fit.
        result: of the fit; its folder of weights does not exist yet.
        data: tokens and labels.
        model: the last blocks, with the trained weights.
        fitted: the weights that the fit began with.
        ended: when the fit ended, on the monotonic clock.
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
        return self.data.order(self.job.config.training, self.job.config.seed).steps_per_epoch

    def logits_along(self) -> Array:
        """Return the logits (S, N, K) of the validation images from the head to the weights."""
        device = torch.device(self.job.config.training.device)
        model, rows = self.model.to(device), self.data.validation_rows

        def predict(at_share: nn.Module) -> Array:
            given = self.data.images, rows, self.job.image
            logits_NK: Array = predict_logits(at_share, *given, device=device).numpy()
            return logits_NK

        logits_SNK = interpolation.logits_along(model, self.fitted, copied(model), predict)
        model.cpu()  # whose memory the next fit may need
        return logits_SNK

    def save_at(self, share: float, folder: Path) -> None:
        """Save the whole model with the weights at a share of the way."""
        trained = copied(self.model)
        self.model.load_state_dict(interpolation.between(self.fitted, trained, share))
        save_model_of(self.job, whole_model(self.model), folder)

    def clean(self) -> None:
        """Delete what is not needed once the result is saved."""
        for name in (PREVIOUS, _TRAINED_FILE):
            (self.job.folder / name).unlink(missing_ok=True)


def fit_alone(job: TrainingJob, events: EventWriter) -> TokenFit:
    """Train from the tokens of a job in this process."""
    training, fitted = _trained(job, events)
    model = training.state.average.model
    return TokenFit(job, _result_of(training), training.data, model, fitted)


def fit_together(job: TrainingJob, events: EventWriter, ranks: Ranks) -> TrainResult | RefitResult:
    """Train from the tokens of a job as one of several ranks; the first writes the weights."""
    training, _ = _trained(job, events, ranks)
    if ranks.is_first:
        write_tensors(job.folder / _TRAINED_FILE, copied(training.state.average.model))
    return _result_of(training)


def fit_of_ranks(
    job: TrainingJob, result: TrainResult | RefitResult, events: EventWriter
) -> TokenFit:
    """Return the fit that ranks have done together, each by `fit_together`."""
    data = open_data(job)
    model = initial_model(job, data, events)
    fitted = copied(model)
    model.load_state_dict(read_tensors(job.folder / _TRAINED_FILE)[0])
    return TokenFit(job, result, data, model, fitted)


def copied(model: nn.Module) -> Tensors:
    """Return copies of all weights on the CPU."""
    weights = model.state_dict()
    return {name: each.detach().to("cpu", copy=True) for name, each in weights.items()}


def _trained(
    job: TrainingJob, events: EventWriter, ranks: Ranks | None = None
) -> tuple[Training, Tensors]:
    """Train to the end; return the training, and the weights that it began with."""
    training = (Refit if job.part.refit else LastBlocksTraining)(job, events, ranks)
    fitted = copied(training.state.model)
    training.train_to_the_end()
    return training, fitted


def _result_of(training: Training) -> TrainResult | RefitResult:
    folder = training.job.folder
    if isinstance(training, Refit):
        return training.result_of(folder)
    return training.result_with(folder, training.state.history[-1])
