"""Approval requests, opened and closed, and their flow: compare, ask, suspend, carry out answers.

While suspended, it holds no process. When it is answered, it starts again from the top. It looks
for the answer first, so the comparison is repeated only if the champion has changed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.flow_runs import suspend_flow_run
from prefect.runtime import flow_run
from prefect.states import Completed

from patchline.flows import prefect_session
from patchline.flows.approval import requests
from patchline.flows.approval.requests import FAILED, Approval, ApprovalRequest
from patchline.flows.notifications import events
from patchline.flows.prefect_api.failures import RETRYING
from patchline.flows.prefect_api.prefect_client import open_client
from patchline.flows.schedules import deployments
from patchline.pipeline.errors import ModelReferenceError, OrchestrationError
from patchline.pipeline.registry import aliases, approval_question, promotion
from patchline.pipeline.registry.approval_answer import (
    ApprovalAnswer,
    answer_expired,
    answer_superseded,
    note,
    note_cancelled,
)
from patchline.pipeline.registry.approval_question import Question, prepare_question
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion import Promotion, Request
from patchline.pipeline.registry.registered_models import ModelReference, champion_of, resolve
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking.tracking_store import client as registry

PROMOTED, ALREADY = "Promoted", "Already champion"
GONE = "Not promoted: the version was deleted"
_ENDINGS = {
    "rejected": "Not promoted: rejected",
    "expired": "Not promoted: no answer in time",
    "superseded": "Not promoted: superseded by a newer version",
    "approved": "Not promoted: a gate failed",
}
"""Names of the flow run's final states where a version is not promoted, by the request's state."""
_GRACE_SECONDS = 366 * 24 * 3600
"""Prefect fails a flow run that is suspended for too long; `expiry` closes it long before."""


@task(
    name="Compare with the champion",
    task_run_name="Compare {reference.name}, version {reference.version}, with the champion",
    cache_policy=NO_CACHE,
    **RETRYING,
)
def compare(reference: ModelReference, champion: str | None, config: PromotionConfig) -> Question:
    """Evaluate the gates and log the comparison."""
    return prepare_question(reference, champion, config, promotion.decision_folder(reference))


@task(
    name="Carry out the answer",
    task_run_name="Carry out the answer about {request.reference.name}",
    cache_policy=NO_CACHE,
    **RETRYING,
)
def carry_out(request: Request) -> Promotion | None:
    """Evaluate the gates and promote; none if the champion is not the one that the approver saw."""
    return promotion.promote(request, promotion.decision_folder(request.reference))[0]


@flow(name="Request approval of a promotion")
def approve_promotion(name: str, version: str, config: PromotionConfig) -> State[Any]:
    """Compare a version with the champion, wait for a person's answer, and carry it out."""
    flow_run_id = str(flow_run.id)
    with live_runs.alive(WORKSPACE.resolve(), flow_run_id, "approval"):
        try:
            reference = resolve(f"{name}/{version}")
        except ModelReferenceError as error:
            return Completed(name=GONE, message=str(error))
        try:
            return _decide(reference, config)
        except ModelReferenceError as error:  # records of one of the versions are missing
            note(reference, "rejected", reason=str(error), flow_run_id=flow_run_id)
            return Completed(name=_ENDINGS["rejected"], message=str(error))


def _decide(reference: ModelReference, config: PromotionConfig) -> State[Any]:
    """Ask until there is an answer that holds against the current champion."""
    while True:
        champion = aliases.alias_of(registry(), reference.name, aliases.CHAMPION)
        with get_client(sync_client=True) as prefect:
            given = dict(requests.read_stored_answers(prefect, UUID(str(flow_run.id))))
        if champion == reference.version:
            return _already_champion(reference, list(given.values()))
        rejection = next((each for each in given.values() if not each.approves), None)
        answer = (
            rejection
            or given.get(requests.key_against(champion))
            or _answer_if_superseded(reference)
        )
        if answer is None:
            _ask(reference, champion, config)
            continue
        request = Request(
            reference, config, answer.force_reason, answer=answer, answered_against=champion
        )
        decision = carry_out(request)
        if decision is not None:
            return _end(reference, answer, promoted=decision.promoted, reason=decision.reason)


def _answer_if_superseded(reference: ModelReference) -> ApprovalAnswer | None:
    """Return the answer to a request that a newer version of the model supersedes, if one does."""
    newer = requests.newer_version(reference.name, reference.version)
    return answer_superseded(newer) if newer else None


def _ask(reference: ModelReference, champion: str | None, config: PromotionConfig) -> None:
    """Show the question and suspend; the process ends here."""
    question = compare(reference, champion, config)
    create_markdown_artifact(
        key="promotion-question",
        markdown=approval_question.page_text(question, config.approval_hours),
        description=f"{reference.name}, version {reference.version}, against the champion",
    )
    note(reference, "asked", flow_run_id=str(flow_run.id))
    expires = dt.datetime.now(dt.UTC) + dt.timedelta(hours=config.approval_hours)
    when = expires.isoformat(timespec="minutes")
    _emit(events.APPROVAL_ASKED, reference, {"champion": champion, "expires": when})
    key = requests.key_against(champion)
    with get_client(sync_client=True) as prefect:
        requests.clear_answer(prefect, UUID(str(flow_run.id)), key)
    text = approval_question.form_text(question, config.approval_hours)
    suspend_flow_run(
        wait_for_input=Approval.with_initial_data(description=text),
        timeout=round(config.approval_hours * 3600 + _GRACE_SECONDS),
        key=key,
    )


def _already_champion(reference: ModelReference, given: list[ApprovalAnswer]) -> State[Any]:
    """End for a champion: promoted by this flow, which was then killed, or by other means."""
    changes = [
        entry
        for entry in aliases.read_changes(registry(), reference.name)
        if (entry.alias, entry.to_version) == (aliases.CHAMPION, reference.version)
    ]
    reason = changes[-1].reason if changes else ""
    for answer in given:
        if answer.approves and answer.text in reason:
            return _end(reference, answer, promoted=True, reason=reason)
    message = f"version {reference.version} became champion without an answer to this request"
    note(reference, "superseded", reason=message, flow_run_id=str(flow_run.id))
    return Completed(name=ALREADY, message=message)


def _end(
    reference: ModelReference, answer: ApprovalAnswer, *, promoted: bool, reason: str
) -> State[Any]:
    """Record the outcome, and return the flow run's final state."""
    state = answer.state
    note(reference, state, by=answer.who, reason=answer.reason, flow_run_id=str(flow_run.id))
    kind = events.APPROVAL_EXPIRED if state == "expired" else events.APPROVAL_ANSWERED
    _emit(kind, reference, {"answer": state, "reason": answer.text})
    outcome = events.MODEL_PROMOTED if promoted else events.MODEL_REFUSED
    _emit(outcome, reference, {"reason": reason})
    name = PROMOTED if promoted and answer.approves else _ENDINGS[state]
    return Completed(name=name, message=reason)


def _emit(event: str, reference: ModelReference, facts: dict[str, Any]) -> None:
    payload = {"name": reference.name, "version": reference.version, **facts}
    if "flow_run_id" in events.KINDS[event].payload:
        payload["flow_run_id"] = str(flow_run.id)
    events.emit(event, f"patchline.model.{reference.name}", payload)


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
        with prefect_session.connect():
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
            requests.submit_answer(other, answer_superseded(reference.version))
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
            requests.submit_answer(request, answer_expired(request.hours))
        elif request.failed and now - request.since < deployments.LOOK_BACK:
            retry_interrupted(request, now)
        elif request.kind == StateType.CANCELLED and request.flow_run_id not in _cancelled:
            _record_cancelled(request)


def retry_interrupted(request: ApprovalRequest, now: dt.datetime) -> None:
    """Retry the flow run of a request when its time has come; an answer already given counts."""
    with open_client() as client:
        deployments.retry_when_due(client, request.flow_run_id, _is_retried, now)


def retries_exhausted(request: ApprovalRequest) -> bool:
    """Return whether the flow run of a request was killed or failed too often to retry.

    Raises:
        OrchestrationError: if the server does not respond.
    """
    with open_client() as client:
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
