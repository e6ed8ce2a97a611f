"""The last part of docs/how_to/close_the_loop.md: a drift that a schedule finds starts a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from tests.conftest import draw_photo, patchline, write_photos
from tests.flows.services.local_servers import Servers
from tests.patience import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLASSES = ("across", "down", "rising")
DARKER = 0.3
_SETTINGS: dict[str, Any] = {
    "name": "photos",
    "preset": "none",
    "data": {
        "source": "image_folder",
        "path": "labelled",
        "min_new_images": 30,
        "validation_fraction": 0.15,
        "test_fraction": 0.5,
    },
    "training": {"epochs": 60, "threads": 1, "precision": "float32"},
    "promotion": {"min_images": 15, "approval": True},
}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Register a champion, and start the servers and the runner of its folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    write_photos(folder / "labelled", images=40)
    (folder / "run.yaml").write_text(json.dumps(_SETTINGS), encoding="utf-8")  # JSON is YAML
    run = patchline(
        "run", "--config", "run.yaml", "--promotion.approval=false", "--json", cwd=folder
    )
    assert run.code == 0, run.err
    assert "champion" in run.json["aliases"]
    servers = Servers(folder)
    try:
        started = servers.up()
        assert started.code == 0, started.err
        yield servers
    finally:
        servers.down("--now")


def write_dark(folder: Path, numbers: range, darkness: float = DARKER) -> None:
    """Write images of all classes in turn."""
    folder.mkdir(exist_ok=True)
    for number in numbers:
        pixels = (draw_photo(number % 3, number) * darkness).astype(np.uint8)
        cv2.imwrite(str(folder / f"{number}.png"), pixels[:, :, ::-1])


def last(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the last run of a schedule."""
    shown = patchline("schedule", "list", "--json", cwd=folder).json["schedules"]
    found: dict[str, Any] | None = next(each for each in shown if each["name"] == name)["last"]
    return found


def champion(folder: Path) -> str:
    """Return the version that is champion."""
    [model] = patchline("models", "--json", cwd=folder).json["models"]
    [version] = [each for each in model["versions"] if "champion" in each["aliases"]]
    return str(version["version"])


def state(folder: Path, name: str) -> str:
    """Return the state of the last run of a schedule; empty if there is none."""
    found = last(folder, name)
    return str(found["state"]) if found else ""


def check_now(folder: Path, expected: str) -> None:
    """Let the schedule check the inbox, and wait for the state that it ends in."""
    before = last(folder, "daily")
    asked = patchline("schedule", "run-now", "daily", cwd=folder)
    assert asked.code == 0, asked.err

    def has_ended() -> bool:
        now = last(folder, "daily")
        return now != before and now is not None and now["state"] == expected

    until(has_ended, f"the check did not end as {expected}", seconds=300, pause=2)


def test_a_drift_starts_a_run_that_trains_on_new_labels_and_requires_approval(
    servers: Servers,
) -> None:
    """Nothing without a drift, *Skipped* without new labels; a promotion requires approval."""
    folder = servers.folder
    write_dark(folder / "inbox", range(1000, 1060), darkness=1.0)
    daily = ("daily", "--interval", "1d", "--monitor", "photos@champion", "--images", "inbox")
    again = ("again", "--on-drift", "photos", "--config", "run.yaml")
    for schedule in (daily, again):
        made = patchline("schedule", "create", *schedule, cwd=folder)
        assert made.code == 0, made.err
    check_now(folder, "Completed")
    assert state(folder, "again") == ""

    write_dark(folder / "inbox", range(2000, 2060))
    check_now(folder, "Drift")
    until(lambda: state(folder, "again") == "Skipped", "the drift has started no run", pause=2)

    for label, name in enumerate(CLASSES):
        write_dark(folder / "labelled" / name, range(3000 + label, 3090 + label, 3))
    write_dark(folder / "inbox", range(4000, 4060))
    check_now(folder, "Drift")
    waiting = ("Skipped", "Running", "Pending", "Scheduled")
    until(lambda: state(folder, "again") not in waiting, "no run has ended", seconds=600, pause=2)
    assert state(folder, "again") == "Completed", last(folder, "again")
    assert champion(folder) == "1", "nobody has approved yet"
    approved = patchline("approve", "photos/2", "--reason", "a new lamp", cwd=folder)
    assert approved.code == 0, approved.err
    assert champion(folder) == "2"
