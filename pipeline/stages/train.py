"""Train the model: once, or with folds or a refit several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.models.model_description import WEIGHTS_FILE
from patchline.pipeline.models.time_after_training import fixed_seconds
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.planning.time_shares import training_share
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.training.config import duration_seconds, with_changes
from patchline.pipeline.training.distillation.job import Taught
from patchline.pipeline.training.distillation.teacher import Teacher
from patchline.pipeline.training.initial_weights.recipe import display_name
from patchline.pipeline.training.job import TRAINING, TeacherPredictions
from patchline.pipeline.training.machine import resources_of
from patchline.pipeline.training.parts import launching, run_parts
from patchline.pipeline.training.parts.launching import TrainingInputs, job_of
from patchline.pipeline.training.parts.run_parts import RunParts
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_process import prewarm_before_the_end
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun

_REHEARSED_STEPS = 2


@dataclass(frozen=True)
class Train(Stage[TrainResult]):
    """Leaves the weights. The settings then say what the machine decided, so that they replay.

    Each training of the run has a record of its own
    (`patchline.pipeline.training.parts.launching`), so that a run which is killed repeats no
    finished fold.
    """

    name = run_parts.STAGE
    task = "Train the model"
    output = TrainResult
    worker = TRAINING
    code = TRAINING.code
    rehearsal = f"Training {_REHEARSED_STEPS} steps"

    prepared: PreparedData
    data: IngestedData
    teacher: Teacher | None
    taught: Taught | None
    run: TrackedRun

    @property
    def predictions(self) -> TeacherPredictions | None:
        """What the teacher has predicted, if there is one."""
        if self.teacher is None or self.taught is None:
            return None
        return TeacherPredictions(
            file=self.taught.file.resolve(),
            splits=self.taught.splits,
            weights=self.teacher.folder.resolve() / WEIGHTS_FILE,
            name=self.teacher.name,
        )

    def title(self) -> str:
        """Return what is trained, and for how long."""
        return f"Training {recipe(self.config)}"

    def task_run(self) -> str:
        """Return what is trained, and for how long."""
        return f"Train {recipe(self.config)}"

    def compute(self) -> TrainResult:
        """Train in separate processes; towards the end, the later stages' workers start."""
        on_event, note = self.context.reporting.event, self.context.reporting.note
        follow = prewarm_before_the_end(on_event, self.context.next_workers)
        needs = TrainingInputs(
            self.config,
            self.data,
            self.prepared,
            self.run,
            self.context.memory,
            on_event,
            self.predictions,
            self._share_of_limit(),
        )
        return RunParts(needs, note, on_last_event=follow).train()

    def _share_of_limit(self) -> float:
        """Return which part of the time limit is left for the training."""
        plan, limit = self.context.find(Plan), self.config.training.time_limit
        if limit is None:
            return 1.0
        after = plan.shares.after if plan and plan.shares else fixed_seconds()
        return training_share(duration_seconds(limit), self.context.elapsed + after)

    def rehearse(self) -> TrainResult:
        """Train two steps, of the first training."""
        training, note = self.config.training, self.context.reporting.note
        for worker in self.context.next_workers:
            worker.prewarm()
        if training.is_repeated:
            note("folds and a refit repeat this fit and are not rehearsed")
        config = with_changes(
            self.config,
            training={"time_limit": None},
            record={"step_plan": ((0, 0.0, _REHEARSED_STEPS),)},
        )
        folder = self.run.folder / "training"
        own = (config, self.data, self.prepared, folder, self.run.run_id)
        changes: dict[str, Any] = {"teacher": self.predictions}
        if training.trainable == "head":
            # Features that are stored there would not say how long it takes to compute them.
            changes["workspace"] = None
        job = job_of(*own, self.context.workspace).model_copy(update=changes)

        def show(event: Event) -> None:
            if event["kind"] == "warning":  # the progress of two steps is not worth a line
                self.context.reporting.event(event)

        return TRAINING.run(job.folder, job, show, resources_of(config.training))

    def reuse(self) -> str:
        """Return what is used again; a time limit may have allowed more on another day."""
        limit = self.config.training.time_limit
        what = f"its training (also limited to {limit}) is" if limit else "its training is"
        return f"{what} used again; `patchline run --fresh` computes everything again"

    def after(self, result: TrainResult) -> None:
        """Let the settings say what the machine decided."""
        self.context.config = launching.replayable(self.config, result)

    def tags(self, result: TrainResult) -> dict[str, str]:
        """Return how the final weights were made."""
        return {**run_parts.tags(result), **launching.machine_tags(result)}

    def log(self, result: TrainResult, run: TrackedRun) -> None:
        """Log the settings that reproduce the weights."""
        launching.log_config(self.config, run)


def recipe(config: RunConfig) -> str:
    """Return what is trained, and for how long."""
    if config.training.trainable == "head":
        head = f"the head of {' with '.join(config.model.names)} on frozen features"
        return f"{head}{_describe_repeats(config)}"
    if config.training.trainable == "last_blocks":
        blocks = config.training.last_blocks
        last = f"the last {blocks} blocks of " if blocks != 1 else "the last block of "
        return f"the head, then {last if blocks else 'the norm of '}{_of_all_weights(config)}"
    if config.training.teacher:
        return f"{_of_all_weights(config)}, taught by {display_name(config.training.teacher)}"
    if config.objective.name != "supervised":
        return f"{_of_all_weights(config)}, objective {config.objective.name}"
    return _of_all_weights(config)


def _of_all_weights(config: RunConfig) -> str:
    epochs, limit = config.training.epochs_without_limit, config.training.time_limit
    length = f"the rest of {limit}" if limit else f"{epochs} epoch{'' if epochs == 1 else 's'}"
    if config.record.step_plan:
        length = f"{config.record.step_plan[-1][2]} steps"
    return f"{' with '.join(config.model.names)} for {length}{_describe_repeats(config)}"


def _describe_repeats(config: RunConfig) -> str:
    """Return what follows the first training; nothing for an ordinary run."""
    if config.training.folds is not None:
        final = "their ensemble" if config.training.final_model == "ensemble" else "a refit"
        return f", {config.training.folds} folds and {final}"
    return ", then a refit" if config.training.is_repeated else ""
