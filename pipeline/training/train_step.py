"""One training step: the gradients of a batch, then an update of the weights and their average.

Dropout and stochastic depth depend only on (seed, step), so a resumed run repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from pipeline.config import RunConfig
from pipeline.data.loader import Batch
from pipeline.errors import RunError
from pipeline.models.inference import normalised
from pipeline.plugin_api import ImageSpec
from pipeline.training.losses import training_loss
from pipeline.training.mixing import dominant_labels, draw_mix, mixed_images, mixed_targets
from pipeline.training.progressive_size import ProgressiveSize
from pipeline.training.train_state import TrainState


@dataclass(frozen=True)
class TrainStep:
    """How a step of this run is computed."""

    config: RunConfig
    image: ImageSpec
    device: torch.device
    precision: str
    size: ProgressiveSize

    def compute_gradients(self, state: TrainState, batch: Batch) -> None:
        """Compute the gradients of a batch and clip them; adds its loss to the state's sums.

        Raises:
            RunError: if the loss is not finite; no weight has changed then.
        """
        images_BHWC, labels_B = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        torch.manual_seed(_step_seed(self.config.seed, state.step))
        progress = state.plan.progress_of(state.step)
        inputs_BCHW = self.size.resized(normalised(images_BHWC, self.image), progress)
        targets = labels_B
        mix = draw_mix(self.config.training, self.config.seed, state.step, *inputs_BCHW.shape[-2:])
        if mix is not None:
            inputs_BCHW = mixed_images(inputs_BCHW, mix)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
            logits_BK = state.model(inputs_BCHW)
        if mix is not None:
            targets = mixed_targets(labels_B, logits_BK.shape[1], mix)
            labels_B = dominant_labels(labels_B, mix)
        loss = training_loss(logits_BK, targets, self.config.training)
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        correct = int((logits_BK.detach().argmax(1) == labels_B).sum())
        self._check_finite(float(loss.detach()), state.step)
        state.sums.add(float(loss.detach()), correct, len(labels_B))
        if self.config.optimizer.gradient_clip is not None:
            nn.utils.clip_grad_norm_(state.model.parameters(), self.config.optimizer.gradient_clip)

    def update_weights(self, state: TrainState, learning_rate: float) -> None:
        """Apply the gradients with a learning rate, and update the moving average."""
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate
        state.optimizer.step()
        state.step += 1
        state.average.update(state.model, state.step)

    def _check_finite(self, loss: float, step: int) -> None:
        if not np.isfinite(loss):
            raise RunError(
                f"The loss became {loss} at step {step + 1}, so training was stopped. Lower "
                "optimizer.learning_rate, or set training.precision to float32."
            )


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0] >> 1)
