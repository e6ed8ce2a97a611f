"""Monitoring on a schedule: its states, its words in Prefect, and the run that a drift starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import cv2
import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_API_URL, temporary_settings

from patchline.flows.notifications import events
from patchline.flows.schedules import deployments
from patchline.plugins.tools.monitor.flow import (
    DRIFT,
    NOTHING_NEW,
    TOO_FEW,
    monitor_flow,
)
from patchline.plugins.tools.monitor.monitoring import MonitorChoices, check_stream
from tests.conftest import Run, draw_photo, write_photos
from tests.flows.lasting_server import LastingServer
from tests.made.servers import Command
from tests.patience import until


@pytest.fixture(autouse=True)
def _champion(
    event_server: LastingServer,
    finished_run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Use a server, and a copy of the shared run's store, whose model `photos` has a champion."""
    shutil.copy(finished_run.folder / "mlflow.db", tmp_path / "copy.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'copy.db'}")
    with temporary_settings({PREFECT_API_URL: event_server.url()}):
        yield
        events.flush()


def write_new(folder: Path, count: int, start: int = 1000, darkness: float = 1.0) -> Path:
    """Write so many new photos of all classes, as dark as that."""
    folder.mkdir(exist_ok=True)
    for number in range(start, start + count):
        pixels = draw_photo(number % 3, number).astype(np.float64) * darkness
        cv2.imwrite(str(folder / f"{number}.png"), pixels[:, :, ::-1].astype(np.uint8))
    return folder


def ended(folder: Path) -> State[Any]:
    """Run the flow on a folder, and return its final state."""
    state: State[Any] = monitor_flow(model="photos@champion", data=str(folder), return_state=True)
    return state


def scheduled(run_here: Command, name: str, *arguments: str) -> tuple[str, DeploymentResponse]:
    """Create a schedule; return what is said about it, and its deployment."""
    out = run_here.out("schedule", "create", name, *arguments)
    made = {deployments.name_of(each): each for each in deployments.deployments()}
    return out, made[name]


def test_each_end_has_a_name_and_a_drift_starts_a_run_once_the_server_has_taken_it(
    tmp_path: Path, run_here: Command, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few images are no good news; once delivered, nobody is told a second time.

    The run is that of a schedule, started by the event alone.
    """
    write_photos(tmp_path / "labelled", classes=2, images=4)
    config = "name: photos\ndata: {source: image_folder, path: labelled}\n"
    (tmp_path / "run.yaml").write_text(config, encoding="utf-8")
    out, again = scheduled(run_here, "again", "--on-drift", "photos", "--config", "run.yaml")
    assert "on drift of photos" in out
    assert str(again.entrypoint).endswith("retrain_when_new")
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[again.id]))
    sent: list[tuple[str, str, int, UUID]] = []
    is_up, real = False, events.deliver

    def deliver(event: str, resource: str, payload: dict[str, object], event_id: UUID) -> bool:
        sent.append((event, resource, int(str(payload["check"])), event_id))
        return is_up and real(event, resource, payload, event_id)

    monkeypatch.setattr(events, "deliver", deliver)
    inbox = write_new(tmp_path / "inbox", 5)
    assert ended(inbox).name == TOO_FEW
    write_new(inbox, 40)
    assert (ended(inbox).name, sent) == ("Completed", [])
    assert ended(inbox).name == NOTHING_NEW
    write_new(inbox, 60, start=2000, darkness=0.2)
    check_stream("photos@champion", str(inbox), MonitorChoices(), {})  # by hand, without a server
    own = ("patchline.drift.detected", "patchline.model.photos", 2, sent[0][3])
    assert sent == [own]
    assert client.read_flow_runs(flow_run_filter=wanted) == []
    is_up = True
    write_new(inbox, 3, start=3000)  # too few for another check
    state = ended(inbox)
    assert state.name == DRIFT
    assert "check 2" in str(state.message)
    assert str(tmp_path / ".patchline" / "monitoring") in str(state.message)
    assert sent == [own, own]  # with the same id
    write_new(inbox, 60, start=4000, darkness=0.2)
    assert ended(inbox).name == DRIFT
    assert [number for _, _, number, _ in sent] == [2, 2, 3]
    until(lambda: client.read_flow_runs(flow_run_filter=wanted), "no drift has started a run")


def test_a_schedule_monitors_a_folder_or_a_table(run_here: Command, tmp_path: Path) -> None:
    """It is listed with what it does and when; columns of the table are checked at once."""
    write_new(tmp_path / "inbox", 2)
    times = ("--interval", "1d", "--monitor", "photos@champion", "--images")
    out, _ = scheduled(run_here, "daily", *times, "inbox")
    assert f"compares {tmp_path / 'inbox'} with photos@champion, every 1d" in out
    shown = run_here.json("schedule", "list")["schedules"]
    assert [(each["name"], each["kind"], each["trigger"]) for each in shown] == [
        ("daily", "monitor", "every 1d")
    ]
    (tmp_path / "seen.csv").write_text("what,file\nup,inbox/1000.png\nup,inbox/1001.png\n")
    columns = ("--data.image-column", "file", "--data.label-column", "what")
    _, table = scheduled(run_here, "table", *times, "seen.csv", *columns)
    assert table.parameters["columns"] == {"image_column": "file", "label_column": "what"}
    state: State[Any] = monitor_flow(**table.parameters, return_state=True)
    assert (state.name, "Only 2 images" in str(state.message)) == (TOO_FEW, True)
    wrong = ("schedule", "create", "table", *times, "seen.csv", "--data.image-column", "picture")
    assert "picture" in run_here(*wrong)[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--interval", "1d", "--monitor", "photos"), "--monitor photos also needs --images"),
        (("--interval", "1d", "--config", "a.yaml", "--data.label-column", "b"),
         "--data.label-column is for a table that a tool reads"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(
    run_here: Command, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """In one sentence, with the flag."""
    (tmp_path / "inbox").mkdir()
    assert sentence in run_here.refusal("schedule", "create", "any", *arguments)
