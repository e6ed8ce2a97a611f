"""Approval requests: what is known of one, which are open, and the form with which one is answered.

Functions that talk to Prefect expect its settings to name a server, as `prefect_session.connect`
makes sure.

Approval is requested once against each champion. The answer is stored with the flow run under the
champion's key before anything is carried out, so that it survives a crash.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import Keyset, keyset_from_base_key, keyset_from_paused_state
from pydantic import ValidationError

from patchline.flows.prefect_api.prefect_client import flow_runs, open_client
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.registry.approval_answer import ApprovalAnswer
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
    """The name of the registered model."""
    version: str
    hours: float
    """Hours until the request expires."""
    state: str
    """The state of the flow run, such as `Suspended`."""
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


def refresh(request: ApprovalRequest) -> ApprovalRequest:
    """Return the request in its current state.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    with open_client() as client:
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
    with open_client() as client:
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


_PREFIX = "suspended-"
_RESPONSE = "-response"
_MOST_ANSWERS = 200


class Approval(ApprovalAnswer, RunInput):
    """Should this version become champion?"""


def key_against(champion: str | None) -> str:
    """Return the key of the request to replace this champion."""
    return f"against-{champion or 'none'}"


def read_stored_answers(
    client: SyncPrefectClient, flow_run_id: UUID
) -> Mapping[str, ApprovalAnswer]:
    """Return the answers stored with a flow run, by the key of the request."""
    prefix = f"{_PREFIX}against-"
    inputs = client.filter_flow_run_input(
        flow_run_id=flow_run_id, key_prefix=prefix, limit=_MOST_ANSWERS, exclude_keys=set()
    )
    given = {}
    for each in inputs:
        if each.key.endswith(_RESPONSE):
            with contextlib.suppress(ValidationError):  # bypassed the form: ask again
                key = each.key.removeprefix(_PREFIX).removesuffix(_RESPONSE)
                given[key] = ApprovalAnswer.model_validate_json(each.value)
    return given


def submit_answer(request: ApprovalRequest, answer: ApprovalAnswer) -> bool:
    """Submit an answer, and return whether it counts: only the first one does.

    Raises:
        OrchestrationError: if the server does not respond, or does not accept the answer.
    """
    given = answer.model_dump(mode="json")
    with open_client() as client:
        result = client.resume_flow_run(request.flow_run_id, run_input=given)
        reason = getattr(result.details, "reason", None) or ""
        if result.status == SetStateStatus.REJECT and "schema not found" in reason:
            _restore_form(client, request.flow_run_id)
            result = client.resume_flow_run(request.flow_run_id, run_input=given)
            reason = getattr(result.details, "reason", None) or ""
    if result.status == SetStateStatus.ACCEPT:
        return True
    if result.status == SetStateStatus.ABORT:
        return False
    raise OrchestrationError(
        f"Prefect did not accept the answer for {request.reference} ({reason}). Answer with Resume "
        "on the flow run's page."
    )


def clear_answer(client: SyncPrefectClient, flow_run_id: UUID, key: str) -> None:
    """Delete what a killed attempt has stored under a key, so that the request can be repeated."""
    _delete(client, flow_run_id, keyset_from_base_key(f"{_PREFIX}{key}"))


def _restore_form(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    """Store the form of a request whose process was killed before it could."""
    state = client.read_flow_run(flow_run_id).state
    if state is not None and state.is_paused():
        keyset = keyset_from_paused_state(state)
        _delete(client, flow_run_id, keyset)
        Approval.save(keyset, flow_run_id)


def _delete(client: SyncPrefectClient, flow_run_id: UUID, keyset: Keyset) -> None:
    for key in keyset.values():
        with contextlib.suppress(ObjectNotFound):
            try:
                client.delete_flow_run_input(flow_run_id=flow_run_id, key=key)
            except PrefectHTTPStatusError as error:
                if error.response.status_code != 404:  # noqa: PLR2004 - HTTP: not found
                    raise
