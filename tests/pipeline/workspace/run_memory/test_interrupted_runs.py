"""A run is found by what a user types, among hundreds in a store that others use as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from patchline.pipeline.config import RunConfig
from patchline.pipeline.errors import ConfigError, RunError
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import REQUEST_FILE
from patchline.pipeline.workspace.run_memory import interrupted_runs
from patchline.pipeline.workspace.tracking.liveness import WORKSPACE_TAG
from patchline.pipeline.workspace.tracking.tracked_run import FOLDER_TAG
from patchline.pipeline.workspace.tracking.tracking_store import all_runs, client

pytestmark = pytest.mark.usefixtures("own_store")


def made_run(store: MlflowClient, folder: Path, name: str, started: int) -> str:
    """Make a run of a folder in the store, and return its id."""
    tags = {"mlflow.source.name": "patchline run", FOLDER_TAG: str(folder / name)}
    run = store.create_run("0", run_name=name, start_time=started, tags=tags)
    return str(run.info.run_id)


def found(reference: str, runs: Path) -> str:
    """Return the id of the run that a user names."""
    return str(interrupted_runs.find_named(reference, runs).info.run_id)


@pytest.mark.parametrize("workspace", ["100%_a", "both \"'"])
def test_the_last_run_is_the_newest_of_this_folder(tmp_path: Path, workspace: str) -> None:
    """Runs of other folders are newer and many, and their paths may look alike."""
    store, runs = client(), (tmp_path / workspace).resolve()
    with pytest.raises(ConfigError, match="This folder has no run yet"):
        found("last", runs)
    ids = [made_run(store, runs, name, 1000 + number) for number, name in enumerate("ab")]
    for number in range(3):
        made_run(store, Path(f"{runs}x"), f"other-{number}", 2000 + number)
        made_run(store, tmp_path / "100xxa", f"another-{number}", 3000 + number)
    assert found("last", runs) == ids[-1]


def test_the_last_run_of_a_shared_workspace_is_the_newest_of_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a machine that has run before; each has another folder for the same workspace."""
    monkeypatch.setenv("PATCHLINE_WORKSPACE", "s3://bucket/team")
    store, runs = client(), (tmp_path / ".patchline/runs").resolve()
    elsewhere = Path("/home/ada/work/.patchline/runs")
    made = [
        made_run(store, folder, name, 1000 + number)
        for number, (folder, name) in enumerate(((runs, "ours"), (elsewhere, "theirs")))
    ]
    made.append(made_run(store, elsewhere, "of another workspace", 2000))
    for run_id in made[:2]:
        store.set_tag(run_id, WORKSPACE_TAG, "s3://bucket/team")
    assert found("last", runs) == made[1]


def test_a_deleted_run_is_called_deleted_with_the_way_back(tmp_path: Path) -> None:
    """The last run of a folder, or one that is named, whether it or its experiment is deleted."""
    store, runs = client(), (tmp_path / "runs").resolve()
    experiment = store.create_experiment("flowers")
    tags = {"mlflow.source.name": "patchline run", FOLDER_TAG: str(runs / "a")}
    run_id = store.create_run(experiment, run_name="a", tags=tags).info.run_id
    write_text(runs / "a" / REQUEST_FILE, "{}")
    store.delete_run(run_id)
    for reference in ("last", "a", run_id):
        with pytest.raises(ConfigError, match=f"was deleted in MLflow.* runs restore .*{run_id}"):
            found(reference, runs)
    store.restore_run(run_id)
    store.delete_experiment(experiment)
    words = f"with its experiment flowers.*restore --experiment-id {experiment}"
    with pytest.raises(ConfigError, match=words):
        found("last", runs)


def test_a_run_that_another_store_records_is_not_called_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence names the store that was searched, and the variable that names another."""
    write_text(tmp_path / "runs/a" / REQUEST_FILE, "{}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///elsewhere.db")
    with pytest.raises(ConfigError, match=r"run .* a, is not in .*elsewhere\.db\. Set MLFLOW_TR"):
        found("last", tmp_path / "runs")


def test_a_name_or_the_beginning_of_an_id_is_enough(tmp_path: Path) -> None:
    """A name that several runs have is refused, with their ids; what is unknown is named."""
    store = client()
    first = made_run(store, tmp_path, "it's mine", 1)
    second = made_run(store, tmp_path, "abcd", 2)
    assert found("it's mine", tmp_path) == first
    assert found(first, tmp_path) == found(first[:12], tmp_path) == first
    assert found("abcd", tmp_path) == second  # a name comes before the beginning of an id
    third = made_run(store, tmp_path, "abcd", 3)
    with pytest.raises(ConfigError, match=f"matches 2 runs: {third[:8]}, {second[:8]}"):
        found("abcd", tmp_path)
    for unknown in ("x\"y'z", "%", "abc_"):
        with pytest.raises(ConfigError, match="There is no run"):
            found(unknown, tmp_path)


def test_all_runs_of_many_pages_are_found_once_newest_first(tmp_path: Path) -> None:
    """The first pages are short, for those who look for the newest run only."""
    store = client()
    ids = [made_run(store, tmp_path, f"run-{number}", 1 + number) for number in range(28)]
    assert [run.info.run_id for run in all_runs("attributes.status = 'RUNNING'")] == ids[::-1]


def test_a_run_that_is_being_resumed_is_not_resumed_again(tmp_path: Path) -> None:
    """Of two that resume a run at once, one is refused before it reads anything."""
    runs = (tmp_path / "runs").resolve()
    run_id = made_run(client(), runs, "stopped", 1)
    client().set_terminated(run_id, "KILLED")
    request = interrupted_runs.RunRequest(config=RunConfig(), data_fingerprint="0")
    write_text(runs / "stopped" / REQUEST_FILE, request.model_dump_json())
    first, second = (interrupted_runs.find("last", runs) for _ in range(2))
    with interrupted_runs.resume_alone(first):
        with (
            pytest.raises(RunError, match="is still running"),
            interrupted_runs.resume_alone(second),
        ):
            pass
        with pytest.raises(ConfigError, match=f"{run_id[:8]} is still running"):
            interrupted_runs.find("last", runs)
    with interrupted_runs.resume_alone(second):
        pass
