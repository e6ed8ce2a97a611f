"""One training step: the gradients of a batch, then an update of the weights and their average.

Dropout and stochastic depth depend only on (seed, step), so a resumed run repeats them. Loss and
gradient norm stay on the device; reading them is left to the caller.

Shapes: B images of a batch, H, W and C of an image, K classes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pipeline.config import RunConfig
from pipeline.data.loader import Batch
from pipeline.models.inference import normalised
from pipeline.plugin_api import ImageSpec
from pipeline.training.losses import training_loss
from pipeline.training.mixing import dominant_labels, draw_mix, mixed_images, mixed_targets
from pipeline.training.model_schedules import ModelSchedules
from pipeline.training.optimizer import averages_itself
from pipeline.training.progressive_size import ProgressiveSize
from pipeline.training.train_state import TrainState

_FEWEST_IMAGES = 2
"""Minimum of a micro-batch, because batch norm needs at least two images."""


@dataclass(frozen=True)
class Gradients:
    """What is known of a batch once its gradients are computed; all on the device."""

    loss: torch.Tensor
    """Mean loss per image."""
    correct: torch.Tensor
    """Number of images that were classified correctly."""
    images: int
    norm: torch.Tensor
    """Global norm of the gradient, before clipping."""


@dataclass(frozen=True)
class TrainStep:
    """How a step of this run is computed."""

    config: RunConfig
    image: ImageSpec
    num_classes: int
    device: torch.device
    precision: str
    size: ProgressiveSize
    schedules: ModelSchedules
    class_weights_K: torch.Tensor | None = None

    def compute_gradients(self, state: TrainState, batch: Batch) -> Gradients:
        """Compute the gradients of a batch, in micro-batches, and clip them; updates no weight."""
        images_BHWC, labels_B = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(self.config.seed, state.step))
        progress = state.plan.progress_of(state.step)
        self.schedules.apply(progress)
        inputs_BCHW = self.size.resized(normalised(images_BHWC, self.image), progress)
        mix = draw_mix(self.config.training, self.config.seed, state.step, *inputs_BCHW.shape[-2:])
        targets = shown_B = labels_B
        if mix is not None:
            inputs_BCHW = mixed_images(inputs_BCHW, mix)
            targets = mixed_targets(labels_B, self.num_classes, mix)
            shown_B = dominant_labels(labels_B, mix)
        state.optimizer.zero_grad(set_to_none=True)
        loss, correct = torch.zeros((), device=self.device), torch.zeros_like(labels_B[0])
        for part in micro_batches(len(labels_B), self.micro_batches_at(state)):
            share = (part.stop - part.start) / len(labels_B)
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"
            ):
                logits_BK = state.model(inputs_BCHW[part])
            part_loss = share * training_loss(
                logits_BK, targets[part], self.config.training, self.class_weights_K
            )
            part_loss.backward()
            loss = loss + part_loss.detach()
            correct = correct + (logits_BK.detach().argmax(1) == shown_B[part]).sum()
        return Gradients(loss, correct, len(labels_B), self._clip(state.model))

    def update_weights(self, state: TrainState, learning_rate: float) -> None:
        """Apply the gradients with a learning rate, and update the moving average."""
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_factor", 1.0)
        state.optimizer.step()
        state.step += 1
        if not averages_itself(state.optimizer):
            state.average.update(state.model, state.step)

    def micro_batches_at(self, state: TrainState) -> int:
        """Return the number of micro-batches of the next step."""
        return int(self.config.training.accumulation * 2**state.halvings_before_next_step)

    def can_halve(self, state: TrainState, images: int) -> bool:
        """Return whether a batch of that many images can be divided further."""
        parts = self.micro_batches_at(state)
        return len(list(micro_batches(images, 2 * parts))) > len(list(micro_batches(images, parts)))

    def _clip(self, model: nn.Module) -> torch.Tensor:
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        limit = self.config.optimizer.gradient_clip
        if limit is not None:
            nn.utils.clip_grads_with_norm_(model.parameters(), limit, norm)
        return norm


def micro_batches(images: int, parts: int) -> Iterator[slice]:
    """Yield slices of nearly equal length, of at least two images if there are as many."""
    parts = max(1, min(parts, images // _FEWEST_IMAGES))
    bounds = [images * index // parts for index in range(parts + 1)]
    for start, stop in itertools.pairwise(bounds):
        yield slice(start, stop)


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
