"""One training step: forward, backward, clip, check, update of the weights and their average.

The loop does it, and so do trial steps, so that what is measured is what training takes.

With several ranks, each computes its part of the batch; the gradients are those of the whole.
Dropout and stochastic depth depend only on (seed, step) and the rank of the process, so a resumed
run repeats them. Loss and gradient norm stay on the device until they are checked.

Shapes: B images of a batch, H, W and C of an image, K classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.models.inference import autocast, normalize
from patchline.pipeline.training.device import DeterministicKernels
from patchline.pipeline.training.faults import FiniteCheck
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.recipe.losses import one_hot
from patchline.pipeline.training.recipe.mixing import (
    dominant_labels,
    draw_mix,
    mix_images,
    mix_targets,
)
from patchline.pipeline.training.recipe.objectives import build_objective
from patchline.pipeline.training.recipe.optimizer import (
    LossScale,
    averages_itself,
    build_optimizer,
)
from patchline.pipeline.training.recipe.progressive_learning import ProgressiveSize
from patchline.pipeline.training.recipe.schedule import learning_rate
from patchline.pipeline.training.recipe.weight_averaging import MovingAverage
from patchline.pipeline.training.step_plan import StepPlan
from patchline.pipeline.training.train_state import RunningSums, TrainState
from patchline.pipeline.training.training_data import BatchPart
from patchline.plugin_api import ImageSpec, Objective


@dataclass(frozen=True)
class Gradients:
    """What is known of a batch once its gradients are computed; all on the device."""

    loss: torch.Tensor
    """This rank's part of the mean loss per image; the sum over the ranks is the mean."""
    correct: torch.Tensor
    """Number of images of this rank that were classified correctly; 0 without classes, and for sets
    of labels."""
    images: int
    """Number of images in the whole batch."""
    norm: torch.Tensor
    """Global norm of the gradient, before clipping; 0 if it overflows float16, so that the update
    is left out; not finite if the loss of any rank is not."""


class RollbackOnError:
    """Undoes what computing gradients changes, where it fails; weights do not change."""

    def __init__(self) -> None:
        self._copies: list[torch.Tensor] | None = None

    @torch.no_grad()
    def begin(self, state: TrainState) -> None:
        """Copy the buffers of a state, such as batch-norm statistics; on a GPU in one operation."""
        if self._copies is None:
            self._copies = [buffer.clone() for buffer in state.buffers]
        elif self._copies:
            torch._foreach_copy_(self._copies, state.buffers)

    @torch.no_grad()
    def restore(self, state: TrainState) -> None:
        """Restore the buffers, and drop the gradients."""
        if self._copies:
            torch._foreach_copy_(state.buffers, self._copies)
        state.optimizer.zero_grad(set_to_none=True)

    def recover(
        self,
        error: RuntimeError,
        step: TrainStep,
        part: BatchPart,  # noqa: ARG002 - it may be divided
    ) -> Callable[[], None]:
        """Undo a failed attempt, and return what to do before the next one.

        Args:
            error: why it failed.
            step: the step that failed; it uses other kernels once an operation has no deterministic
                one.
            part: the part of the whole batch that was computed.

        Raises:
            RuntimeError: the error itself, if nothing else can be tried.
        """
        self.restore(step.state)
        operation = step.kernels.missing(error)
        if not operation:
            raise error
        return lambda: self.on_missing_kernel(operation)

    def on_missing_kernel(self, operation: str) -> None:
        """Take note of an operation that has no deterministic kernel."""

    def resume(self, step: TrainStep) -> None:
        """Take up what earlier attempts have found out."""


@dataclass(frozen=True)
class TrainStep:
    """How a step of this run is computed, and on which state."""

    state: TrainState
    config: RunConfig
    objective: Objective
    image: ImageSpec
    num_classes: int
    """Number of classes, K; 0 if the objective uses no labels."""
    device: torch.device
    precision: str
    size: ProgressiveSize
    finite: FiniteCheck
    """Check for a loss or a gradient that is not finite."""
    retry: RollbackOnError
    """What happens where gradients cannot be computed as it was begun."""
    ranks: Ranks
    replica: nn.Module | None
    """Module that calls the model and sums its gradients over the ranks; None for the model
    itself."""
    kernels: DeterministicKernels = field(init=False)

    @property
    def counts_correct(self) -> bool:
        """Whether each image has one class, so that its prediction is right or wrong."""
        return bool(self.num_classes) and self.config.data.task != MULTI_LABEL

    def targets_of(self, labels_B: torch.Tensor) -> torch.Tensor:
        """Return class indices as targets of this run: those of sets have one label (B, K)."""
        if self.num_classes and self.config.data.task == MULTI_LABEL:
            return one_hot(labels_B, self.num_classes)
        return labels_B

    def __post_init__(self) -> None:
        """Insist on deterministic kernels; several ranks could not repeat a step together."""
        kernels = DeterministicKernels(self.device, insist=self.ranks.size == 1)
        object.__setattr__(self, "kernels", kernels)

    def compute_gradients(self, batch: Batch, part: BatchPart | None = None) -> Gradients:
        """Compute the gradients of a batch, in micro-batches, and clip them; updates no weight.

        Where that fails for want of memory or of a deterministic kernel, it is undone, and done in
        another way; see `patchline.pipeline.training.out_of_memory`.

        Args:
            batch: the images and targets that this rank has loaded.
            part: the part of the whole batch that it is; None for all of it.

        Raises:
            RunError: if there is not enough memory.
            RanksRestart: if other ranks wait for gradients that need smaller micro-batches.
        """
        state, part = self.state, part or BatchPart.whole(len(batch[1]))
        # With a time limit, the plan is not known before the first step, but a replay knows it.
        progress = state.plan.progress_of(state.step) if state.step else 0.0
        self.retry.begin(state)
        while True:
            try:
                state.optimizer.zero_grad(set_to_none=True)
                with self.kernels.chosen():
                    loss, correct = self._backward(batch, part, progress)
                break
            except RuntimeError as error:  # torch.OutOfMemoryError is one
                change = self.retry.recover(error, self, part)
            # The error is gone here, and with its traceback what the failed attempt had computed.
            change()
        state.loss_scale.unscale(state.parameters)
        norm = state.loss_scale.tolerated(self._clip(state.parameters))
        if self.precision == "float16":  # a gradient may overflow, but no loss, of any rank
            norm = norm + 0.0 * self.ranks.sum(loss)
        return Gradients(loss, correct, part.batch_images, norm)

    def _backward(
        self, batch: Batch, part: BatchPart, progress: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss and the number of correct images of a part."""
        state = self.state
        model = self.replica or state.model
        images_BHWC, targets = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(self.config.seed, state.step, self.ranks.rank))
        inputs_BCHW = self.size.resized(normalize(images_BHWC, self.image), progress)
        mix = draw_mix(self.config.training, self.config.seed, state.step, *inputs_BCHW.shape[-2:])
        shown_B = targets if targets.ndim == 1 else targets.argmax(1)
        if mix is not None:
            inputs_BCHW = mix_images(inputs_BCHW, mix)
            targets = mix_targets(targets, self.num_classes, mix)
            shown_B = dominant_labels(shown_B, mix)
        if part.has_image_before:
            inputs_BCHW, targets, shown_B = inputs_BCHW[1:], targets[1:], shown_B[1:]
        loss, correct = torch.zeros((), device=self.device), torch.zeros_like(shown_B[0])
        *others, last = part.micro_batches(self.micro_batches)
        for micro, share in (*others, last):
            summing = nullcontext() if micro == last[0] else self.ranks.accumulating(model)
            with summing:
                with autocast(self.device, self.precision):
                    outputs = model(inputs_BCHW[micro])
                part_loss = share * self.objective.loss(outputs, targets[micro])
                self._backward_of(state.loss_scale.scaled(part_loss))
            loss = loss + part_loss.detach()
            if self.counts_correct:
                right_B = outputs.detach().argmax(1) == shown_B[micro]
                correct = correct + right_B.sum() * part.counts
        return loss, correct

    def _backward_of(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss, times the number of ranks, of which the mean is taken.

        A loss that is not finite makes all gradients nan, so that all ranks see it.
        """
        factor = self.ranks.size + 0.0 * loss.detach()
        loss.backward(factor)  # type: ignore[no-untyped-call]  # torch leaves it unannotated

    def update(self, gradients: Gradients) -> float:
        """Update the weights and their average, and return the learning rate of the step.

        Raises:
            Diverged: if the loss or the gradient is not finite; see `FiniteCheck`.
        """
        state = self.state
        rate = learning_rate(self.config.optimizer, state.plan.progress_of(state.step))
        rate *= state.rate_factor
        self.finite.check(state.step, rate, gradients.loss, gradients.norm)
        state.sums.add(gradients.loss, gradients.correct, gradients.images)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
        if state.loss_scale.admits_update():
            state.optimizer.step()
        state.step += 1
        self.ranks.average_statistics(state.model)
        if not averages_itself(state.optimizer):
            state.average.update(state.step)
        return rate

    @property
    def micro_batches(self) -> int:
        """The number of micro-batches of the next step."""
        return 1 << self.state.halvings_before_next_step

    def can_halve(self, part: BatchPart) -> bool:
        """Return whether a part of a batch can be divided further."""
        parts = self.micro_batches
        return len(list(part.micro_batches(2 * parts))) > len(list(part.micro_batches(parts)))

    def _clip(self, parameters: list[nn.Parameter]) -> torch.Tensor:
        gradients = [each.grad for each in parameters if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        limit = self.config.optimizer.gradient_clip
        if limit is not None:
            nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return norm


def first_step(
    config: RunConfig,
    image: ImageSpec,
    num_classes: int,
    model: nn.Module,
    precision: str,
    plan: StepPlan,
    *,
    class_weights_K: torch.Tensor | None = None,
    finite: type[FiniteCheck] = FiniteCheck,
    retry: RollbackOnError | None = None,
    ranks: Ranks | None = None,
) -> TrainStep:
    """Return how steps are computed, on the state before the first one.

    Args:
        config: the run's settings.
        image: the format of the images that the model is fed.
        num_classes: number of classes, K; 0 if the objective uses no labels.
        model: the model, on the device of this rank.
        precision: the precision of the computation: float32, bfloat16 or float16.
        plan: the plan of the steps.
        class_weights_K: weight of each class in the loss; None for equal weights.
        finite: the check for a loss or a gradient that is not finite.
        retry: what happens where gradients cannot be computed as it was begun.
        ranks: the ranks that train together; by default, this process is alone.
    """
    settings, ranks, device = config.training, ranks or Ranks(), next(model.parameters()).device
    objective = build_objective(config, image, num_classes, class_weights_K)
    size = ProgressiveSize(settings, image, model)
    model = objective.training_module(model).to(device)
    average = MovingAverage(model, settings.ema_decay)
    model = ranks.synchronised(model)
    state = TrainState(
        model=model,
        average=average,
        optimizer=build_optimizer(config.optimizer, model),
        plan=plan,
        loss_scale=LossScale(precision),
        sums=RunningSums(ranks.sum),
        rate_cuts=list(config.record.rate_cuts),
        halvings=list(config.record.halvings),
    )
    return TrainStep(
        state=state,
        config=config,
        objective=objective,
        image=image,
        num_classes=num_classes,
        device=device,
        precision=precision,
        size=size,
        finite=finite(ranks.sum),
        retry=retry or RollbackOnError(),
        ranks=ranks,
        replica=ranks.replicated(model),
    )


def _step_seed(seed: int, step: int, rank: int) -> int:
    words = [seed, step, rank] if rank else [seed, step]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)
