"""Open approval requests, each a flow run that waits, and close or retry those that need it."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State, StateType

from patchline.flows import prefect_session
from patchline.flows.approval import requests
from patchline.flows.approval.approval_flow import approve_promotion
from patchline.flows.approval.requests import FAILED, ApprovalRequest
from patchline.flows.prefect_api.prefect_client import asking
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import ModelReferenceError, OrchestrationError
from patchline.pipeline.registry.approval_answer import expired, note, note_cancelled, superseded_by
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.registered_models import ModelReference, champion_of, resolve

_DESCRIPTION = (
    "Compares a version with the champion and waits for approval: answer with **Resume** on the "
    "flow run's page, or with `patchline approve` and `patchline reject`."
)


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
    if champion_of(reference.name) == reference.version:
        return None
    why = "no runner is active. Start one with `patchline up`"
    try:
        with prefect_session.connected():
            others = [each for each in requests.open_requests() if each.name == reference.name]
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
    version = f"{reference.name}/{reference.version}"
    deployment_id = deployments.deploy(
        approve_promotion,
        requests.KIND,
        parameters={},
        labels={deployments.KIND: requests.KIND},
        description=_DESCRIPTION,
        concurrency="enqueue",
    )
    same = [each for each in requests.find_requests([deployment_id]) if each.reference == version]
    # Concurrent calls share a flow run.
    earlier = sum(each.kind not in requests.OPEN for each in same)
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
            requests.submit_answer(other, superseded_by(reference.version))
    return (
        f"Approval requested for {version}: run `patchline approve {version}` or `patchline reject "
        f"{version}`, or use Resume in the Prefect UI. It expires in {config.approval_hours:g} "
        "hours."
    )


_cancelled: set[UUID] = set()
"""Cancelled requests that this process has already recorded."""


def expire_overdue() -> None:
    """Close overdue requests, and retry the flow runs of those whose process was killed.

    Time counts by the clock, also while no server runs: a request that became overdue then is
    closed once the servers run again, unless an answer comes first.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    ids = [each.id for each in deployments.deployments(requests.KIND)]
    now = dt.datetime.now(dt.UTC)
    for request in requests.find_requests(ids, (StateType.PAUSED, StateType.CANCELLED, *FAILED)):
        if request.waits and request.due < now:
            requests.submit_answer(request, expired(request.hours))
        elif request.failed and now - request.since < deployments.LOOK_BACK:
            retry_interrupted(request, now)
        elif request.kind == StateType.CANCELLED and request.flow_run_id not in _cancelled:
            _record_cancelled(request)


def retry_interrupted(request: ApprovalRequest, now: dt.datetime) -> None:
    """Retry the flow run of a request when its time has come; an answer already given counts."""
    with asking() as client:
        deployments.retry_when_due(client, request.flow_run_id, _is_retried, now)


def retries_exhausted(request: ApprovalRequest) -> bool:
    """Return whether the flow run of a request was killed or failed too often to retry.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    with asking() as client:
        failures = deployments.count_failures(client, request.flow_run_id, _is_retried)
    return request.failed and failures >= deployments.MAX_FAILURES


def _is_retried(state: State[Any]) -> bool:
    """Return whether a flow run in this state is retried: any failure may have been temporary."""
    return state.type in FAILED


def _record_cancelled(request: ApprovalRequest) -> None:
    """Note on the version that its request was cancelled; the flow run's process is gone."""
    with contextlib.suppress(ModelReferenceError):  # the version was deleted too
        note_cancelled(resolve(request.reference), str(request.flow_run_id))
    _cancelled.add(request.flow_run_id)
