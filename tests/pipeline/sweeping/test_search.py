"""What a search that is resumed makes sure of."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import StorageError
from patchline.pipeline.sweeping.search import CLOCK_FILE, SearchClock, check_nothing_lost
from patchline.pipeline.sweeping.study import TrialRecord
from patchline.pipeline.tracking import nested_runs, tracked_run
from patchline.pipeline.tracking.nested_runs import NestedRun
from patchline.pipeline.tracking.tracked_run import NewRun


def _record(number: int, state: Literal["complete", "unfinished"]) -> TrialRecord:
    return TrialRecord(number=number, settings={}, state=state)


@pytest.mark.usefixtures("own_store")
def test_trials_that_a_study_has_lost_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow has two: one that is finished, and one whose process was killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    search = NewRun(experiment="e", name="search", command="patchline sweep", params={}, tags={})
    with tracked_run.open_run(search, tmp_path / "runs") as parent:
        for number in (0, 1):
            trial = NestedRun(f"trial {number}", "trials", "patchline sweep (trial)", "e", "t")
            with suppress(KeyboardInterrupt), nested_runs.nested_run(parent, trial, RunConfig()):
                if number:
                    raise KeyboardInterrupt
        whole = [_record(0, "complete"), _record(1, "unfinished")]
        check_nothing_lost(parent, whole, "study.jsonl")
        check_nothing_lost(parent, [*whole, _record(2, "unfinished")], "study.jsonl")
        for left, lost in (([], "trial 0, trial 1"), (whole[:1], "trial 1"),
                           ([_record(0, "unfinished"), whole[1]], "trial 0")):  # fmt: skip
            with pytest.raises(StorageError, match=rf"study\.jsonl has lost {lost}, which MLflow"):
                check_nothing_lost(parent, left, "study.jsonl")


@pytest.mark.parametrize("text", ["", "nan", "-1"])
def test_a_damaged_clock_is_named(tmp_path: Path, text: str) -> None:
    """The time limit would otherwise begin again, or never end."""
    clock = SearchClock(tmp_path, "1h")
    clock.save()
    assert SearchClock(tmp_path, "1h").seconds < 60
    (tmp_path / CLOCK_FILE).write_text(text, encoding="utf-8")
    with pytest.raises(StorageError, match="is damaged: it has to hold the seconds"):
        SearchClock(tmp_path, "1h")
