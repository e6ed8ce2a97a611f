"""Close approval requests that are overdue or cancelled, and retry those that were interrupted."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import State, StateType

from patchline.flows.approval import approval_form, requests
from patchline.flows.approval.requests import FAILED, ApprovalRequest
from patchline.flows.prefect_api.prefect_client import asking
from patchline.flows.schedules import deployments, retries
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry.approval.answer import expired, note_cancelled
from patchline.pipeline.registry.registered_models import resolve

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
            approval_form.submit_answer(request, expired(request.hours))
        elif request.failed and now - request.since < retries.LOOK_BACK:
            retry_interrupted(request, now)
        elif request.kind == StateType.CANCELLED and request.flow_run_id not in _cancelled:
            _record_cancelled(request)


def retry_interrupted(request: ApprovalRequest, now: dt.datetime) -> None:
    """Retry the flow run of a request when its time has come; an answer already given counts."""
    with asking() as client:
        retries.retry_when_due(client, request.flow_run_id, _is_retried, now)


def retries_exhausted(request: ApprovalRequest) -> bool:
    """Return whether the flow run of a request was killed or failed too often to retry.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    with asking() as client:
        failures = retries.count_failures(client, request.flow_run_id, _is_retried)
    return request.failed and failures >= retries.MAX_FAILURES


def _is_retried(state: State[Any]) -> bool:
    """Return whether a flow run in this state is retried: any failure may have been temporary."""
    return state.type in FAILED


def _record_cancelled(request: ApprovalRequest) -> None:
    """Note on the version that its request was cancelled; the flow run's process is gone."""
    with contextlib.suppress(ModelReferenceError):  # the version was deleted too
        note_cancelled(resolve(request.reference), str(request.flow_run_id))
    _cancelled.add(request.flow_run_id)
