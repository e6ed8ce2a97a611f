"""Approval requests: what is known of one, and which are open.

Functions that talk to Prefect expect its settings to name a server, as `prefect_session.connected`
makes sure.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from patchline.flows.prefect_api.prefect_client import asking, flow_runs
from patchline.flows.schedules import deployments
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.registered_models import ModelReference

KIND = "approval"
FAILED = (StateType.CRASHED, StateType.FAILED)
OPEN = (StateType.PAUSED, StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)


@dataclass(frozen=True)
class ApprovalRequest:
    """A request for approval: a flow run in Prefect."""

    flow_run_id: UUID
    name: str
    """Of the registered model."""
    version: str
    hours: float
    """Until it expires."""
    state: str
    """Of the flow run, such as `Suspended`."""
    kind: StateType
    message: str
    since: dt.datetime
    """When the flow run entered this state."""

    @property
    def reference(self) -> str:
        """The version as a reference: `flowers/3`."""
        return f"{self.name}/{self.version}"

    @property
    def waits(self) -> bool:
        """Whether it needs an answer now."""
        return self.kind == StateType.PAUSED

    @property
    def failed(self) -> bool:
        """Whether its process was killed or ended with an error."""
        return self.kind in FAILED

    @property
    def is_closed(self) -> bool:
        """Whether the answer was carried out, or the request was cancelled."""
        return self.kind in {StateType.COMPLETED, StateType.CANCELLED}

    @property
    def due(self) -> dt.datetime:
        """When it expires, if it waits."""
        return self.since + dt.timedelta(hours=self.hours)


def open_requests() -> list[ApprovalRequest]:
    """Return this folder's requests that are being prepared, pending, or being carried out.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    return find_requests([each.id for each in deployments.deployments(KIND)], OPEN)


def is_pending(reference: ModelReference) -> bool:
    """Return whether a request for a version is open.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    version = (reference.name, reference.version)
    return any((each.name, each.version) == version for each in open_requests())


def newer_version(name: str, version: str) -> str | None:
    """Return the newest version of the model with an open request, if it is newer than this.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    versions = [int(each.version) for each in open_requests() if each.name == name]
    newest = max(versions, default=0)
    return str(newest) if newest > int(version) else None


def refreshed(request: ApprovalRequest) -> ApprovalRequest:
    """Return the request in its current state.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    with asking() as client:
        return _from_flow_run(client.read_flow_run(request.flow_run_id))


def find_requests(
    deployment_ids: list[UUID], kinds: Iterable[StateType] | None = None
) -> list[ApprovalRequest]:
    """Return the requests in states of these kinds, or in any; oldest first.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    if not deployment_ids:
        return []
    filters: dict[str, Any] = {"deployment_id": {"any_": deployment_ids}}
    if kinds:
        filters["state"] = {"type": {"any_": list(kinds)}}
    with asking() as client:
        waiting = flow_runs(client, filters, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [_from_flow_run(flow_run) for flow_run in waiting]


def _from_flow_run(flow_run: FlowRun) -> ApprovalRequest:
    given, state = flow_run.parameters, flow_run.state
    config = PromotionConfig.model_validate(given.get("config") or {})
    return ApprovalRequest(
        flow_run_id=flow_run.id,
        name=str(given.get("name")),
        version=str(given.get("version")),
        hours=config.approval_hours,
        state=(state.name if state else None) or "not started",
        kind=state.type if state else StateType.SCHEDULED,
        message=(state.message if state else None) or "",
        since=state.timestamp if state else dt.datetime.now(dt.UTC),
    )
