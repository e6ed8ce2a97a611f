"""Monitoring on a schedule: its states, its words in Prefect, and the run that a drift starts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import cv2
import numpy as np
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State

from patchline.flows.notifications import events
from patchline.plugins.tools.monitor.flow import DRIFT, NOTHING_NEW, TOO_FEW, monitor_flow
from patchline.plugins.tools.monitor.monitoring import MonitorChoices, check_stream
from tests.conftest import Run, draw_photo, write_photos
from tests.flows.schedules.schedule_parts import only_one, runs_of
from tests.made.servers import Command
from tests.patience import until


@pytest.fixture(autouse=True)
def _champion(
    event_api: str, finished_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a server, and a copy of the shared run's store, whose model `photos` has a champion."""
    assert event_api
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


def test_each_end_has_a_name_and_a_drift_starts_a_run_once_the_server_has_taken_it(
    tmp_path: Path, run_here: Command, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few images are no good news; once delivered, nobody is told a second time.

    The run is that of a schedule, started by the event alone.
    """
    write_photos(tmp_path / "labelled", classes=2, images=4)
    config = "name: photos\ndata: {source: image_folder, path: labelled}\n"
    (tmp_path / "run.yaml").write_text(config, encoding="utf-8")
    create = "schedule create again --on-drift photos --config run.yaml"
    assert "on drift of photos" in run_here.out(create)
    again = only_one()
    assert str(again.entrypoint).endswith("retrain_when_new")
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
    assert runs_of(client, again.id) == []
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
    until(lambda: runs_of(client, again.id), "no drift has started a run")


def test_a_schedule_monitors_a_folder_or_a_table(run_here: Command, tmp_path: Path) -> None:
    """It is listed with what it does and when; columns of the table are checked at once."""
    write_new(tmp_path / "inbox", 2)
    times = ("--interval", "1d", "--monitor", "photos@champion", "--images")
    create = ("schedule create daily", *times)
    words = f"compares {tmp_path / 'inbox'} with photos@champion, every 1d"
    assert words in run_here.out(*create, "inbox")
    [shown] = run_here.json("schedule list")["schedules"]
    assert (shown["name"], shown["kind"], shown["trigger"]) == ("daily", "monitor", "every 1d")
    (tmp_path / "seen.csv").write_text("what,file\nup,inbox/1000.png\nup,inbox/1001.png\n")
    columns = ("--data.image-column", "file", "--data.label-column", "what")
    run_here.out(*create, "seen.csv", *columns)
    given = only_one().parameters
    assert given["columns"] == {"image_column": "file", "label_column": "what"}
    state: State[Any] = monitor_flow(**given, return_state=True)
    assert (state.name, "Only 2 images" in str(state.message)) == (TOO_FEW, True)
    wrong = (*create, "seen.csv", "--data.image-column", "picture")
    assert "picture" in run_here.refusal(*wrong)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--interval 1d --monitor photos", "--monitor photos also needs --images"),
        ("--interval 1d --config a.yaml --data.label-column b",
         "--data.label-column is for a table that a tool reads"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(
    run_here: Command, tmp_path: Path, arguments: str, sentence: str
) -> None:
    """In one sentence, with the flag."""
    (tmp_path / "inbox").mkdir()
    assert sentence in run_here.refusal(f"schedule create any {arguments}")
