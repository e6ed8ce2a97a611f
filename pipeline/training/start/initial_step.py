"""Build the step of a training run: model, objective, optimizer, and the state before any step."""

from __future__ import annotations

import torch

from patchline.pipeline.training.faults.divergence import FiniteCheck
from patchline.pipeline.training.faults.out_of_memory import OutOfMemoryRetry
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.length.step_plan import StepPlan
from patchline.pipeline.training.processes.ranks import Ranks
from patchline.pipeline.training.recipe.ema import MovingAverage
from patchline.pipeline.training.recipe.loss_scale import LossScale
from patchline.pipeline.training.recipe.model_schedules import ModelSchedules
from patchline.pipeline.training.recipe.objectives import build_objective
from patchline.pipeline.training.recipe.optimizer import build_optimizer
from patchline.pipeline.training.recipe.progressive_size import ProgressiveSize
from patchline.pipeline.training.running_sums import RunningSums
from patchline.pipeline.training.speed.precision import Chooser, Precision, choose_for_training
from patchline.pipeline.training.start.initial_model import initial_model
from patchline.pipeline.training.train_state import TrainState
from patchline.pipeline.training.train_step import TrainStep
from patchline.pipeline.training.training_data import TrainingData
from patchline.pipeline.workers.event_log import EventWriter


def initial_step(
    job: TrainingJob,
    data: TrainingData,
    plan: StepPlan,
    device: torch.device,
    ranks: Ranks,
    events: EventWriter,
) -> TrainStep:
    """Return the step of a training run that has not begun.

    Args:
        job: of the run, the same on all ranks.
        data: the images may decide the initial weights, and the weights of the classes.
        plan: of the steps.
        device: of this rank.
        ranks: that train together.
        events: gets what is worth knowing of the initial weights and the precision.
    """
    config, image, num_classes = job.config, job.image, len(job.classes)
    settings = config.training
    with ranks.first_before_others(job.folder):
        model = initial_model(job, data, events).to(device)
    chooser = Chooser(config, image, num_classes, model, job.workspace)
    precision = ranks.from_first(
        Precision, lambda: choose_for_training(chooser, job.folder, events)
    ).name
    weights_K = None
    if settings.class_weights == "balanced":
        weights_K = data.class_weights_K().to(device)
        if note := data.note_on_weights():
            events.write("note", message=note)
    objective = build_objective(config, image, num_classes, weights_K)
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
        schedules=ModelSchedules(settings, model),
        finite=FiniteCheck(ranks.sum),
        retry=OutOfMemoryRetry(events, job.folder),
        ranks=ranks,
        replica=ranks.replicated(model),
    )
