"""The progress artifact: it never disturbs the work that it shows."""

from __future__ import annotations

import logging
import time
import uuid

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import prefect_progress, progress
from flows.prefect_progress import ProgressArtifact
from tests.patience import patient


def test_a_server_that_is_away_costs_nothing_but_the_picture() -> None:
    """Without a server calls return, the thread gives up, and later calls start no other one."""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        artifact = ProgressArtifact(uuid.uuid4(), uuid.uuid4(), interval=0.01)
        while not artifact.given_up:
            artifact.show(50, "training")
            time.sleep(0.01)
        artifact.show(100, "training")
        assert artifact.wait(patient(120))
        artifact.show(100, "training")
        assert artifact.wait(0)


def test_short_work_is_not_shown() -> None:
    """What is done within a second starts no thread, unless it is asked for."""
    artifact = ProgressArtifact(None, uuid.uuid4())
    artifact.show(100, "reading", at_once=False)
    assert artifact.wait(0)


def test_nothing_is_told_outside_of_a_flow(caplog: pytest.LogCaptureFixture) -> None:
    """A command that only imported Prefect shows events as ever."""
    with caplog.at_level(logging.DEBUG, "prefect"):
        progress.show_event({"kind": "log", "message": "a line"})
        progress.show_event({"kind": "progress", "unit": "image", "done": 1, "total": 2})
    assert prefect_progress.artifact() is None
    assert not [record for record in caplog.records if "a line" in record.message]
