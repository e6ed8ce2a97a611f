"""Watched folders on a real Prefect server: what starts a run, what does not, and what it does."""

from __future__ import annotations

import json
import logging
import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from PIL import Image
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import emit_event
from prefect.flow_engine import run_flow
from prefect.states import Completed, Crashed, Failed, Running

from patchline.flows.new_data import watch_flow, watched_folders
from patchline.flows.notifications import events
from patchline.flows.prefect_api import folder_labels
from patchline.flows.schedules import deployments
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.workspace.tracking import tracked_run
from tests.conftest import draw_photo, write_photos
from tests.flows.schedules.schedule_parts import runs_of
from tests.made.servers import Command
from tests.patience import until

pytestmark = pytest.mark.usefixtures("event_api")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a folder for quiet when it is first seen, and read it whenever asked."""
    monkeypatch.setattr(watched_folders, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watched_folders, "NEW_FOLDERS_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(watched_folders, "_CPU_SHARE", 1e9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of 8 photos in 2 classes."""
    return write_photos(tmp_path / "photos", classes=2, images=4, side=8)


@pytest.fixture
def watch(run_here: Command, folder: Path) -> UUID:
    """Return the deployment of a watch of the folder, made by the command."""
    return UUID(run_here.json("data watch", folder)["deployment_id"])


class Watched(NamedTuple):
    """A folder that is watched, and the deployment of its runs."""

    client: SyncPrefectClient
    watch: UUID
    folder: Path

    def runs(self, checks: int = 0) -> list[FlowRun]:
        """Return the runs that exist after so many looks at the folder."""
        for _ in range(checks):
            watched_folders.check_folders()
        return runs_of(self.client, self.watch)

    def begun(self) -> FlowRun:
        """Look at the folder for the first time; return the run that this starts, ended."""
        [first] = self.runs(1)
        _end(self.client, first)
        return first


@pytest.fixture
def watched(client: SyncPrefectClient, watch: UUID, folder: Path) -> Watched:
    """Return a watched folder that nobody has looked at."""
    return Watched(client, watch, folder)


def _end(client: SyncPrefectClient, flow_run: FlowRun) -> None:
    client.set_flow_run_state(flow_run.id, Completed(), force=True)


def _add(folder: Path, name: str = "new.png", variant: int = 99) -> None:
    Image.fromarray(draw_photo(0, variant, 8)).save(folder / "across" / name)


@pytest.mark.usefixtures("impatient")
def test_each_change_starts_one_run(watched: Watched, run_here: Command) -> None:
    """A new watch starts a run, a change starts the next, and nothing starts without a change.

    If a start was not remembered, the same start happens again, and is the same run. `schedule
    pause` keeps a watch from starting, `resume` lets it see what has changed. Several changes
    during a run start one after it.
    """
    first = watched.begun()
    watched_folders.state_file("photos").unlink()
    assert [each.id for each in watched.runs(2)] == [first.id]
    state = json.loads(watched_folders.state_file("photos").read_text("utf-8"))
    assert state["flow_run_id"] == str(first.id)
    run_here.out("schedule pause photos")
    _add(watched.folder)
    assert len(watched.runs(2)) == 1
    run_here.out("schedule resume photos")
    [second] = [each for each in watched.runs(2) if each.id != first.id]
    watched.client.set_flow_run_state(second.id, Running(), force=True)
    for number in range(3):
        _add(watched.folder, f"{number}.png", number)
        assert len(watched.runs(1)) == 2
    _end(watched.client, second)
    assert len(watched.runs(2)) == 3


def test_nothing_is_started_while_the_folder_still_changes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what stays the same for a while is taken for complete, the first time for a minute."""
    monkeypatch.setattr(watched_folders, "_CPU_SHARE", 1e9)
    monkeypatch.setattr(watched_folders, "QUIET_SECONDS", 0.0)
    for number in range(3):
        _add(watched.folder, f"{number}.png")
        assert watched.runs(1) == []
    assert watched.runs(1) == []
    monkeypatch.setattr(watched_folders, "NEW_FOLDERS_QUIET_SECONDS", 0.0)
    assert len(watched.runs(1)) == 1


@pytest.mark.usefixtures("impatient")
def test_other_class_folders_wait_longer_than_more_images(
    watched: Watched, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Classes that arrive one after the other start one run, unless the user sets the time."""
    watched.begun()
    monkeypatch.setattr(watched_folders, "NEW_FOLDERS_QUIET_SECONDS", 3600.0)
    shutil.copytree(watched.folder / "across", watched.folder / "rose")
    assert len(watched.runs(2)) == 1
    out = run_here.out("data watch", str(watched.folder))
    assert "Waits until nothing in it has changed for 3600 s; 0 s if its subfolders are" in out
    out = run_here.out("data watch", str(watched.folder), "--quiet-seconds", "0")
    assert "has changed for 0 s.\n" in out
    assert len(watched.runs(1)) == 2


@pytest.mark.usefixtures("impatient")
def test_a_killed_run_is_resumed_and_a_failed_one_is_not(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run is resumed: images that were there when it was killed are not forgotten."""
    monkeypatch.setattr(deployments, "_FIRST_PAUSE_SECONDS", 0.0)
    [first] = watched.runs(1)
    failed: State[Any] = Failed(message="The images are of one class.")
    for state, expected in ((Crashed(), "Resuming"), (failed, "Failed")):
        watched.client.set_flow_run_state(first.id, state, force=True)
        [now] = watched.runs(1)
        assert (now.id, now.state_name) == (first.id, expected)


@pytest.mark.usefixtures("impatient")
def test_other_settings_are_a_reason_to_look_again_and_an_absence_is_none(
    watched: Watched, run_here: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """The same command changes the watch; it is run with the new settings, and not otherwise.

    It is said once that the folder is gone, and once that it is back.
    """
    watched.begun()
    away = watched.folder.with_name("away")
    with caplog.at_level(logging.WARNING, "patchline.flows.new_data.watched_folders"):
        watched.folder.rename(away)
        watched.runs(2)
        away.rename(watched.folder)
        assert len(watched.runs(1)) == 1
    gone, back = [each.getMessage() for each in caplog.records]
    assert ("No such file" in gone, "can be read again" in back) == (True, True)
    again = ("data watch", str(watched.folder))
    run_here(*again)
    assert len(watched.runs(1)) == 1
    shown = run_here.json(*again, "--min-new-images", "7")
    assert (shown["deployment_id"], shown["min_new_images"]) == (str(watched.watch), 7)
    assert len(watched.runs(1)) == 2
    Path("run.yaml").write_text("data: {min_new_images: 5}\n", encoding="utf-8")  # as formerly
    assert run_here.json(*again, "--config", "run.yaml")["min_new_images"] == 5


def test_an_event_from_outside_starts_a_run(
    client: SyncPrefectClient, watch: UUID, folder: Path
) -> None:
    """`patchline.data.updated` about the watch, by name or id, or about the folder starts it."""
    identity = folder_labels.of(Path())[folder_labels.ID]
    sent = before = 0

    def has_started_another(resource: str) -> bool:
        nonlocal sent
        for about in (*["watch.other"] * (1 + sent), resource):
            emit_event(events.DATA_UPDATED, resource={"prefect.resource.id": f"patchline.{about}"})
        sent += 1
        return len(runs_of(client, watch)) > before

    for resource in ("watch.photos", f"folder.{folder}", f"watch.{identity}.photos"):
        before = sent  # as many runs as the other resources can have started
        until(partial(has_started_another, resource), "no run", pause=0.5)
    assert len(runs_of(client, watch)) <= sent  # events about another watch start none


def test_a_run_that_begins_stands_for_those_that_wait(
    client: SyncPrefectClient, watch: UUID
) -> None:
    """Nine of ten events during a training are cancelled when the next run begins."""
    waiting = [deployments.start(watch) for _ in range(3)]
    client.set_flow_run_state(waiting[0], Running(), force=True)
    watched_folders.cancel_waiting(watch, waiting[0])
    found = {each.id: each for each in runs_of(client, watch)}
    assert [found[each].state_name for each in waiting] == ["Running", "Cancelled", "Cancelled"]
    message = (found[waiting[1]].state or Completed()).message
    assert str(waiting[0]) in str(message)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nowhere", "There is no folder nowhere."),
        ("one", "has only one class"),
        ("..", "contains the working directory"),
        ("photos --quiet-seconds 90000", "must be from 0 to 86400"),
        ("photos --min-new-images 0", "must be at least 1"),
    ],
)
def test_wrong_input_is_one_sentence(
    run_here: Command, folder: Path, arguments: str, words: str
) -> None:
    """The folder is checked before a server is asked."""
    shutil.copytree(folder / "across", "one/across")
    assert words in run_here.refusal(f"data watch {arguments}")


def test_too_little_new_ends_as_skipped(client: SyncPrefectClient, folder: Path) -> None:
    """Touched, renamed and too few new images train nothing, and the run says what it found.

    What cannot be read fails with the reason.
    """
    config = RunConfig(data=DataConfig(source="image_folder", path=str(folder)))
    seen = ingestion.ingest(config, Path(".patchline").resolve())  # as a run of the folder does
    named = ingestion.resolve(config, seen)
    with tracked_run.open_owned_run(named, Path(".patchline/runs"), {}) as run:
        tracked_run.log_data(run, seen.name, seen.fingerprint, seen.manifest_file)
    (folder / "across" / "000.png").rename(folder / "across" / "renamed.png")
    (folder / "down" / "001.png").touch()
    _add(folder, "a.png", 50)
    _add(folder, "b.png", 51)
    state: State = watch_flow.retrain_when_new(config, 3, return_state=True)
    assert (state.is_completed(), state.name) == (True, "Skipped")
    assert state.message == "2 new images; --min-new-images is 3."
    flow_run = client.read_flow_run(UUID(str(state.state_details.flow_run_id)))
    assert flow_run.name == f"New data in {folder}"
    former = config.model_dump(mode="json")
    former["data"]["min_new_images"] = 4  # as in a watch that an earlier version has stored
    parameters = {"config": former}
    again = client.create_flow_run(watch_flow.retrain_when_new, parameters=parameters)
    skipped: Any = run_flow(
        watch_flow.retrain_when_new, flow_run=again, parameters=parameters, return_type="state"
    )
    assert skipped.message == "2 new images; --min-new-images is 4."
    wanted = {"flow_runs": {"id": {"any_": [str(flow_run.id)]}}}
    [artifact] = client.request("POST", "/artifacts/filter", json=wanted).json()
    assert "| across | 2 |" in artifact["data"]
    away = config.model_copy(update={"data": DataConfig(source="image_folder", path="none")})
    failed: State = watch_flow.retrain_when_new(away, return_state=True)
    assert (failed.is_failed(), failed.message) == (
        True,
        "There is no folder none. Check the path.",
    )
