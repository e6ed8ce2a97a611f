"""A whole training step, from a batch to new weights.

The loop does it, and so do trial steps, so that what is measured is what training takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from patchline.pipeline.data.batches.loader import Batch
from patchline.pipeline.training.faults.divergence import FiniteCheck
from patchline.pipeline.training.processes.batch_parts import BatchPart
from patchline.pipeline.training.recipe.schedule import learning_rate
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import Gradients, TrainStep


@dataclass(frozen=True)
class WholeStep:
    """Compute gradients, check and count them, and update the weights.

    Attributes:
        step: how gradients are computed and applied.
        gradients: computes them, whatever it does where that fails.
        finite: notices those that are not finite.
    """

    step: TrainStep
    gradients: Callable[[Batch, BatchPart], Gradients]
    finite: FiniteCheck

    def do(
        self,
        state: TrainState,
        batch: Batch,
        part: BatchPart,
        before_update: Callable[[], None] | None = None,
    ) -> float:
        """Do one step, and return its learning rate.

        Args:
            state: is changed.
            batch: what this rank has loaded.
            part: of the whole batch that this is.
            before_update: called between the gradients and the update.

        Raises:
            Diverged: if the loss or the gradient is not finite; see `FiniteCheck`.
        """
        gradients = self.gradients(batch, part)
        if before_update:
            before_update()
        scheduled = learning_rate(self.step.config.optimizer, state.plan.progress_of(state.step))
        rate = scheduled * state.rate_factor
        self.finite.check(state.step, rate, gradients)
        state.sums.add(gradients.loss, gradients.correct, gradients.images)
        self.step.update_weights(state, rate)
        return rate
