"""The refit: the training again, on the training and validation images together.

It follows the plan of the first training, epoch for epoch, and ends where the best weights of the
first training were. There is no image left to validate on, so the last weights are kept.
"""

from __future__ import annotations

from pathlib import Path

from patchline.pipeline.training.checkpoints.checkpoint import PREVIOUS
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.recipe.optimizer import averages_itself
from patchline.pipeline.training.train_result import RefitResult
from patchline.pipeline.training.trained_model import save_model_of

_WEIGHTS = "weights"


class Refit(Training):
    """A training without validation, from a job to a result."""

    def refit(self) -> RefitResult:
        """Train to the end of the plan, and return the folder of the last weights."""
        self.train_to_the_end()
        folder = self.job.folder / _WEIGHTS
        if self.ranks.is_first:
            self._save(folder)
        return self.result_of(folder)

    def result_of(self, folder: Path) -> RefitResult:
        """Return the result of the finished training, with its weights in a folder."""
        state = self.state
        return RefitResult(
            weights=folder,
            images=len(self.data.training.rows),
            steps=state.step,
            epochs=state.step / self.length.steps_per_epoch,
            seconds=self.clock.elapsed,
            images_per_second=state.sums.total_images / max(state.training_seconds, 1e-9),
        )

    def _save(self, folder: Path) -> None:
        state = self.state
        (self.job.folder / PREVIOUS).unlink(missing_ok=True)
        if self.last_weights.count is None:
            save_model_of(self.job, state.average.model, folder)
        else:
            ends = range(self.length.steps_per_epoch, state.step, self.length.steps_per_epoch)
            steps = [*ends, state.step][-self.last_weights.count :]
            self.last_weights.save_average(steps, state.average.model, folder, self.data, self.job)

    def _validate(self, *, last: bool = False) -> None:  # noqa: ARG002 - as the loop calls it
        """Report the end of an epoch; called by the loop where other fits validate.

        It is no restart point: a refit that diverges restarts from the beginning.
        """
        self.step.finite.settle()
        state = self.state
        self._count_training_time(self.clock.read())
        if averages_itself(state.optimizer):
            state.average.take_averaged(state.model, state.optimizer)
        values = {
            "refit/loss": state.sums.mean_loss,
            **({"refit/accuracy": state.sums.accuracy} if self.step.counts_correct else {}),
            "refit/learning_rate": self.learning_rate,
            "refit/epoch": state.step / self.length.steps_per_epoch,
        }
        state.sums.next_epoch()
        if self.ranks.is_first:
            self.last_weights.add(state.step, state.average.model)
        self.events.write("metrics", step=state.step, values=values)
        self.clock.read()
        if self.checkpoints.is_due or not self.checkpoints.exist:
            self._write_checkpoint()
