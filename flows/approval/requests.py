"""Approval requests: open one for a version, and find those that are open.

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

from patchline.flows.approval import approval_form
from patchline.flows.prefect_client import asking, flow_runs
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.registry.approval.answer import note, superseded_by
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.registered_models import ModelReference, champion_of

KIND = "approval"
FAILED = (StateType.CRASHED, StateType.FAILED)
_OPEN = (StateType.PAUSED, StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)
_DESCRIPTION = (
    "Compares a version with the champion and waits for approval: answer with **Resume** on the "
    "flow run's page, or with `patchline approve` and `patchline reject`."
)


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


def request_approval(reference: ModelReference, config: PromotionConfig) -> str | None:
    """Request a person's approval for a version to become champion.

    It supersedes open requests for older versions of the model.

    Args:
        reference: the version.
        config: the gates, and when the request expires.

    Returns:
        A message for the user, also if nothing runs that could ask; none if the version is
        already champion.
    """
    from patchline.flows import prefect_session

    if champion_of(reference.name) == reference.version:
        return None
    why = "no runner is active. Start one with `patchline up`"
    try:
        with prefect_session.connected():
            others = [each for each in open_requests() if each.name == reference.name]
            known = _already_open(reference, others)
            if known or deployments.runner_is_up():
                return known or _open(reference, config, others)
    except OrchestrationError as error:
        why = str(error).rstrip(".")
    return (
        f"No approval was requested for {reference.name}/{reference.version}: {why}. Then request "
        f"it with `patchline promote {reference.name} --version {reference.version} --ask`."
    )


def _already_open(reference: ModelReference, others: list[ApprovalRequest]) -> str | None:
    """Return a message if the version, or a newer one, is pending already."""
    version = f"{reference.name}/{reference.version}"
    for other in others:
        if other.version == reference.version:
            return f"{version} is already pending approval; run `patchline approve {version}`."
        if int(other.version) > int(reference.version):
            return (
                f"No approval was requested for {version}: the newer version {other.reference} is "
                "pending."
            )
    return None


def _open(reference: ModelReference, config: PromotionConfig, others: list[ApprovalRequest]) -> str:
    from patchline.flows.approval.approval_flow import approve_promotion

    version = f"{reference.name}/{reference.version}"
    deployment_id = deployments.deploy(
        approve_promotion,
        KIND,
        parameters={},
        labels={deployments.KIND: KIND},
        description=_DESCRIPTION,
        concurrency="enqueue",
    )
    same = [each for each in find([deployment_id]) if each.reference == version]
    earlier = sum(each.kind not in _OPEN for each in same)  # concurrent calls share a flow run
    flow_run_id = deployments.start(
        deployment_id,
        parameters={
            "name": reference.name,
            "version": reference.version,
            "config": config.model_dump(mode="json"),
        },
        idempotency_key=f"{deployment_id} {version} {earlier}",
        name=f"{reference.name}, version {reference.version}: champion?",
    )
    note(reference, "asked", flow_run_id=str(flow_run_id))
    for other in others:
        if other.waits and other.version != reference.version:
            approval_form.submit(other, superseded_by(reference.version))
    return (
        f"Approval requested for {version}: run `patchline approve {version}` or `patchline reject "
        f"{version}`, or use Resume in the Prefect UI. It expires in {config.approval_hours:g} "
        "hours."
    )


def open_requests() -> list[ApprovalRequest]:
    """Return this folder's requests that are being prepared, pending, or being carried out.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    return find([each.id for each in deployments.deployments(KIND)], _OPEN)


def is_pending(reference: ModelReference) -> bool:
    """Return whether a request for a version is open.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    wanted = (reference.name, reference.version)
    return any((each.name, each.version) == wanted for each in open_requests())


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


def find(
    deployment_ids: list[UUID], kinds: Iterable[StateType] | None = None
) -> list[ApprovalRequest]:
    """Return the requests in states of these kinds, or in any; oldest first.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    if not deployment_ids:
        return []
    wanted: dict[str, Any] = {"deployment_id": {"any_": deployment_ids}}
    if kinds:
        wanted["state"] = {"type": {"any_": list(kinds)}}
    with asking() as client:
        found = flow_runs(client, wanted, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [_from_flow_run(flow_run) for flow_run in found]


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
