"""Monitoring on a schedule: its states, its words in Prefect, and the run that a drift starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import cv2
import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State

from patchline.flows.monitoring.monitor_flow import (
    DRIFT,
    NOTHING_NEW,
    TOO_FEW,
    monitor_flow,
)
from patchline.flows.monitoring.stream_check import check_stream
from patchline.flows.notifications import events
from patchline.flows.schedules import deployments
from patchline.pipeline.automation import event_kinds
from patchline.pipeline.monitoring.monitoring import MonitorChoices
from tests.conftest import Run, draw_photo, write_photos
from tests.flows.conftest import Command

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def champion(finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a copy of the shared run's store, whose model `photos` has a champion."""
    shutil.copy(finished_run.folder / "mlflow.db", tmp_path / "copy.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'copy.db'}")


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


@pytest.mark.usefixtures("champion")
def test_each_end_has_a_name_and_a_drift_is_told_until_the_server_has_taken_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few images are no good news; once delivered, nobody is told a second time."""
    sent: list[tuple[str, str, int, UUID]] = []
    is_up = False

    def deliver(event: str, resource: str, payload: dict[str, object], event_id: UUID) -> bool:
        sent.append((event, resource, int(str(payload["check"])), event_id))
        return is_up

    monkeypatch.setattr(events, "deliver", deliver)
    inbox = write_new(tmp_path / "inbox", 5)
    assert ended(inbox).name == TOO_FEW
    write_new(inbox, 40)
    state = ended(inbox)
    assert (state.name, sent) == ("Completed", [])
    assert ended(inbox).name == NOTHING_NEW
    write_new(inbox, 60, start=2000, darkness=0.2)
    check_stream("photos@champion", str(inbox), MonitorChoices(), {})  # by hand, without a server
    own = (event_kinds.DRIFT_DETECTED, "patchline.model.photos", 2, sent[0][3])
    assert sent == [own]
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


@pytest.mark.usefixtures("champion")
def test_a_schedule_monitors_and_another_one_trains_after_a_drift(
    run_here: Command, tmp_path: Path, prefect_server: SyncPrefectClient
) -> None:
    """Both are listed with what they do and when; the second one starts by the event alone."""
    del prefect_server
    (tmp_path / "inbox").mkdir()
    write_photos(tmp_path / "labelled", classes=2, images=4)
    (tmp_path / "run.yaml").write_text(
        "name: photos\ndata: {source: image_folder, path: labelled}\n", encoding="utf-8"
    )
    times = ("schedule", "create", "daily", "--interval", "1d")
    code, out, err = run_here(*times, "--monitor", "photos@champion", "--images", "inbox")
    assert code == 0, err
    assert f"compares {tmp_path / 'inbox'} with photos@champion, every 1d" in out
    again = ("schedule", "create", "again", "--on-drift", "photos")
    code, out, err = run_here(*again, "--config", "run.yaml")
    assert code == 0, err
    assert "on drift of photos" in out
    shown = json.loads(run_here("schedule", "list", "--json")[1])["schedules"]
    assert [(each["name"], each["kind"], each["trigger"]) for each in shown] == [
        ("again", "train", "on drift of photos"),
        ("daily", "monitor", "every 1d"),
    ]
    made = {deployments.name_of(each): each for each in deployments.deployments()}
    assert str(made["again"].entrypoint).endswith("retrain_when_new")
    write_new(tmp_path / "inbox", 2)
    (tmp_path / "seen.csv").write_text("what,file\nup,inbox/1000.png\nup,inbox/1001.png\n")
    table = ("schedule", "create", "table", "--interval", "1d", "--images", "seen.csv")
    columns = ("--data.image-column", "file", "--data.label-column", "what")
    code, _, err = run_here(*table, "--monitor", "photos@champion", *columns)
    assert code == 0, err
    made = {deployments.name_of(each): each for each in deployments.deployments()}
    flow_parameters = made["table"].parameters
    assert flow_parameters["columns"] == {"image_column": "file", "label_column": "what"}
    state: State[Any] = monitor_flow(**flow_parameters, return_state=True)
    assert (state.name, "Only 2 images" in str(state.message)) == (TOO_FEW, True)
    wrong = ("--monitor", "photos@champion", "--data.image-column", "picture")
    assert "picture" in run_here(*table, *wrong)[2]
    for name in ("again", "daily", "table"):
        assert run_here("schedule", "remove", name)[0] == 0


@pytest.mark.usefixtures("champion")
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--interval", "1d", "--monitor", "photos"), "--monitor photos also needs --images"),
        (("--interval", "1d", "--monitor", "photos", "--images", "inbox", "--out", "a.csv"),
         "--out is for predictions"),
        (("--interval", "1d", "--monitor", "photos", "--config", "a.yaml"), "Give only one"),
        (("--interval", "1d", "--config", "a.yaml", "--data.label-column", "b"),
         "--data.label-column is for a table of images to check"),
        (("--on-drift", "photos", "--interval", "1d", "--config", "a.yaml"), "mutually exclusive"),
        (("--on-drift", "photos", "--monitor", "photos", "--images", "inbox"), "Add --config"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(
    run_here: Command, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """In one sentence, with the flag."""
    (tmp_path / "inbox").mkdir()
    code, _, err = run_here("schedule", "create", "any", *arguments)
    assert (code, sentence in err) == (2, True), err
