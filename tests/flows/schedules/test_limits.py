"""Limits on the tags of tasks, and what a run says while it waits for one of their slots."""

from __future__ import annotations

import io
from uuid import uuid4

import pytest
from prefect.client.orchestration import SyncPrefectClient

from patchline.flows import progress
from patchline.flows.training import waiting_for_slots
from tests.patience import until


@pytest.mark.usefixtures("prefect_server")
def test_a_task_that_waits_for_a_slot_says_so_until_it_begins(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence has the tag and the command that shows the limit."""
    monkeypatch.setattr(waiting_for_slots, "_FIRST_SECONDS", 0.2)
    monkeypatch.setattr(waiting_for_slots, "_SECONDS", 0.2)
    client.create_concurrency_limit(tag="training", concurrency_limit=1)
    first = {"names": ["training"], "task_run_id": str(uuid4())}
    client.request("POST", "/concurrency_limits/increment", json=first)
    said = io.StringIO()
    with progress.shown(said), waiting_for_slots.watched(["gpu", "training"]) as begun:
        until(lambda: "waiting" in said.getvalue(), "it said nothing")
        begun.set()
    assert (
        "waiting: 1 other run has all slots of the limit on the tag training "
        "(`prefect concurrency-limit inspect training` shows it)"
    ) in said.getvalue()
    assert "gpu" not in said.getvalue()
    client.request("POST", "/concurrency_limits/decrement", json=first)
    assert waiting_for_slots.full_limits(["training"]) == []
