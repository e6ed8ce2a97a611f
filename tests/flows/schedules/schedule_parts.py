"""What the tests of schedules share: a deployment that fires every minute, and its runs."""

from __future__ import annotations

import datetime as dt
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import IntervalSchedule

from patchline.flows.schedules import deployments
from patchline.flows.schedules.prediction_flow import predict_flow

PREDICTING = {"model": "photos@champion", "images": "/photos", "out": "/table.csv"}


def runs_of(client: SyncPrefectClient, deployment_id: UUID) -> list[FlowRun]:
    """Return all runs of a deployment, the earliest first."""
    found = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]))
    )
    return sorted(
        found, key=lambda run: run.expected_start_time or dt.datetime.max.replace(tzinfo=dt.UTC)
    )


def let_pass(
    client: SyncPrefectClient, deployment_id: UUID, *, minutes: float, ahead: float = 3
) -> None:
    """Make the runs that Prefect's scheduler would have made for the minutes that passed."""
    now = dt.datetime.now(dt.UTC)
    client.request(
        "POST",
        "/deployments/{id}/schedule",
        path_params={"id": deployment_id},
        json={
            "start_time": (now - dt.timedelta(minutes=minutes)).isoformat(),
            "end_time": (now + dt.timedelta(minutes=ahead)).isoformat(),
            "max_runs": 100,
        },
    )


def every_minute(name: str = "often", **other: Any) -> UUID:
    """Create a schedule whose minutes began long ago, so that some of them can be missed."""
    anchor = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1, seconds=30)
    given: dict[str, Any] = {
        "parameters": PREDICTING,
        "schedule": IntervalSchedule(interval=dt.timedelta(minutes=1), anchor_date=anchor),
        "labels": {deployments.KIND: "schedule"},
        "description": "",
    }
    return deployments.deploy(predict_flow, name, **given | other)


def only_one() -> DeploymentResponse:
    [found] = deployments.deployments()
    return found
