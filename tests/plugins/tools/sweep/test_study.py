"""The study: rungs, the order of trials, and what a killed process leaves behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import StorageError
from patchline.pipeline.workspace.tracking import nested_runs, tracked_run
from patchline.pipeline.workspace.tracking.nested_runs import NestedRun
from patchline.pipeline.workspace.tracking.tracked_run import NewRun
from patchline.plugins.tools.sweep.config import compute_expected_epochs, continues, rungs
from patchline.plugins.tools.sweep.search import CLOCK_FILE, SearchClock, check_nothing_lost
from patchline.plugins.tools.sweep.space import SearchSpace, Value, parse_dimension
from patchline.plugins.tools.sweep.study import (
    JOURNAL_FILE,
    Study,
    StudyIdentity,
    StudyOptions,
    Trial,
    TrialRecord,
    best_of,
    open_study,
)

SPACE = SearchSpace(
    dimensions={
        "optimizer.learning_rate": parse_dimension("optimizer.learning_rate", "1e-4..1e-1"),
        "optimizer.name": parse_dimension("optimizer.name", "adamw,muon"),
    }
)
PLAN: dict[str, Value] = {"optimizer.learning_rate": 2e-3, "optimizer.name": "adamw"}
OpenStudy = Callable[..., Study]


@pytest.fixture
def opened(tmp_path: Path) -> OpenStudy:
    """Return a function that opens the study in a folder, as a new process would."""

    def opens(trials: int | None = 6, sampler: str = "tpe") -> Study:
        identity = StudyIdentity(
            name="study", data_fingerprint="d", plan="p", space=SPACE, rungs=(1, 3, 9),
            parent_run_id="r",
        )  # fmt: skip
        options = StudyOptions(
            owner="here:run", storage=None, reduction=3, most_trials=trials,
            sampler=sampler, seed=5,  # type: ignore[arg-type]
        )  # fmt: skip
        return open_study(identity, tmp_path, options)[0]

    return opens


def _train(study: Study, most: int | None = None) -> None:
    """Train trials whose validation metric is their learning rate, as a search does it."""
    done = 0
    while (most is None or done < most) and (trial := study.next()) is not None:
        done += 1
        value = float(trial.record.settings["optimizer.learning_rate"])  # type: ignore[arg-type]
        for epoch in (1, 3):
            if not trial.report(epoch, value, float(epoch)):
                trial.stop(f"not among the best at epoch {epoch}")
                break
        else:
            trial.complete(value, 1 - value, 9.0, 9.0)


def _next(study: Study) -> Trial:
    trial = study.next()
    assert trial is not None
    return trial


def test_rungs_grow_by_the_reduction_and_end_with_the_whole_fit() -> None:
    """At most two before the end, at whole epochs."""
    assert rungs(9, 3) == (1, 3, 9)
    assert rungs(60, 3) == (7, 21, 60)
    assert rungs(1, 3) == (1,)
    assert rungs(20, 2) == (5, 10, 20)


def test_one_of_three_continues_and_the_best_of_fewer() -> None:
    """As in asynchronous successive halving; equal values continue together."""
    assert continues(0.5, [0.5], 3)
    assert not continues(0.5, [0.5, 0.6], 3)
    assert continues(0.5, [0.5, 0.4, 0.3], 3)
    assert continues(0.5, [0.5, 0.6, 0.4, 0.3, 0.2, 0.1], 3)  # two of six
    assert not continues(0.5, [0.5, 0.6, 0.7, 0.3, 0.2, 0.1], 3)
    assert continues(0.5, [0.5, 0.5, 0.5], 3)


def _simulated_epochs(steps: tuple[int, ...], trials: int, values: np.random.Generator) -> int:
    """Return the epochs of one search whose settings make no difference."""
    reached: dict[int, list[float]] = {step: [] for step in steps}
    epochs = 0
    for number in range(trials):
        for step in steps:
            value = float(values.random())
            goes_on = number == 0 or continues(value, reached[step], 3)
            reached[step].append(value)
            if not goes_on:
                break
        epochs += step
    return epochs


@pytest.mark.parametrize("trials", [1, 7, 20])
def test_the_expected_epochs_are_those_of_searches_at_random(trials: int) -> None:
    """The mean of many, within a tenth."""
    steps = (1, 3, 9)
    values = np.random.default_rng(0)
    mean = np.mean([_simulated_epochs(steps, trials, values) for _ in range(300)])
    assert compute_expected_epochs(steps, 3, trials) == pytest.approx(mean, rel=0.1)


def test_the_plan_is_the_first_trial_and_is_never_stopped(opened: OpenStudy) -> None:
    """Even if others are better at its rung."""
    study = opened()
    study.begin(PLAN)
    plan, other = _next(study), _next(study)
    assert plan.record.is_plan
    assert plan.record.settings == PLAN
    assert not other.record.is_plan
    assert other.report(1, 0.9, 1.0)
    assert plan.report(1, 0.1, 1.0)
    assert other.record.number == 1


def test_a_search_that_is_reopened_after_each_trial_tries_the_same(
    opened: OpenStudy, tmp_path: Path
) -> None:
    """What is tried depends on the seed and the trials so far, not on the process."""
    study = opened(8)
    study.begin(PLAN)
    _train(study)
    whole = [(each.settings, each.state) for each in study.records()]
    (tmp_path / JOURNAL_FILE).unlink()
    for _ in range(8):
        again = opened(8)
        again.begin(PLAN)
        _train(again, most=1)
    assert [(each.settings, each.state) for each in opened(8).records()] == whole
    assert len(whole) == 8


def test_a_killed_trial_is_resumed_and_not_repeated(opened: OpenStudy, tmp_path: Path) -> None:
    """It keeps number, settings and rungs; a reported rung is decided as before.

    A line without end is removed: Optuna would append to it, and could then read neither.
    """
    study = opened()
    study.begin(PLAN)
    _train(study, most=2)
    trial = _next(study)
    trial.started("run 3")
    decided = trial.report(1, 0.05, 4.0)
    before = trial.record
    del study, trial  # killed
    with (tmp_path / JOURNAL_FILE).open("ab") as journal:
        journal.write(b'{"op_code": 4, "worker_')
    resumed = _next(opened())
    assert resumed.record == before
    assert [resumed.report(1, 0.99, 8.0) for _ in range(2)] == [decided, decided]
    assert resumed.record.rungs == {1: 0.05}
    assert [each.number for each in opened().records()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'{"op_code":8', b'[]\n{"op_code":8', "is not a JSON object"),
        (b'{"op_code":8', b'{"op_c\n{"op_code":8', "is cut off"),
        (b'"trial_id"', b'"trial"', "its lines contradict each other"),
        (
            b'\\"parent_run_id',
            b'\\"new\\":1,\\"parent_run_id',
            "its identity is not one of this version",
        ),
        (None, None, "it cannot be read"),
    ],
)
def test_a_damaged_journal_is_named_and_kept(
    opened: OpenStudy, tmp_path: Path, old: bytes | None, new: bytes | None, words: str
) -> None:
    """No trial is forgotten for it: the sentence says which line, and what to do."""
    study = opened()
    study.begin(PLAN)
    _train(study, most=2)
    journal = tmp_path / JOURNAL_FILE
    content = journal.read_bytes()
    if old is None or new is None:
        journal.unlink()
        journal.mkdir()
    else:
        assert old in content
        content = content.replace(old, new, 1)
        journal.write_bytes(content)
    with pytest.raises(StorageError, match=f"{words}.*Restore it from a backup"):
        opened()
    assert journal.is_dir() or journal.read_bytes().startswith(content)


def test_a_killed_process_leaves_no_lock(opened: OpenStudy, tmp_path: Path) -> None:
    """With Optuna's own lock, the next process would wait for half a minute."""
    opened()
    script = (
        "import os, sys; from pathlib import Path\n"
        "from patchline.pipeline.workspace.files.file_locks import acquire\n"
        f"lock = acquire(Path({str(tmp_path)!r}) / 'study.lock'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    _train(opened(), most=1)
    assert len(opened().records()) == 1


def test_the_best_is_a_whole_fit_and_of_equals_the_one_with_the_lower_loss(
    opened: OpenStudy,
) -> None:
    """A stopped trial that was better at its rung does not count, nor does a failed one."""
    study = opened(None)
    _next(study).fail("The loss is nan.")
    assert best_of(study.records()) is None
    [record] = study.records()
    assert (record.state, record.reason, record.validation) == ("failed", "The loss is nan.", None)
    for value, loss in ((0.8, 0.5), (0.8, 0.4), (0.7, 0.1)):
        _next(study).complete(value, loss, 9.0, 1.0)
    stopped = _next(study)
    stopped.report(1, 0.95, 1.0)
    stopped.stop("time")
    best = best_of(study.records())
    assert best is not None
    assert best.number == 2


@pytest.mark.parametrize("text", ["", "nan", "-1"])
def test_a_damaged_clock_is_named(tmp_path: Path, text: str) -> None:
    """The time limit would otherwise begin again, or never end."""
    clock = SearchClock(tmp_path, "1h")
    clock.save()
    assert SearchClock(tmp_path, "1h").seconds < 60
    (tmp_path / CLOCK_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(StorageError, match="is damaged: it has to hold the seconds"):
        SearchClock(tmp_path, "1h")


@pytest.mark.usefixtures("own_store")
def test_trials_that_a_study_has_lost_are_noticed(tmp_path: Path) -> None:
    """MLflow has two: one that is finished, and one whose process was killed."""
    search = NewRun(experiment="e", name="search", command="patchline sweep", params={}, tags={})
    records = [TrialRecord(number=number, settings={}, state="unfinished") for number in (0, 1, 2)]
    complete = records[0].model_copy(update={"state": "complete"})
    with tracked_run.open_run(search, tmp_path / "runs") as parent:
        for number in (0, 1):
            trial = NestedRun(f"trial {number}", "trials", "patchline sweep (trial)", "e", "t")
            with (
                suppress(KeyboardInterrupt),
                nested_runs.open_nested_run(parent, trial, RunConfig()),
            ):
                if number:
                    raise KeyboardInterrupt
        check_nothing_lost(parent, [complete, *records[1:]], "study.jsonl")
        for left, lost in (([], "trial 0, trial 1"), ([complete], "1"), (records, "0")):
            with pytest.raises(StorageError, match=rf"study\.jsonl has lost .*{lost}, which"):
                check_nothing_lost(parent, left, "study.jsonl")
