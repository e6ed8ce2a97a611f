"""Watched folders on a real Prefect server: what starts a run, what does not, and what it does."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import emit_event
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Failed, Running

from patchline.flows.new_data import watch_flow, watched_folders
from patchline.flows.notifications import events
from patchline.flows.schedules import deployments, folder_labels, retries
from patchline.pipeline.automation import event_kinds, watches
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.tracking import tracked_run
from tests.conftest import draw_photo, write_photos
from tests.flows.conftest import Command
from tests.flows.lasting_server import LastingServer
from tests.patience import patient


@pytest.fixture(autouse=True)
def _server(event_server: LastingServer) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: event_server.url()}):
        yield
        events.flush()


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as opened:
        yield opened


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a folder for quiet when it is first seen, and read it whenever asked."""
    monkeypatch.setattr(watches, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watches, "NEW_FOLDERS_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watched_folders, "_CPU_SHARE", 1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 8 photos in 2 classes."""
    return write_photos(tmp_path / "photos", classes=2, images=4, side=8)


@pytest.fixture
def watch(run_here: Command, folder: Path) -> UUID:
    """Return the deployment of a watch of the folder, made by the command."""
    code, out, err = run_here("data", "watch", str(folder), "--json")
    assert code == 0, err
    return UUID(json.loads(out)["deployment_id"])


def _runs(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]))
    return client.read_flow_runs(flow_run_filter=wanted)


def _end(client: SyncPrefectClient, flow_run: FlowRun) -> None:
    client.set_flow_run_state(flow_run.id, Completed(), force=True)


def _add(folder: Path, name: str = "new.png", variant: int = 99) -> Path:
    from PIL import Image

    Image.fromarray(draw_photo(0, variant, 8)).save(folder / "across" / name)
    return folder / "across" / name


@pytest.mark.usefixtures("impatient")
def test_each_change_starts_one_run(client: SyncPrefectClient, watch: UUID, folder: Path) -> None:
    """A new watch starts a run, a change starts the next, and nothing starts without a change."""
    watched_folders.check_folders()
    watched_folders.check_folders()
    [first] = _runs(client, watch)
    _end(client, first)
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1
    _add(folder)
    watched_folders.check_folders()
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 2


def test_nothing_is_started_while_the_folder_still_changes(
    client: SyncPrefectClient, watch: UUID, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what stays the same for a while is taken for complete, the first time for a minute."""
    monkeypatch.setattr(watched_folders, "_CPU_SHARE", 1e9)
    monkeypatch.setattr(watches, "QUIET_SECONDS", 0.0)
    for number in range(3):
        _add(folder, f"{number}.png")
        watched_folders.check_folders()
    watched_folders.check_folders()
    assert _runs(client, watch) == []
    monkeypatch.setattr(watches, "NEW_FOLDERS_QUIET_SECONDS", 0.0)
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1


@pytest.mark.usefixtures("impatient")
def test_a_change_that_was_undone_waits_again_when_it_comes_back(
    client: SyncPrefectClient,
    watch: UUID,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The time before it was undone does not count, and the log says again that the run waits."""
    clock = [1000.0]
    monkeypatch.setattr(watched_folders, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    watched_folders.check_folders()
    _end(client, _runs(client, watch)[0])
    monkeypatch.setattr(watches, "QUIET_SECONDS", 10.0)
    added = _add(folder)
    with caplog.at_level(logging.INFO, "patchline.flows.new_data.watched_folders"):
        for seconds, away in ((0, False), (5, True), (30, False), (9, False)):
            clock[0] += seconds
            if away:
                added.rename(folder.parent / added.name)
            elif not added.exists():
                (folder.parent / added.name).rename(added)
            watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1
    assert [each.getMessage().count("its run waits") for each in caplog.records] == [1, 1]
    clock[0] += 1
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 2


@pytest.mark.usefixtures("impatient")
def test_other_class_folders_wait_longer_than_more_images(
    client: SyncPrefectClient,
    watch: UUID,
    run_here: Command,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Classes that arrive one after the other start one run, unless the user sets the time."""
    watched_folders.check_folders()
    _end(client, _runs(client, watch)[0])
    monkeypatch.setattr(watches, "NEW_FOLDERS_QUIET_SECONDS", 3600.0)
    shutil.copytree(folder / "across", folder / "rose")
    watched_folders.check_folders()
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1
    _, out, _ = run_here("data", "watch", str(folder))
    assert "Waits until nothing in it has changed for 3600 s; 0 s if its subfolders are" in out
    _, out, _ = run_here("data", "watch", str(folder), "--quiet-seconds", "0")
    assert "has changed for 0 s.\n" in out
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 2
    for flow_run in _runs(client, watch):
        _end(client, flow_run)
    run_here("data", "watch", str(folder))
    _add(folder)
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 3


@pytest.mark.usefixtures("impatient")
def test_changes_during_a_run_lead_to_one_run_after_it(
    client: SyncPrefectClient, watch: UUID, folder: Path
) -> None:
    """Ten changes during a run start nothing, and then one run: not none and not ten."""
    watched_folders.check_folders()
    [first] = _runs(client, watch)
    client.set_flow_run_state(first.id, Running(), force=True)
    for number in range(10):
        _add(folder, f"{number}.png", number)
        watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1
    _end(client, first)
    for _ in range(3):
        watched_folders.check_folders()
    assert len(_runs(client, watch)) == 2


@pytest.mark.usefixtures("impatient")
def test_a_kill_between_start_and_memory_starts_nothing_twice(
    client: SyncPrefectClient, watch: UUID
) -> None:
    """If the start was not remembered, the same start happens again, and is the same run."""
    watched_folders.check_folders()
    [first] = _runs(client, watch)
    _end(client, first)
    watches.state_file("photos").unlink()
    watched_folders.check_folders()
    assert [each.id for each in _runs(client, watch)] == [first.id]
    state = json.loads(watches.state_file("photos").read_text("utf-8"))
    assert state["flow_run_id"] == str(first.id)


@pytest.mark.usefixtures("impatient")
def test_a_killed_run_is_resumed_and_a_failed_one_is_not(
    client: SyncPrefectClient, watch: UUID, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run is resumed: images that were there when it was killed are not forgotten."""
    monkeypatch.setattr(retries, "_FIRST_PAUSE_SECONDS", 0.0)
    watched_folders.check_folders()
    [first] = _runs(client, watch)
    for _ in range(retries.MAX_FAILURES - 1):
        client.set_flow_run_state(first.id, Crashed(), force=True)
        watched_folders.check_folders()
        assert client.read_flow_run(first.id).state_name == "Resuming"
    client.set_flow_run_state(first.id, Crashed(), force=True)
    watched_folders.check_folders()
    assert client.read_flow_run(first.id).state_name == "Crashed"  # once too often
    _add(folder)
    watched_folders.check_folders()
    [second] = [each for each in _runs(client, watch) if each.id != first.id]
    client.set_flow_run_state(second.id, Failed(message="The images are of one class."), force=True)
    watched_folders.check_folders()
    assert {each.state_name for each in _runs(client, watch)} == {"Crashed", "Failed"}


@pytest.mark.usefixtures("impatient")
def test_a_folder_that_goes_and_comes_back_is_survived(
    client: SyncPrefectClient, watch: UUID, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once that the folder is gone, and once that it is back; no run starts of that."""
    watched_folders.check_folders()
    [first] = _runs(client, watch)
    _end(client, first)
    with caplog.at_level(logging.WARNING, "patchline.flows.new_data.watched_folders"):
        folder.rename(folder.with_name("away"))
        watched_folders.check_folders()
        watched_folders.check_folders()
        folder.with_name("away").rename(folder)
        watched_folders.check_folders()
    assert len(caplog.records) == 2
    assert "No such file" in caplog.records[0].getMessage()
    assert "can be read again" in caplog.records[1].getMessage()
    assert len(_runs(client, watch)) == 1


@pytest.mark.usefixtures("impatient")
def test_a_paused_watch_sees_the_change_when_it_is_resumed(
    client: SyncPrefectClient, watch: UUID, run_here: Command
) -> None:
    """`schedule pause` keeps a watch from starting, `resume` lets it see what has changed."""
    assert run_here("schedule", "pause", "photos")[0] == 0
    watched_folders.check_folders()
    assert _runs(client, watch) == []
    assert run_here("schedule", "resume", "photos")[0] == 0
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1


@pytest.mark.usefixtures("impatient")
def test_other_settings_are_a_reason_to_look_again(
    client: SyncPrefectClient, watch: UUID, run_here: Command, folder: Path
) -> None:
    """The same command changes the watch; it is run with the new settings, and not otherwise."""
    watched_folders.check_folders()
    _end(client, _runs(client, watch)[0])
    run_here("data", "watch", str(folder))
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 1
    Path("run.yaml").write_text("data: {min_new_images: 7}\n", encoding="utf-8")
    _, out, _ = run_here("data", "watch", str(folder), "--config", "run.yaml", "--json")
    assert json.loads(out)["deployment_id"] == str(watch)
    assert json.loads(out)["min_new_images"] == 7
    watched_folders.check_folders()
    assert len(_runs(client, watch)) == 2


@pytest.mark.parametrize("by", ["watch", "folder", "workspace"])
def test_an_event_from_outside_starts_a_run(
    client: SyncPrefectClient, run_here: Command, folder: Path, by: str
) -> None:
    """`patchline.data.updated` about the watch, by name or id, or about the folder starts it."""
    _, out, _ = run_here("data", "watch", str(folder), "--name", f"by-{by}", "--json")
    watch = UUID(json.loads(out)["deployment_id"])
    identity = folder_labels.of(Path())[folder_labels.ID]
    resource = {
        "watch": "patchline.watch.by-watch",
        "folder": f"patchline.folder.{folder}",
        "workspace": f"patchline.watch.{identity}.by-workspace",
    }[by]
    sent = 0
    deadline = time.monotonic() + patient(60)
    # The server learns of a new trigger a bit later.
    while not _runs(client, watch) and time.monotonic() < deadline:
        for about in ("patchline.watch.other", resource):
            emit_event(event_kinds.DATA_UPDATED, resource={"prefect.resource.id": about})
        sent += 1
        time.sleep(1)
    assert 1 <= len(_runs(client, watch)) <= sent


def test_a_run_that_begins_stands_for_those_that_wait(
    client: SyncPrefectClient, watch: UUID
) -> None:
    """Nine of ten events during a training are cancelled when the next run begins."""
    waiting = [deployments.start(watch) for _ in range(3)]
    client.set_flow_run_state(waiting[0], Running(), force=True)
    watched_folders.cancel_waiting(watch, waiting[0])
    found = {each.id: each for each in _runs(client, watch)}
    assert [found[each].state_name for each in waiting] == ["Running", "Cancelled", "Cancelled"]
    message = (found[waiting[1]].state or Completed()).message
    assert str(waiting[0]) in str(message)


def test_the_folder_beats_the_path_in_the_file(
    client: SyncPrefectClient, run_here: Command, folder: Path
) -> None:
    """A config written by a run on other data can be used, and the difference is told."""
    text = "name: flowers\ndata: {source: image_folder, path: other, min_new_images: 5}\n"
    Path("run.yaml").write_text(text, encoding="utf-8")
    _, out, _ = run_here("data", "watch", str(folder), "--config", "run.yaml", "--json")
    shown = json.loads(out)
    assert "other" in shown["notes"][0]
    config = client.read_deployment(UUID(shown["deployment_id"])).parameters["config"]
    assert config["data"]["path"] == str(folder)
    assert config["name"] == "flowers"


def test_a_folder_is_watched_as_a_run_would_read_it(
    client: SyncPrefectClient, run_here: Command, folder: Path
) -> None:
    """A table beside the images needs no source in a file."""
    pets = folder.parent / "pets"
    pets.mkdir()
    names = [file.rename(pets / f"{n}.png").name for n, file in enumerate(folder.rglob("*.png"))]
    rows = [{"file_name": name, "labels": ["a", "b"][: n % 3]} for n, name in enumerate(names)]
    (pets / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, err = run_here("data", "watch", str(pets), "--json")
    assert code == 0, err
    config = client.read_deployment(UUID(json.loads(out)["deployment_id"])).parameters["config"]
    assert config["data"]["source"] == "table"
    data = ingestion.ingest(RunConfig.model_validate(config), folder.parent / "work")
    assert data.task == "multi_label"
    assert data.classes == ("a", "b")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "There is no folder nowhere."),
        (("run.yaml",), "run.yaml is a file, and only folders are watched."),
        (("photos/across",), "has no class folder"),
        (("one",), "has only one class"),
        (("..",), "contains the working directory"),
        (("photos", "--config", "none.yaml"), "Config file none.yaml does not exist."),
        (("photos", "--config", "run.yaml"), "Did you mean training.epochs?"),
        (("photos", "--name", "a/b"), "name is 'a/b'"),
        (("photos", "--quiet-seconds", "90000"), "must be from 0 to 86400"),
    ],
)
def test_wrong_input_is_one_sentence(
    run_here: Command, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    """Folder, file and name are checked before a server is asked."""
    Path("run.yaml").write_text("training: {epoch: 1}\n", encoding="utf-8")
    shutil.copytree(folder / "across", "one/across")
    code, out, err = run_here("data", "watch", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("watch")
def test_a_name_belongs_to_one_watch_or_schedule(run_here: Command, folder: Path) -> None:
    """Another folder of the same name, and a schedule's name, are refused with the way out."""
    other = folder.parent / "more" / "photos"
    shutil.copytree(folder, other)
    code, _, err = run_here("data", "watch", str(other))
    assert code == 2
    assert "--name" in err
    config = folder.parent / "run.yaml"
    config.write_text("data: {source: image_folder, path: photos}\n", encoding="utf-8")
    made = run_here("schedule", "create", "hourly", "--interval", "1h", "--config", str(config))
    assert made[0] == 0, made[2]
    code, _, err = run_here("data", "watch", str(other), "--name", "hourly")
    assert code == 2
    assert "hourly" in err


def _train_for_show(config: RunConfig) -> None:
    """Leave behind what a training run of the folder as it is leaves: a run and its data."""
    data = ingestion.ingest(config, Path(".patchline").resolve())
    named = ingestion.resolve(config, data)
    with tracked_run.owned_run(named, Path(".patchline/runs"), {}) as run:
        tracked_run.log_data(run, data.name, data.fingerprint, data.manifest_file)


def test_too_little_new_ends_as_skipped(client: SyncPrefectClient, folder: Path) -> None:
    """Touched, renamed and too few new images train nothing, and the run says what it found."""
    data = DataConfig(source="image_folder", path=str(folder), min_new_images=3)
    config = RunConfig(data=data)
    _train_for_show(config)
    (folder / "across" / "000.png").rename(folder / "across" / "renamed.png")
    (folder / "down" / "001.png").touch()
    _add(folder, "a.png", 50)
    _add(folder, "b.png", 51)
    state: State = watch_flow.retrain_when_new(config, return_state=True)
    assert state.is_completed()
    assert state.name == "Skipped"
    assert state.message == "2 new images; data.min_new_images is 3."
    flow_run = client.read_flow_run(UUID(str(state.state_details.flow_run_id)))
    assert flow_run.name == f"New data in {folder}"
    wanted = {"flow_runs": {"id": {"any_": [str(flow_run.id)]}}}
    [artifact] = client.request("POST", "/artifacts/filter", json=wanted).json()
    assert "| across | 2 |" in artifact["data"]
    tasks = client.read_task_runs(flow_run_filter=FlowRunFilter(id={"any_": [flow_run.id]}))
    assert sorted(task.name.rpartition("-")[0] for task in tasks) == [
        "Compare with the data of the last run",
        "Read the data",
    ]


def test_data_that_cannot_be_read_fails_with_the_reason_and_no_trace(tmp_path: Path) -> None:
    """The state's message is the error's own sentence."""
    data = DataConfig(source="image_folder", path=str(tmp_path / "none"))
    state: State = watch_flow.retrain_when_new(RunConfig(data=data), return_state=True)
    assert state.is_failed()
    assert state.message == f"There is no folder {tmp_path / 'none'}. Check the path."
