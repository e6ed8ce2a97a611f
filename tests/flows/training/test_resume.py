"""A run that was killed resumes where it stopped, in the same MLflow run."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from patchline.pipeline.config import RunConfig
from patchline.pipeline.redaction import without_credentials
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.run_memory.interrupted_runs import RunRequest
from patchline.pipeline.workspace.tracking import liveness, tracked_run, tracking_store
from tests.conftest import PREFECT_DATABASE, Run, patchline_here, write_photos
from tests.flows.training.runs import Begun, has_metrics, only_run, ran, refused, store_of
from tests.patience import patient

pytestmark = pytest.mark.usefixtures("own_store")


def kill(folder: Path, arguments: str, has_come: Callable[[], Any]) -> None:
    """Begin a run, and kill it when a stage has begun."""
    begun = Begun(folder, f"run {arguments}")
    begun.wait_until(has_come)
    assert begun.end() == -signal.SIGKILL


def weights(folder: Path) -> bytes:
    """Return the best weights of the only run of a folder."""
    [file] = folder.glob(".patchline/runs/*/training/best/model.safetensors")
    return file.read_bytes()


def histories(store: MlflowClient, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Return step and value of the metrics that do not depend on the clock."""
    keys = ("train/loss", "validation/accuracy", "epoch", "test/accuracy")
    found = {key: store.get_metric_history(run_id, key) for key in keys}
    return {key: [(m.step, m.value) for m in history] for key, history in found.items()}


@pytest.mark.slow
def test_a_saved_config_gives_the_same_run_in_a_folder_of_any_name_although_it_is_killed(
    finished_run: Run, prefect_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed twice and resumed twice: weights and metrics of the first run, one of everything.

    The name of the folder means something to every library on the way. A version must answer with
    the classes of those before it; the remedy is another name.
    """
    monkeypatch.delenv(PREFECT_DATABASE)
    folder = tmp_path / "around" / "why? 100%25 #1 ünï;@:\"'\\ \n-x%20"
    folder.mkdir(parents=True)
    config = folder / "s%20?.yaml"
    shutil.copy(finished_run.summary["config"], config)
    kill(folder, "--config s%20?.yaml", lambda: has_metrics(folder))
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)
    registers = ".patchline/runs/*/mlflow_model"
    kill(folder, "--resume last", lambda: any(folder.glob(registers)))
    summary, _ = ran(folder, "--resume last")

    expected = finished_run.summary
    assert summary["data_fingerprint"] == expected["data_fingerprint"]
    assert weights(folder) == weights(finished_run.folder)
    assert summary["metrics"] == expected["metrics"]
    assert summary["aliases"] == ["challenger", "champion"]
    assert summary["promotion"]["promoted"]
    assert summary["reused"] == {}
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    assert settings["training"]["precision"] in {"float32", "bfloat16"}  # as measured
    assert settings["training"]["threads"] >= 1
    out, photos = "o?ut %41.csv", finished_run.folder / "photos"
    predicted = patchline_here("predict photos", photos, "--out", out, cwd=folder)
    assert predicted.code == 0, predicted.err
    assert len((folder / out).read_text("utf-8").splitlines()) == 1 + 3 * 40
    assert list(folder.parent.iterdir()) == [folder]
    left = {".patchline", "mlflow.db", "mlruns", out, config.name}
    assert {each.name for each in folder.iterdir() if not each.match("said-*.txt")} == left

    monkeypatch.chdir(folder)
    client = tracking_store.client()
    run = only_run(client)
    assert (run.info.run_id, run.info.status) == (summary["run_id"], "FINISHED")
    first = store_of(finished_run.folder)
    assert histories(client, run.info.run_id) == histories(first, expected["run_id"])
    assert [str(version.version) for version in client.search_model_versions()] == ["1"]
    [model] = client.search_logged_models([run.info.experiment_id])
    assert str(model.status) == "READY"
    assert len(run.data.tags[tracked_run.FLOW_RUNS_TAG].split(",")) == 3

    other = write_photos(tmp_path / "fo?ur %41#", classes=4, images=6)
    said = patchline_here("run", other, "--preset", "none", "--name", "photos", cwd=folder)
    assert said.code == 2
    assert "only here: falling" in said.err
    assert "--name" in said.err


# -- one sentence for each run that cannot be resumed ------------------------------------------


def _request(config: RunConfig) -> str:
    return RunRequest(config=config, data_fingerprint="0" * 32).model_dump_json()


def _interrupted(
    folder: Path, name: str = "roses", *, request: bool = True
) -> tracked_run.TrackedRun:
    """Leave a run that was killed."""
    config = RunConfig(name=name)
    runs, words = folder / ".patchline/runs", _request(config) if request else ""
    with (
        pytest.raises(KeyboardInterrupt),
        tracked_run.open_owned_run(config, runs, {}, words) as run,
    ):
        raise KeyboardInterrupt
    return run


def test_a_run_is_found_by_id_beginning_name_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords that are a part of the path, of a name or of an address change nothing."""
    here = tmp_path / "s3cr3tfold3r"
    secrets = zip(("POSTGRES", "MYSQL", "REDIS"), ("s3cr3tfold3r", "roses", "runs"), strict=True)
    for service, secret in secrets:
        monkeypatch.setenv(f"{service}_PASSWORD", secret)
    here.mkdir()
    _interrupted(here, "tulips")
    run = _interrupted(here)
    found = tracking_store.client().get_run(run.run_id)
    assert found.data.tags[tracked_run.FOLDER_TAG] == str(run.folder)
    for words in (run.run_id, run.run_id[:8], str(found.info.run_name), "last"):
        interrupted = interrupted_runs.find(words, here / ".patchline/runs")
        assert (interrupted.run_id, interrupted.folder) == (run.run_id, run.folder)
        assert interrupted.request.config.name == "roses"
    store = str(tmp_path / "mlflow.db")
    assert without_credentials(tracking_store.use_store()).endswith(store)


def test_runs_that_cannot_be_continued_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """Unknown, finished, without a folder, of another folder: exit code 2 and why."""
    runs = tmp_path / ".patchline/runs"
    with tracked_run.open_owned_run(
        RunConfig(name="done"), runs, {}, _request(RunConfig())
    ) as finished:
        pass
    gone = _interrupted(tmp_path, "gone", request=False)
    elsewhere = _interrupted(tmp_path / "other", "elsewhere")
    for words, said in (
        ("nothing", ["no run 'nothing'", "last"]),
        (finished.run_id, ["is FINISHED", "nothing to resume"]),
        (gone.run_id, ["has no request.json", "mlflow artifacts download", gone.run_id]),
        (elsewhere.run_id, ["belongs to the folder", "other"]),
    ):
        sentence = refused(tmp_path, f"--resume {words}")
        assert all(part in sentence for part in said), sentence
        assert "Traceback" not in sentence


def test_only_a_finished_run_is_extended(tmp_path: Path) -> None:
    """One that was interrupted has to be resumed first, and the message has the command."""
    run = _interrupted(tmp_path)
    said = refused(tmp_path, "--extend last --training.epochs 9")
    assert "is KILLED" in said
    assert f"patchline run --resume {run.run_id[:8]}" in said
    runs, config = tmp_path / ".patchline/runs", RunConfig(training={"folds": 3})
    with tracked_run.open_owned_run(RunConfig(name="folds"), runs, {}, _request(config)):
        pass
    assert "has folds or a refit" in refused(tmp_path, "--extend last --training.epochs 9")


def test_a_run_that_is_alive_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one whose owner holds its lock, nor one that beats elsewhere, nor one in doubt."""
    monkeypatch.setattr(liveness, "BEAT_SECONDS", patient(0.5))
    monkeypatch.setattr(liveness, "STALE_SECONDS", patient(2.0))
    runs = tmp_path / ".patchline/runs"
    with tracked_run.open_owned_run(
        RunConfig(name="alive"), runs, {}, _request(RunConfig())
    ) as run:
        resume = f"--resume {run.run_id}"
        assert "is still running in another process" in refused(tmp_path, resume)
        store = tracking_store.client()
        store.set_tag(run.run_id, tracked_run.HOST_TAG, "another-host")
        store.set_tag(run.run_id, liveness.LOCK_TAG, "another-kernel 1 1")
        lock = tracked_run.owner_lock(run.folder)
        lock.rename(run.folder / "hidden.lock")
        for _ in range(3):  # a heartbeat between two looks at it leaves nothing to observe
            said = refused(tmp_path, resume)
            assert "in another process on the machine another-host" in said
            if "observing the heartbeat" in said:
                break
        assert "observing the heartbeat" in said
        (run.folder / "hidden.lock").rename(lock)
    store.update_run(run.run_id, status="RUNNING")
    store.delete_tag(run.run_id, liveness.HEARTBEAT_TAG)
    said = refused(tmp_path, resume)
    assert "it has no heartbeat" in said
    assert "set_terminated" in said


@pytest.mark.parametrize("beside", ["photos", "--seed 2", "--fresh"])
def test_settings_beside_resume_are_refused(beside: str, tmp_path: Path) -> None:
    """A resumed run keeps its settings, so others are an error that names the first."""
    said = refused(tmp_path, f"--resume last {beside}")
    assert f"'{beside.split(maxsplit=1)[0]}' cannot be combined with --resume" in said
    assert "keeps the settings it was started with, except for --training.processes." in said
