"""A search on the digits from end to end, killed several times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from patchline.pipeline.tracking.nested_runs import FINAL_FIT
from tests import postgres_server
from tests.conftest import PATCHLINE, Finished, patchline, patchline_here
from tests.patience import patient

SETTINGS = [
    "--preset", "none", "--training.epochs", "4", "--training.threads", "1",
    "--training.precision", "float32", "--model.size", "micro", "--model.depth", "2",
    "--sweep.trials", "5", "--sweep.seeds", "2", "--sweep.first-rung", "1",
    "--sweep.space.optimizer.learning-rate", "1e-3..1e-2",
    "--sweep.space.training.mixup", "0..0.4",
]  # fmt: skip
_SECONDS = patient(300.0)


def _run_folder(folder: Path) -> Path | None:
    runs = folder / ".patchline/runs"
    return next(iter(runs.iterdir()), None) if runs.is_dir() else None


def _has(pattern: str, at_least: int = 1) -> Callable[[Path], bool]:
    return lambda run: len(list(run.glob(pattern))) >= at_least


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "in the first trial": _has("trials/*/training/events.jsonl"),
    "in the second trial": _has("trials/*/training/events.jsonl", 2),
    "in the third trial": _has("trials/*/training/events.jsonl", 3),
    "in a final fit": _has("finals/*/training/events.jsonl"),
    "while the test images are read": _has("finals/*/prediction/job.json"),
}


def _kill(moment: str, folder: Path, *arguments: str) -> None:
    """Start `patchline sweep`, and kill it with SIGKILL when the moment has come."""
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [str(PATCHLINE), "sweep", *arguments], cwd=folder, stdout=said, stderr=said
        )
    deadline = time.monotonic() + _SECONDS
    while not ((run := _run_folder(folder)) and MOMENTS[moment](run)):
        words = (folder / "said.txt").read_text("utf-8")
        assert process.poll() is None, words
        assert time.monotonic() < deadline, words
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(patient(1200))
def test_a_search_that_is_killed_four_times_trains_no_trial_twice(tmp_path: Path) -> None:
    """Killed four times: the same trials as undisturbed, one run for each, honest at the end."""
    from mlflow import MlflowClient

    first, *others = MOMENTS
    _kill(first, tmp_path, *SETTINGS)
    for moment in others:
        _kill(moment, tmp_path, "--resume", "last")
    done = patchline("sweep", "--resume", "last", "--json", cwd=tmp_path)
    assert done.code == 0, done.err
    summary = done.json
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [experiment] = [e for e in client.search_experiments() if e.name == "digits"]
    runs = client.search_runs([experiment.experiment_id])
    parent = next(run for run in runs if run.info.run_id == summary["run_id"])
    nested = [run for run in runs if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} == {parent.info.run_id}
    assert {run.info.status for run in runs} == {"FINISHED"}
    keys = Counter(run.data.tags["patchline.nested"] for run in nested)
    assert set(keys.values()) == {1}
    assert sum(key.startswith("trial ") for key in keys) == summary["trials"] == 5
    assert [each["number"] for each in summary["trial_table"]] == [0, 1, 2, 3, 4]
    assert summary["trial_table"][0]["is_plan"]
    for run in nested:  # each validation was logged once, whatever was killed in between
        history = client.get_metric_history(run.info.run_id, "validation/accuracy")
        steps = [metric.step for metric in history]
        assert steps == sorted(set(steps))
    seeds = {each["seed"] for each in summary["final_fits"]}
    assert seeds == {1, 2}
    assert summary["best"]["validation"] == max(
        each["validation"] for each in summary["trial_table"] if each["state"] == "complete"
    )
    assert summary["metrics"]["test/accuracy"]["n"] == summary["gain"]["n"]
    [version] = client.search_model_versions("name='digits'")
    assert version.run_id == summary["registered_run_id"]
    with_data = [
        run.info.run_id
        for run in nested
        if run.data.tags["mlflow.source.name"] == FINAL_FIT
        and client.list_artifacts(run.info.run_id, "data")
    ]
    assert with_data == [version.run_id]  # later data is compared with that of this run
    artifacts = {each.path for each in client.list_artifacts(parent.info.run_id, "report")}
    assert {"report/report.html", "report/history.png", "report/sweep.json"} <= artifacts
    assert "trials.json" in {each.path for each in client.list_artifacts(parent.info.run_id)}
    result = json.loads((Path(summary["report"]).parent / "sweep.json").read_text("utf-8"))
    assert len(result["trials"]) == 5


@pytest.mark.slow
@pytest.mark.timeout(patient(600))
def test_a_search_whose_trials_are_lost_does_not_begin_again(tmp_path: Path) -> None:
    """MLflow has them, and the sentence says what to restore."""
    _kill("in the second trial", tmp_path, *SETTINGS)
    run = _run_folder(tmp_path)
    assert run is not None
    (run / "study.jsonl").unlink()
    done = patchline("sweep", "--resume", "last", cwd=tmp_path)
    assert done.code == 1, done.err
    assert "study.jsonl has lost trial 0, trial 1, " in done.err
    assert "Restore the study from a backup, or start a new search" in done.err
    assert len(list(run.glob("trials/*"))) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep.space.data.image-size", "16,32"], "--sweep.space.data.image-size"),
        (["--sweep.space.optimizer.lerning-rate", "1..2"], "lerning-rate"),
        (["--sweep.space.optimizer.learning-rate", "0.1"], "leaves nothing to choose"),
        (["--sweep.trials", "0"], "sweep.trials"),
        (["--sweep.storage", "sqlite:///x.db"], "PostgreSQL"),
        (["--training.folds", "3"], "training.folds is 3"),
        (["--preset", "none", "--training.time-limit", "5m"], "--sweep.time-limit"),
        (["--objective.name", "mae"], "uses no labels"),
        (["--resume", "last", "--seed", "2"], "cannot be combined with --resume"),
        (["--sweep.space", "nowhere.yaml"], "nowhere.yaml does not exist"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_one_sentence(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """Exit code 2, before anything is trained."""
    done = patchline_here("sweep", *arguments, cwd=tmp_path)
    assert done.code == 2, done.err
    [sentence] = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert words in sentence
    assert "Traceback" not in done.err
    assert not list(tmp_path.glob(".patchline/runs/*"))


@pytest.mark.slow
def test_a_dry_run_tells_what_would_be_searched_and_trains_nothing(tmp_path: Path) -> None:
    """Plan, space, rungs and time; neither a run nor a database is left."""
    arguments = ("sweep", "--dry-run", "--training.epochs", "9", "--sweep.trials", "7")
    done = patchline(*arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    for words in (
        "model: ",
        "optimizer.learning_rate",
        "7 trials",
        "6 final fits",
        "training takes",
    ):
        assert words in done.out
    found = patchline(*arguments, "--json", cwd=tmp_path).json
    assert found["trials"] == 7
    assert found["rungs"] == [1, 3, 9]
    assert found["seconds_per_epoch"] > 0
    assert not (tmp_path / ".patchline/runs").exists()
    assert not (tmp_path / "mlflow.db").exists()


def _interrupt(moment: str, folder: Path, number: int, *arguments: str) -> None:
    """Start `patchline sweep`, send it a signal at a moment, and see that no process is left."""
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [str(PATCHLINE), "sweep", *arguments],
            cwd=folder,
            stdout=said,
            stderr=said,
            start_new_session=True,
            # A shell lets what it starts in the background ignore SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads yet
        )
    deadline = time.monotonic() + _SECONDS
    while not ((run := _run_folder(folder)) and MOMENTS[moment](run)):
        assert process.poll() is None, (folder / "said.txt").read_text("utf-8")
        assert time.monotonic() < deadline, (folder / "said.txt").read_text("utf-8")
        time.sleep(0.02)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait(_SECONDS) != 0
    _, alive = psutil.wait_procs(family, timeout=patient(20.0))
    assert not alive, [each.cmdline() for each in alive]


@pytest.mark.slow
@pytest.mark.timeout(patient(1200))
def test_signals_with_two_workers_lose_nothing_and_leave_nothing_alive(tmp_path: Path) -> None:
    """SIGTERM while two trials train, SIGINT later; resumed, each trial has one run and one end."""
    from mlflow import MlflowClient

    _interrupt("in the second trial", tmp_path, signal.SIGTERM, *SETTINGS, "--sweep.workers", "2")
    _interrupt("in the third trial", tmp_path, signal.SIGINT, "--resume", "last")
    done = patchline("sweep", "--resume", "last", "--json", cwd=tmp_path, timeout=600)
    assert done.code == 0, done.err
    summary = done.json
    assert [each["number"] for each in summary["trial_table"]] == [0, 1, 2, 3, 4]
    assert {each["state"] for each in summary["trial_table"]} <= {"complete", "stopped"}
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    [experiment] = [e for e in client.search_experiments() if e.name == "digits"]
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.status for run in runs} == {"FINISHED"}
    keys = Counter(run.data.tags.get("patchline.nested", "search") for run in runs)
    assert set(keys.values()) == {1}
    for run in runs:
        history = client.get_metric_history(run.info.run_id, "validation/accuracy")
        steps = [metric.step for metric in history]
        assert steps == sorted(set(steps))


@pytest.mark.slow
@pytest.mark.timeout(patient(1200))
@pytest.mark.skipif(bool(postgres_server.missing()), reason=postgres_server.missing())
def test_two_machines_search_in_one_study(tmp_path: Path) -> None:
    """Each trial is trained by one of them; the first does the final fits, the second ends.

    Each has an MLflow store of its own, so the run of the second stays where it is.
    """
    from mlflow import MlflowClient

    place = SETTINGS.index("--sweep.trials") + 1
    first, second = tmp_path / "first", tmp_path / "second"
    stores = [f"sqlite:///{folder / 'mlflow.db'}" for folder in (first, second)]
    with postgres_server.postgres_server() as server:
        server.sql(f"CREATE DATABASE sweeps OWNER {postgres_server.USER}")
        arguments = [
            *("sweep", *SETTINGS[:place], "8", *SETTINGS[place + 1 :], "--json"),
            *("--sweep.study", "digits-may"),
            *("--sweep.storage", server.address("sweeps")),
        ]

        def search(folder: Path, store: str) -> Finished:
            environment = {"PGPASSWORD": postgres_server.PASSWORD, "MLFLOW_TRACKING_URI": store}
            return patchline(*arguments, cwd=folder, env=environment, timeout=600)

        for folder in (first, second):
            folder.mkdir()
        with ThreadPoolExecutor(2) as pool:
            began = pool.submit(search, first, stores[0])
            deadline = time.monotonic() + _SECONDS
            while not list(first.glob(".patchline/runs/*/trials/*")):
                assert not began.done(), began.result().err
                assert time.monotonic() < deadline
                time.sleep(0.1)
            joined = search(second, stores[1])
            ended = began.result()
    assert (ended.code, joined.code) == (0, 0), (ended.err, joined.err)
    summary, other = ended.json, joined.json
    table = summary["trial_table"]
    assert [each["number"] for each in table] == list(range(8))
    assert "unfinished" not in {each["state"] for each in table}
    assert len({each["owner"] for each in table}) == 2
    assert summary["version"] == "1"
    assert not other["version"]
    assert other["study"] == summary["study"] == "digits-may"
    trained = []
    for store in stores:
        client = MlflowClient(store)
        runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
        trained += [run.data.tags.get("patchline.sweep.trial") for run in runs]
    assert sorted(each for each in trained if each) == [str(number) for number in range(8)]
    joining = MlflowClient(stores[1]).get_run(other["run_id"])
    assert "mlflow.parentRunId" not in joining.data.tags
