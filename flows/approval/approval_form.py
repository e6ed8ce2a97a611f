"""Answers to approval requests: the form in the Prefect UI, and how Prefect stores an answer.

Approval is requested once against each champion. The answer is stored with the flow run under the
champion's key before anything is carried out, so that it survives a crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import Keyset, keyset_from_base_key, keyset_from_paused_state
from pydantic import ValidationError

from patchline.flows.prefect_api.prefect_client import asking
from patchline.pipeline.errors import OrchestrationError
from patchline.pipeline.registry.approval.answer import ApprovalAnswer

if TYPE_CHECKING:
    from patchline.flows.approval.requests import ApprovalRequest

_PREFIX = "suspended-"
_RESPONSE = "-response"
_MOST_ANSWERS = 200


class Approval(ApprovalAnswer, RunInput):
    """Should this version become champion?"""


def key_against(champion: str | None) -> str:
    """Return the key of the request to replace this champion."""
    return f"against-{champion or 'none'}"


def stored_answer(client: SyncPrefectClient, flow_run_id: UUID) -> Mapping[str, ApprovalAnswer]:
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
    with asking() as client:
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
