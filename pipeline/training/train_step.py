"""One training step: the gradients of a batch, then an update of the weights and their average.

Dropout and stochastic depth depend only on (seed, step) and the rank of the process, so a resumed
run repeats them. Loss and gradient norm stay on the device; reading them is left to the caller.

Shapes: B images of a batch, H, W and C of an image, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.models.inference import autocast, normalised
from patchline.pipeline.training.device import DeterministicKernels
from patchline.pipeline.training.processes.batch_parts import BatchPart
from patchline.pipeline.training.processes.process_group import ProcessGroup
from patchline.pipeline.training.recipe.mixing import (
    dominant_labels,
    draw_mix,
    mixed_images,
    mixed_targets,
)
from patchline.pipeline.training.recipe.model_schedules import ModelSchedules
from patchline.pipeline.training.recipe.optimizer import averages_itself
from patchline.pipeline.training.recipe.progressive_size import ProgressiveSize
from patchline.pipeline.training.train_state import TrainState
from patchline.plugin_api import ImageSpec, Objective


@dataclass(frozen=True)
class Gradients:
    """What is known of a batch once its gradients are computed; all on the device."""

    loss: torch.Tensor
    """Mean loss per image."""
    correct: torch.Tensor
    """Number of images that were classified correctly; 0 without classes."""
    images: int
    norm: torch.Tensor
    """Global norm of the gradient, before clipping; 0 if it overflows float16, so that the update
    is left out."""


@dataclass(frozen=True)
class TrainStep:
    """How a step of this run is computed."""

    config: RunConfig
    objective: Objective
    image: ImageSpec
    num_classes: int
    """K; 0 if the objective uses no labels."""
    device: torch.device
    precision: str
    size: ProgressiveSize
    schedules: ModelSchedules
    group: ProcessGroup = field(default_factory=ProcessGroup)
    kernels: DeterministicKernels = field(init=False)

    def __post_init__(self) -> None:
        """Insist on deterministic kernels; several processes could not repeat a step together."""
        kernels = DeterministicKernels(self.device, insist=self.group.size == 1)
        object.__setattr__(self, "kernels", kernels)

    def compute_gradients(self, state: TrainState, batch: Batch) -> Gradients:
        """Compute the gradients of a batch, in micro-batches, and clip them; updates no weight."""
        # With a time limit, the plan is not known before the first step, but a replay knows it.
        progress = state.plan.progress_of(state.step) if state.step else 0.0
        parts = self.micro_batches_at(state)
        self.group.announce_gradients(progress, parts)
        return self.gradients_at(state, batch, progress, parts)

    def gradients_at(
        self, state: TrainState, batch: Batch, progress: float, parts: int
    ) -> Gradients:
        """Compute the gradients together with the other processes, each of its part of a batch.

        Args:
            state: its plan is not used.
            batch: what this process has loaded.
            progress: of the training.
            parts: number of micro-batches.
        """
        part = self.group.part(state.step, len(batch[1]))
        state.optimizer.zero_grad(set_to_none=True)
        with self.group.sharing_memory_errors(), self.kernels.chosen():
            loss, correct = self._backward(state, batch, part, progress, parts)
        loss, correct = self.group.sum_up(state.model, loss, correct)
        state.loss_scale.unscale(state.parameters)
        norm = state.loss_scale.tolerated(self._clip(state.parameters))
        return Gradients(loss, correct, part.batch_images, norm)

    def _backward(
        self, state: TrainState, batch: Batch, part: BatchPart, progress: float, parts: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the number of correct images of a part."""
        images_BHWC, labels_B = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(self.config.seed, state.step, self.group.rank))
        self.schedules.apply(progress)
        inputs_BCHW = self.size.resized(normalised(images_BHWC, self.image), progress)
        mix = draw_mix(self.config.training, self.config.seed, state.step, *inputs_BCHW.shape[-2:])
        targets = shown_B = labels_B
        if mix is not None:
            inputs_BCHW = mixed_images(inputs_BCHW, mix)
            targets = mixed_targets(labels_B, self.num_classes, mix)
            shown_B = dominant_labels(labels_B, mix)
        if part.has_image_before:
            inputs_BCHW, targets, shown_B = inputs_BCHW[1:], targets[1:], shown_B[1:]
        loss, correct = torch.zeros((), device=self.device), torch.zeros_like(labels_B[0])
        for micro, share in part.micro_batches(parts):
            with autocast(self.device, self.precision):
                outputs = state.model(inputs_BCHW[micro])
            part_loss = share * self.objective.loss(outputs, targets[micro])
            state.loss_scale.scaled(part_loss).backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
            loss = loss + part_loss.detach()
            if self.num_classes:
                right_B = outputs.detach().argmax(1) == shown_B[micro]
                correct = correct + right_B.sum() * part.counts
        return loss, correct

    def update_weights(self, state: TrainState, learning_rate: float) -> None:
        """Apply the gradients with a learning rate, and update the moving average."""
        self.group.announce_update(learning_rate)
        self.update_own_weights(state, learning_rate)
        if not averages_itself(state.optimizer):
            state.average.update(state.step)

    @staticmethod
    def update_own_weights(state: TrainState, learning_rate: float) -> None:
        """Apply the gradients to this process's copy of the weights."""
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate * group.get("rate_factor", 1.0)
        state.loss_scale.step(state.optimizer)
        state.step += 1

    def micro_batches_at(self, state: TrainState) -> int:
        """Return the number of micro-batches of the next step."""
        return int(self.config.training.accumulation * 2**state.halvings_before_next_step)

    def can_halve(self, state: TrainState, images: int) -> bool:
        """Return whether a batch, of which that many images were loaded, can be divided further."""
        part, parts = self.group.part(state.step, images), self.micro_batches_at(state)
        return len(list(part.micro_batches(2 * parts))) > len(list(part.micro_batches(parts)))

    def _clip(self, parameters: list[nn.Parameter]) -> torch.Tensor:
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        limit = self.config.optimizer.gradient_clip
        if limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm


def _step_seed(seed: int, step: int, rank: int) -> int:
    words = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
