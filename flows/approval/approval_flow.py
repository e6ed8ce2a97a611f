"""The flow that asks a person about a promotion: compare, suspend, carry out the answer.

Suspended, it holds no process. With the answer it begins again from the top; the answer is looked
up first, so nothing is compared a second time unless the champion changed.
"""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.flow_runs import suspend_flow_run
from prefect.runtime import flow_run
from prefect.states import Completed

from flows.approval import answer_form, question_text, questions
from flows.approval.answer_form import NEWER_VERSION, NOBODY, Approval
from flows.failures import RETRYING
from flows.notifications import events
from pipeline.automation import event_kinds
from pipeline.errors import ModelReferenceError
from pipeline.registry import approval_question, history, promotion
from pipeline.registry.approval_question import Question
from pipeline.registry.config import PromotionConfig
from pipeline.registry.promotion import Answer, Promotion, Request
from pipeline.registry.registered_models import ModelReference, resolve
from pipeline.run_memory import live_runs
from pipeline.tracking.tracking_store import client as registry
from pipeline.workspace import WORKSPACE

PROMOTED, ALREADY = "Promoted", "Champion already"
REFUSED, BY_GATES = "Refused", "Refused: the gates"
BY_NOBODY, SUPERSEDED = "Refused: nobody answered", "Refused: a newer version waits"
GONE = "Refused: the version is gone"
_ENDINGS: dict[str, tuple[approval_question.State, str]] = {
    NOBODY: ("expired", BY_NOBODY),
    NEWER_VERSION: ("superseded", SUPERSEDED),
}
_GRACE_SECONDS = 366 * 24 * 3600
"""Prefect fails what is suspended for too long; we refuse it, and long before."""


@task(
    name="Compare with the champion",
    task_run_name="Compare {reference.name}, version {reference.version}, with the champion",
    cache_policy=NO_CACHE,
    **RETRYING,
)
def compare(reference: ModelReference, champion: str | None, config: PromotionConfig) -> Question:
    """Ask the gates and write the comparison's page."""
    return approval_question.pose(reference, champion, config, _folder(reference))


@task(
    name="Carry out the answer",
    task_run_name="Carry out the answer about {request.reference.name}",
    cache_policy=NO_CACHE,
    **RETRYING,
)
def carry_out(request: Request) -> Promotion | None:
    """Promote or refuse; none if the champion is not the one that the person saw."""
    return promotion.promote(request, _folder(request.reference))[0]


@flow(name="Ask a person about a promotion")
def approve_promotion(name: str, version: str, config: PromotionConfig) -> State[Any]:
    """Compare a version with the champion, ask a person, and do what the answer says."""
    with live_runs.alive(WORKSPACE.resolve(), str(flow_run.id), "approval"):
        try:
            reference = resolve(f"{name}/{version}")
        except ModelReferenceError as error:
            return Completed(name=GONE, message=str(error))
        try:
            return _decide(reference, config)
        except ModelReferenceError as error:  # the records of one of the two are gone
            approval_question.note(
                reference, "rejected", reason=str(error), flow_run_id=str(flow_run.id)
            )
            return Completed(name=REFUSED, message=str(error))


def _decide(reference: ModelReference, config: PromotionConfig) -> State[Any]:
    """Go from question to answer until an answer fits the champion that there is."""
    while True:
        champion = history.alias_of(registry(), reference.name, history.CHAMPION)
        given = _answers()
        if champion == reference.version:
            return _already(reference, given)
        refusal = next((each for each in given.values() if each.decision == "reject"), None)
        answer = refusal or given.get(answer_form.question_key(champion)) or _outdated(reference)
        if answer is None:
            _ask(reference, champion, config)
            continue
        promotion = carry_out(_request(reference, champion, config, answer))
        if promotion is not None:
            return _end(reference, answer, promotion.promoted, promotion.reason)


def _answers() -> dict[str, Approval]:
    with get_client(sync_client=True) as prefect:
        return dict(answer_form.answers(prefect, UUID(str(flow_run.id))))


def _outdated(reference: ModelReference) -> Approval | None:
    """Return the answer to a question that a newer version of the model has made idle."""
    newer = questions.newer_question(reference.name, reference.version)
    return answer_form.superseded_by(newer) if newer else None


def _request(
    reference: ModelReference, champion: str | None, config: PromotionConfig, answer: Approval
) -> Request:
    reason = answer_form.one_line(answer.reason) or "no reason given"
    said = Answer(answer.decision == "approve", answer.words, champion)
    return Request(reference, config, force_reason=reason if answer.force else None, answer=said)


def _ask(reference: ModelReference, champion: str | None, config: PromotionConfig) -> None:
    """Show the question and suspend; the process ends here."""
    question = compare(reference, champion, config)
    create_markdown_artifact(
        key="promotion-question",
        markdown=question_text.summary(question, config.approval_hours),
        description=f"{reference.name}, version {reference.version}, against the champion",
    )
    approval_question.note(reference, "asked", flow_run_id=str(flow_run.id))
    expires = dt.datetime.now(dt.UTC) + dt.timedelta(hours=config.approval_hours)
    when = expires.isoformat(timespec="minutes")
    _emit(event_kinds.APPROVAL_ASKED, reference, {"champion": champion, "expires": when})
    key = answer_form.question_key(champion)
    with get_client(sync_client=True) as prefect:
        answer_form.forget_question(prefect, UUID(str(flow_run.id)), key)
    words = question_text.form_words(question, config.approval_hours)
    suspend_flow_run(
        wait_for_input=Approval.with_initial_data(description=words),
        timeout=round(config.approval_hours * 3600 + _GRACE_SECONDS),
        key=key,
    )


def _already(reference: ModelReference, given: dict[str, Approval]) -> State[Any]:
    """End for a version that is champion: by this flow, which was killed after it, or by hand."""
    changes = [
        entry
        for entry in history.read(registry(), reference.name)
        if (entry.alias, entry.to_version) == (history.CHAMPION, reference.version)
    ]
    reason = changes[-1].reason if changes else ""
    for answer in given.values():
        if answer.decision == "approve" and answer.words in reason:
            return _end(reference, answer, promoted=True, reason=reason)
    words = f"version {reference.version} became champion without this question's answer"
    approval_question.note(reference, "superseded", reason=words, flow_run_id=str(flow_run.id))
    return Completed(name=ALREADY, message=words)


def _end(reference: ModelReference, answer: Approval, promoted: bool, reason: str) -> State[Any]:
    """Record what came of it, and return the state that says so."""
    state, name = _ENDINGS.get(answer.who, ("rejected", REFUSED))
    if answer.decision == "approve":
        state, name = "approved", PROMOTED if promoted else BY_GATES
    approval_question.note(
        reference,
        state,
        by=answer_form.one_line(answer.who),
        reason=answer_form.one_line(answer.reason),
        flow_run_id=str(flow_run.id),
    )
    kind = event_kinds.APPROVAL_EXPIRED if state == "expired" else event_kinds.APPROVAL_ANSWERED
    _emit(kind, reference, {"answer": state, "reason": answer.words})
    outcome = event_kinds.MODEL_PROMOTED if promoted else event_kinds.MODEL_REFUSED
    _emit(outcome, reference, {"reason": reason})
    return Completed(name=name, message=reason)


def _emit(event: str, reference: ModelReference, facts: dict[str, Any]) -> None:
    known = {"name": reference.name, "version": reference.version, **facts}
    if "flow_run_id" in event_kinds.KINDS[event].payload:
        known["flow_run_id"] = str(flow_run.id)
    events.emit(event, f"patchline.model.{reference.name}", known)


def _folder(reference: ModelReference) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{reference.name}-{reference.version}-{stamp}"
    return (WORKSPACE / "promotions" / name).resolve()
