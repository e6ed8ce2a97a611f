"""The trials of a search as Prefect tasks, one after the other or several at a time."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed
from prefect.utilities.annotations import quote

from patchline.flows.progress.progress_display import display
from patchline.flows.training.stage_tasks import training_tags, watched_slots
from patchline.pipeline.errors import RunError
from patchline.pipeline.markdown import render_markdown
from patchline.pipeline.training.parts import launching
from patchline.pipeline.workers import worker_process
from patchline.pipeline.workers.event_log import Event
from patchline.plugins.tools.sweep import search
from patchline.plugins.tools.sweep.search import (
    SearchClock,
    TrialInputs,
    epochs_words,
    trial_name,
)
from patchline.plugins.tools.sweep.study import Study, Trial, TrialRecord, best_of

_FAILURES = 3
"""The search ends if so many trials have failed, and no other outcome is known."""
_OTHERS_SECONDS = 5.0
"""Between two looks at the trials of other machines."""
_STATE_NAMES = {"complete": "Completed", "stopped": "Stopped", "failed": "Trial failed"}


@dataclass(frozen=True)
class TrialTasks:
    """The trials of a search that this process trains.

    Args:
        study: of the search.
        inputs: shared by all trials.
        clock: of the search.
        workers: trials at a time.
        after: called after each trial.
    """

    study: Study
    inputs: TrialInputs
    clock: SearchClock
    workers: int
    after: Callable[[], None]

    def run(self) -> None:
        """Train trials until there are enough, or the time is over.

        Raises:
            RunError: if the first trials all fail.
        """
        if self.workers == 1:
            self._until_the_end()
            return
        with worker_process.cancellable() as cancelled, ThreadPoolExecutor(self.workers) as pool:
            loops = [
                pool.submit(contextvars.copy_context().run, self._until_the_end)
                for _ in range(self.workers)
            ]
            try:
                for loop in as_completed(loops):
                    loop.result()
            except BaseException:
                cancelled.set()
                raise

    def _until_the_end(self) -> None:
        while not self.clock.is_over:
            worker_process.check_cancelled()
            trial = self.study.next()
            if trial is None:
                return
            self._train(trial)

    def _train(self, trial: Trial) -> None:
        number = trial.record.number
        tags = training_tags(self.inputs.plan)
        name = trial_name(trial.record)
        run: Any = task(
            name="Train a trial",
            task_run_name=name,
            description="Train one choice of settings from rung to rung.",
            cache_policy=NO_CACHE,
            tags=tags,
        )
        display().note(name)
        with trial.alive(), watched_slots(tags) as begun:
            run(self._function(begun.set))(quote(trial))
        record = self.study.record(number)
        self._check_failures()
        display().note(f"trial {number}: {outcome_words(record, self.study.records())}")
        self.after()

    def _function(self, begin: Callable[[], None]) -> Callable[[Trial], State[Any]]:
        def train_a_trial(trial: Trial) -> State[Any]:
            begin()
            search.train_trial(trial, self.inputs, self.clock, self._show)
            record = trial.record
            words = outcome_words(record, self.study.records())
            return Completed(name=_STATE_NAMES.get(record.state), message=words)

        return train_a_trial

    def _show(self, event: Event) -> None:
        """Show warnings, and the progress of a trial that trains alone."""
        if event["kind"] == "warning" and not launching.resumes(event):
            display().note(event["message"])
        elif event["kind"] == "progress" and event["unit"] == "step" and self.workers == 1:
            beside = f"epoch {event['epoch']:,}, {event['images_per_second']:,.0f} images/s"
            display().advance("Training", event["done"], event["total"], beside, unit="steps")

    def _check_failures(self) -> None:
        ended = [each for each in self.study.records() if each.state != "unfinished"]
        if len(ended) >= _FAILURES and all(each.state == "failed" for each in ended):
            raise RunError(
                f"The first {len(ended)} trials failed, the last one because: {ended[-1].reason} "
                "Change the settings or the search space."
            )


def wait_for_others(study: Study) -> None:
    """Wait for the trials that other machines still train; one that has fallen silent has none."""
    said = False
    while study.alive_elsewhere():
        if not said:
            display().note("waiting for the trials of other machines")
            said = True
        time.sleep(_OTHERS_SECONDS)


def outcome_words(record: TrialRecord, records: list[TrialRecord]) -> str:
    """Return the outcome of a trial, for a line in the terminal.

    Args:
        record: of the trial.
        records: of all trials.
    """
    best = best_of(records)
    is_best = best is not None and best.number == record.number
    return render_markdown(
        "outcome.md.j2", __package__, record=record, is_best=is_best, epochs=epochs_words
    )
