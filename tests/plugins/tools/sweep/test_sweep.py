"""A search on the digits from end to end, killed while it trains."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from patchline.pipeline.workspace.tracking.nested_runs import FINAL
from tests.conftest import patchline_here
from tests.flows.training.runs import Begun, store_of
from tests.made.servers import Command

SETTINGS = (
    "sweep --preset none --training.epochs 3 --training.threads 1 --training.precision float32 "
    "--model.size micro --model.depth 2 --evaluation.explanations=false "
    "--promotion.no-package-check --sweep.seeds 2 --sweep.trials 3 "
    "--sweep.workers 2 --training.batch-size 32 --optimizer.learning-rate 1e-5 "
    "--sweep.space.optimizer.learning-rate 1e-5..1 --sweep.space.training.mixup 0..0.4"
)
"""A plan that hardly learns, so that another trial is the best one."""


@pytest.mark.slow
@pytest.mark.usefixtures("shared_prefect")
def test_a_search_that_is_killed_trains_no_trial_twice(tmp_path: Path) -> None:
    """SIGKILL while two of three trials train: one run for each, honest at the end.

    When the study is lost, the search does not begin again: MLflow has the trials, and the sentence
    says what to restore.
    """
    begun, trials = Begun(tmp_path, SETTINGS), ".patchline/runs/*/trials/*/training/events.jsonl"
    begun.wait_until(lambda: len(list(tmp_path.glob(trials))) == 2)
    assert begun.end() == -signal.SIGKILL
    [run] = tmp_path.glob(".patchline/runs/*")
    (run / "study.jsonl").rename(run / "lost.jsonl")
    refused = patchline_here("sweep --resume last", cwd=tmp_path)
    assert refused.code == 1, refused.err
    assert "study.jsonl has lost trial 0, trial 1, " in refused.err
    assert "Restore the study from a backup, or start a new search" in refused.err
    assert len(list(run.glob("trials/*"))) == 2
    (run / "lost.jsonl").rename(run / "study.jsonl")
    done = patchline_here("sweep --resume last --json", cwd=tmp_path)
    assert done.code == 0, done.err
    summary, client = done.json, store_of(tmp_path)
    experiment = client.get_experiment_by_name("digits")
    assert experiment
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if run.info.run_id == summary["run_id"])
    nested = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {parent.info.run_id}
    assert {run.info.status for run in runs} == {"FINISHED"}
    keys = Counter(run.data.tags["patchline.nested"] for run in nested)
    assert set(keys.values()) == {1}
    assert sum(key.startswith("trial ") for key in keys) == summary["trials"] == 3
    table = summary["trial_table"]
    assert [each["number"] for each in table] == [0, 1, 2]
    assert {each["state"] for each in table} <= {"complete", "stopped"}
    assert table[0]["is_plan"]
    for each in nested:  # each validation was logged once, whatever was killed in between
        history = client.get_metric_history(each.info.run_id, "validation/accuracy")
        steps = [metric.step for metric in history]
        assert steps == sorted(set(steps))
    fits = [(each["kind"], each["seed"]) for each in summary["final_fits"]]
    assert sorted(fits) == [("best", 1), ("best", 2), ("plan", 1), ("plan", 2)]
    assert summary["gain"]["value"] > 0
    complete = [each["validation"] for each in table if each["state"] == "complete"]
    assert summary["best"]["validation"] == max(complete)
    assert summary["metrics"]["test/accuracy"]["n"] == summary["gain"]["n"]
    [version] = client.search_model_versions("name='digits'")
    assert version.run_id == summary["registered_run_id"]
    source = "patchline sweep (final fit)"
    finals = [each for each in nested if each.data.tags["mlflow.source.name"] == source]
    assert all(each.data.tags["patchline.nested"].startswith(FINAL) for each in finals)
    ids = [each.info.run_id for each in finals]
    with_data = [each for each in ids if client.list_artifacts(each, "data")]
    assert with_data == [version.run_id]  # later data is compared with that of this run
    artifacts = {each.path for each in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report/report.html", "report/history.png", "report/sweep.json"} <= artifacts
    result = json.loads((Path(summary["report"]).parent / "sweep.json").read_text("utf-8"))
    assert len(result["trials"]) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--sweep.space.data.image-size 16,32", "--sweep.space.data.image-size"),
        ("--sweep.storage sqlite:///x.db", "PostgreSQL"),
        ("--training.folds 3", "training.folds is 3"),
        ("--preset none --training.time-limit 5m", "--sweep.time-limit"),
        ("--objective.name mae", "uses no labels"),
        ("--resume last --seed 2", "cannot be combined with --resume"),
        ("--sweep.space nowhere.yaml", "nowhere.yaml does not exist"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_one_sentence(
    run_here: Command, tmp_path: Path, arguments: str, words: str
) -> None:
    """Exit code 2, before anything is trained."""
    assert words in run_here.refusal(f"sweep {arguments}")
    assert not list(tmp_path.glob(".patchline/runs/*"))


@pytest.mark.slow
def test_a_dry_run_tells_what_would_be_searched_and_trains_nothing(tmp_path: Path) -> None:
    """Plan, space, rungs and time; neither a run nor a database is left."""
    arguments = ["sweep", "--dry-run", "--training.epochs", "9", "--sweep.trials", "7"]
    done = patchline_here(*arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    for words in ("model: ", "optimizer.learning_rate", "7 trials", "6 final fits", "takes"):
        assert words in done.out
    found = patchline_here(*arguments, "--preset", "none", "--json", cwd=tmp_path).json
    assert (found["trials"], found["rungs"]) == (7, [1, 3, 9])
    assert not (tmp_path / ".patchline/runs").exists()
    assert not (tmp_path / "mlflow.db").exists()
