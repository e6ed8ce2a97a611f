"""Trial steps on random images, to measure how fast a model trains or predicts.

Shapes: B images of a batch, H height, W width, C channels, K classes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.batches.augmentation import SeededAugmentation
from patchline.pipeline.models.inference import logits_of_batch
from patchline.pipeline.training.device import wait_for
from patchline.pipeline.training.length.step_plan import StepPlan
from patchline.pipeline.training.recipe.ema import MovingAverage
from patchline.pipeline.training.recipe.loss_scale import LossScale
from patchline.pipeline.training.recipe.model_schedules import ModelSchedules
from patchline.pipeline.training.recipe.objectives import build_objective
from patchline.pipeline.training.recipe.optimizer import build_optimizer
from patchline.pipeline.training.recipe.progressive_size import ProgressiveSize
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import TrainStep
from patchline.plugin_api import ImageSpec

AUGMENTATION = "augmentation"
"""Name of that part of a step in torch's profiler."""
_PLANNED_STEPS = 11
"""Over these, the schedules of the model go from their start to their end."""


def trial_steps(
    config: RunConfig,
    image: ImageSpec,
    num_classes: int,
    model: nn.Module,
    precision: str,
    batch: int,
) -> Iterator[float]:
    """Train on random images of full size, and yield the seconds of each step.

    Args:
        config: resolved; its augmentation is part of a step.
        image: the size of the images.
        num_classes: K; 0 if the objective uses no labels.
        model: on its device; it is trained.
        precision: float32, bfloat16 or float16.
        batch: B.
    """
    device = next(model.parameters()).device
    training = config.training.model_copy(update={"initial_image_scale": 1.0})
    config = config.model_copy(update={"training": training})
    objective = build_objective(config, image, num_classes)
    size = ProgressiveSize(config.training, image, model)
    model = objective.training_module(model).to(device)
    step = TrainStep(
        config=config,
        objective=objective,
        image=image,
        num_classes=num_classes,
        device=device,
        precision=precision,
        size=size,
        schedules=ModelSchedules(config.training, model),
    )
    state = TrainState(
        model=model.train(),
        average=MovingAverage(model, config.training.ema_decay),
        optimizer=build_optimizer(config.optimizer, model),
        plan=StepPlan.of_steps(_PLANNED_STEPS),
        loss_scale=LossScale(precision),
    )
    augment = SeededAugmentation(config.augmentation, image, 0)
    generator = np.random.default_rng(0)
    shape = (batch, image.height, image.width, image.channels)
    originals = generator.integers(0, 256, shape, dtype=np.uint8)
    labels_B = torch.from_numpy(generator.integers(0, max(1, num_classes), batch)).to(device)
    targets = step.targets_of(labels_B)
    rows_B = torch.arange(batch, device=device)
    while True:
        began, epoch = time.monotonic(), state.step
        with torch.profiler.record_function(AUGMENTATION):
            single = torch.from_numpy(augment.by_image(originals, epoch, range(batch))).to(device)
            augmented_BHWC = augment.by_batch(single, epoch, rows_B)
        step.compute_gradients(state, (augmented_BHWC, targets))
        step.update_weights(state, config.optimizer.learning_rate)
        wait_for(device)
        yield time.monotonic() - began


def trial_predictions(
    image: ImageSpec, model: nn.Module, precision: str, batch: int
) -> Iterator[float]:
    """Predict random images, and yield the seconds of each batch.

    Args:
        image: the size of the images.
        model: on its device, in evaluation mode.
        precision: float32, bfloat16 or float16.
        batch: B.
    """
    device = next(model.parameters()).device
    generator = np.random.default_rng(0)
    shape = (batch, image.height, image.width, image.channels)
    images_BHWC = torch.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8)).to(device)
    while True:
        began = time.monotonic()
        with torch.inference_mode():
            logits_of_batch(model, images_BHWC, image, precision)
        wait_for(device)
        yield time.monotonic() - began
