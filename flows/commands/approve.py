"""The commands `patchline approve` and `patchline reject`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from patchline.flows import prefect_session
from patchline.flows.commands.promote import REFUSED
from patchline.flows.commands.switches import Json, emit
from patchline.flows.progress.progress_display import display, shown
from patchline.pipeline.errors import ModelReferenceError, OrchestrationError
from patchline.pipeline.registry.aliases import checked_reason
from patchline.pipeline.registry.registered_models import champion_of, resolve, was_made_by

if TYPE_CHECKING:
    from patchline.flows.approval.requests import ApprovalRequest
    from patchline.pipeline.registry.approval_answer import ApprovalAnswer

Run = Annotated[
    str,
    Parameter(help="The version as NAME/VERSION, or the id or name of the run that produced it."),
]
Reason = Annotated[str | None, Parameter(help="Reason; recorded in the model's history.")]
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0


def approve(run: Run, /, *, reason: Reason = None, as_json: Json = False) -> int:
    """Approve a pending promotion."""
    return _answer(run, approve=True, reason=reason, as_json=as_json)


def reject(run: Run, /, *, reason: Reason = None, as_json: Json = False) -> int:
    """Reject a pending promotion."""
    return _answer(run, approve=False, reason=reason, as_json=as_json)


def _answer(run: str, *, approve: bool, reason: str | None, as_json: bool) -> int:
    """Answer a request, wait until the answer is carried out, and print the outcome.

    Returns:
        0 if it was carried out; 3 if the version was approved but is not champion.
    """
    reason = checked_reason(reason) or ""
    with shown(), prefect_session.connected():
        from patchline.flows.approval import opening, requests
        from patchline.pipeline.registry.approval_answer import ApprovalAnswer, current_user

        opening.expire_overdue()
        request = _find(run)
        display().stage(f"Answering the approval request for {request.reference}")
        if not request.waits:
            display().note("waiting for the comparison with the champion")
        request = _wait(request)
        decision: Literal["approve", "reject"] = "approve" if approve else "reject"
        answer = ApprovalAnswer(decision=decision, who=current_user(), reason=reason)
        if not request.waits or not requests.submit_answer(request, answer):
            raise _too_late(_outcome(request))
        display().stage("Answer recorded; the runner of `patchline up` carries it out")
        request = _outcome(request)
    return _print(request, answer, as_json=as_json)


def _find(run: str) -> ApprovalRequest:
    """Return the open request for a version, given as NAME/VERSION or by its run.

    Raises:
        ModelReferenceError: if none or several match; the message lists the pending versions.
    """
    from patchline.flows.approval import requests
    from patchline.pipeline.registry.approval_answer import refuse_closed

    pending = requests.open_requests()
    matches = [each for each in pending if run == each.reference] or [
        each for each in pending if was_made_by(each.name, each.version, run)
    ]
    listed = ", ".join(each.reference for each in matches or pending)
    if not matches:
        if "/" in run:
            refuse_closed(resolve(run))  # or report an unknown model or version
        if not pending:
            raise ModelReferenceError(
                f"No approval request is open for '{run}': no versions are pending approval."
            )
        raise ModelReferenceError(
            f"No approval request is open for '{run}'. Pending approval: {listed}. Pass one of "
            "these, or the run that made it."
        )
    if len(matches) > 1:
        raise ModelReferenceError(
            f"'{run}' matches several pending versions: {listed}. Pass one of these."
        )
    return matches[0]


def _outcome(request: ApprovalRequest) -> ApprovalRequest:
    """Wait until the answer is carried out, or approval is requested again."""
    from patchline.flows.approval import requests

    return _wait(requests.refreshed(request))


def _wait(request: ApprovalRequest) -> ApprovalRequest:
    """Wait until a request needs an answer or is closed.

    Raises:
        OrchestrationError: if its flow run keeps failing, or nothing runs it.
    """
    from patchline.flows.approval import opening, requests

    deadline, state = time.monotonic() + _PATIENCE_SECONDS, ""
    while not (request.waits or request.is_closed):
        if opening.retries_exhausted(request):
            raise OrchestrationError(
                f"The approval flow run for {request.reference} failed too often "
                f"({request.message}). An answer already given is kept; continue with Retry on "
                "the flow run's page."
            )
        if time.monotonic() > deadline:
            raise OrchestrationError(
                f"The approval flow run for {request.reference} made no progress for "
                f"{_PATIENCE_SECONDS / 60:.0f} minutes. An answer already given is kept. Check "
                "that `patchline up` is running and its runner is free."
            )
        if request.state != state:
            state = request.state
            display().note(f"flow run: {state.lower()}")
        time.sleep(_POLL_SECONDS)
        request = requests.refreshed(request)
    return request


def _too_late(request: ApprovalRequest) -> ModelReferenceError:
    if request.waits:
        return ModelReferenceError(
            f"The approval request for {request.reference} changed in the meantime. Answer again."
        )
    return ModelReferenceError(
        f"The approval request for {request.reference} was already answered, so this answer does "
        f"not count. {request.state}: {request.message}."
    )


def _print(request: ApprovalRequest, answer: ApprovalAnswer, *, as_json: bool) -> int:
    from patchline.flows.approval.approval_flow import ALREADY, GONE, PROMOTED

    if request.state == GONE:
        raise ModelReferenceError(request.message)
    promoted = request.state in (PROMOTED, ALREADY)
    verdict, reason = request.state.lower(), request.message
    if request.waits:
        verdict = "pending approval again"
        reason = "the champion changed, so the comparison and the request were repeated"
    champion = champion_of(request.name)
    content = {
        "answer": "approved" if answer.approves else "rejected",
        "promoted": promoted,
        "name": request.name,
        "version": request.version,
        "champion": champion,
        "reason": reason,
    }
    emit(
        content,
        f"{request.name}, version {request.version}: {verdict}",
        f"  reason: {reason}",
        f"  champion now: {f'version {champion}' if champion else 'none'}",
        as_json=as_json,
    )
    return 0 if promoted == answer.approves and not request.waits else REFUSED
