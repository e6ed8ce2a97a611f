"""Questions to a person about promotions: ask one, find those that wait, answer, end the overdue.

The functions that talk to Prefect expect that its settings name a server;
`prefect_session.connected` sees to it.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort

from flows.approval import answer_form
from flows.approval.answer_form import Approval
from flows.prefect_client import asking, flow_runs
from flows.schedules import deployments, retries
from pipeline.errors import ModelReferenceError, OrchestrationError
from pipeline.registry import approval_question, history
from pipeline.registry.config import PromotionConfig
from pipeline.registry.registered_models import ModelReference, resolve
from pipeline.tracking.tracking_store import client as registry

KIND = "approval"
_OPEN = (StateType.PAUSED, StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING)
_FAILED = (StateType.CRASHED, StateType.FAILED)
_withdrawn: set[UUID] = set()
"""Cancelled questions that this process has seen to."""
_DESCRIPTION = (
    "Compares a version with the champion and waits for a person: answer with **Resume** on the "
    "page of the flow run, or with `patchline approve` and `patchline reject`."
)


@dataclass(frozen=True)
class Asked:
    """A question to a person, as Prefect knows it."""

    flow_run_id: UUID
    name: str
    """Of the registered model."""
    version: str
    hours: float
    """How long a person has to answer."""
    state: str
    """Of the flow run, such as `Suspended`."""
    kind: StateType
    message: str
    since: dt.datetime
    """When it came into this state."""

    @property
    def reference(self) -> str:
        """The version as it is written: `flowers/3`."""
        return f"{self.name}/{self.version}"

    @property
    def waits(self) -> bool:
        """Whether an answer is wanted now."""
        return self.kind == StateType.PAUSED

    @property
    def failed(self) -> bool:
        """Whether its process was killed or ended with an error."""
        return self.kind in _FAILED

    @property
    def is_over(self) -> bool:
        """Whether nothing follows any more."""
        return self.kind in {StateType.COMPLETED, StateType.CANCELLED}

    @property
    def due(self) -> dt.datetime:
        """When nobody can answer any more, if it waits."""
        return self.since + dt.timedelta(hours=self.hours)


def ask(reference: ModelReference, config: PromotionConfig) -> str | None:
    """Start asking a person whether a version shall become champion.

    Questions about older versions of the same model are answered with "superseded".

    Args:
        reference: the version.
        config: the gates, and how long to wait for an answer.

    Returns:
        What to tell the user, also if nothing runs that could ask; none if the version is champion.
    """
    from flows import prefect_session

    version = f"{reference.name}/{reference.version}"
    if history.alias_of(registry(), reference.name, history.CHAMPION) == reference.version:
        return None
    why = "no runner asks for work; start one with `patchline up`"
    try:
        with prefect_session.connected():
            others = [each for each in open_questions() if each.name == reference.name]
            known = _known(reference, others)
            if known or deployments.runner_is_up():
                return known or _ask(reference, config, others)
    except OrchestrationError as error:
        why = str(error).rstrip(".")
    return (
        f"Nobody could be asked about {version}: {why}. Then `patchline promote {reference.name} "
        f"--version {reference.version} --ask` asks."
    )


def _known(reference: ModelReference, others: list[Asked]) -> str | None:
    """Return what to say if the version, or a newer one, waits already."""
    version = f"{reference.name}/{reference.version}"
    for other in others:
        if other.version == reference.version:
            return f"{version} waits for an answer already; `patchline approve {version}`."
        if int(other.version) > int(reference.version):
            return f"Nobody is asked about {version}: {other.reference}, which is newer, waits."
    return None


def _ask(reference: ModelReference, config: PromotionConfig, others: list[Asked]) -> str:
    from flows.approval.approval_flow import approve_promotion

    version = f"{reference.name}/{reference.version}"
    deployment_id = deployments.deploy(
        approve_promotion,
        KIND,
        parameters={},
        labels={deployments.KIND: KIND},
        description=_DESCRIPTION,
        concurrency="enqueue",
    )
    asked = [each for each in _all_questions([deployment_id]) if each.reference == version]
    earlier = sum(each.kind not in _OPEN for each in asked)  # two at once start the same question
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
    approval_question.note(reference, "asked", flow_run_id=str(flow_run_id))
    for other in others:
        if other.waits and other.version != reference.version:
            answer(other, answer_form.superseded_by(reference.version))
    return (
        f"A person is asked whether {version} becomes champion: `patchline approve {version}`, "
        f"`patchline reject {version}`, or Resume in Prefect, within {config.approval_hours:g} h."
    )


def open_questions() -> list[Asked]:
    """Return the questions of this folder that are being prepared, wait, or are carried out.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    return _all_questions([each.id for each in deployments.deployments(KIND)], _OPEN)


def newer_question(name: str, version: str) -> str | None:
    """Return the newest version of the model that a person is asked about, if it is newer."""
    versions = [int(each.version) for each in open_questions() if each.name == name]
    newest = max(versions, default=0)
    return str(newest) if newest > int(version) else None


def look_at(asked: Asked) -> Asked:
    """Return what has become of a question.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        return _asked(client.read_flow_run(asked.flow_run_id))


def given_up(asked: Asked) -> bool:
    """Return whether the question's process was killed or failed too often to try again.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    with asking() as client:
        failed = retries.count_failures(client, asked.flow_run_id, _has_failed)
    return asked.failed and failed >= retries.MAX_FAILURES


def answer(asked: Asked, approval: Approval) -> bool:
    """Give an answer, and return whether it counts: the first one does.

    Raises:
        OrchestrationError: if the server does not answer, or does not take the answer.
    """
    given = approval.model_dump(mode="json")
    with asking() as client:
        result = client.resume_flow_run(asked.flow_run_id, run_input=given)
        reason = getattr(result.details, "reason", None) or ""
        if result.status == SetStateStatus.REJECT and "schema not found" in reason:
            answer_form.restore_form(client, asked.flow_run_id)
            result = client.resume_flow_run(asked.flow_run_id, run_input=given)
            reason = getattr(result.details, "reason", None) or ""
    if result.status == SetStateStatus.ACCEPT:
        return True
    if result.status == SetStateStatus.ABORT:
        return False
    raise OrchestrationError(
        f"Prefect did not take the answer to {asked.reference} ({reason}). Answer with Resume on "
        "the page of its flow run."
    )


def expire_overdue() -> None:
    """Refuse what nobody has answered in time, and let questions go on whose process was killed.

    The time counts by the clock, also while no server runs: what became overdue then is refused as
    soon as they run again, unless an answer comes first.

    Raises:
        OrchestrationError: if the server does not answer.
    """
    ids = [each.id for each in deployments.deployments(KIND)]
    if not ids:
        return
    now = dt.datetime.now(dt.UTC)
    for asked in _all_questions(ids, (StateType.PAUSED, StateType.CANCELLED, *_FAILED)):
        if asked.waits and asked.due < now:
            answer(asked, answer_form.expired(asked.hours))
        elif asked.failed and now - asked.since < retries.LOOK_BACK:
            go_on(asked, now)
        elif asked.kind == StateType.CANCELLED and asked.flow_run_id not in _withdrawn:
            _withdraw(asked)


def _withdraw(asked: Asked) -> None:
    """Write on the version that its question was cancelled: no process of its own could do it."""
    with contextlib.suppress(ModelReferenceError):  # the version is gone too
        reference = resolve(asked.reference)
        approval_question.withdraw(reference, str(asked.flow_run_id), "the question was cancelled")
    _withdrawn.add(asked.flow_run_id)


def go_on(asked: Asked, now: dt.datetime) -> None:
    """Start the flow of a question once more; an answer that was given counts."""
    with asking() as client:
        retries.retry_when_due(client, asked.flow_run_id, _has_failed, now)


def _has_failed(state: State[Any]) -> bool:
    """Return whether a question's flow ended for a reason that may have gone: it asks again."""
    return state.type in _FAILED


def _all_questions(
    deployment_ids: list[UUID], kinds: Iterable[StateType] | None = None
) -> list[Asked]:
    """Return the questions in states of these kinds, or in any; the oldest first."""
    if not deployment_ids:
        return []
    wanted: dict[str, Any] = {"deployment_id": {"any_": deployment_ids}}
    if kinds:
        wanted["state"] = {"type": {"any_": list(kinds)}}
    with asking() as client:
        found = flow_runs(client, wanted, FlowRunSort.EXPECTED_START_TIME_ASC)
    return [_asked(flow_run) for flow_run in found]


def _asked(flow_run: FlowRun) -> Asked:
    given, state = flow_run.parameters, flow_run.state
    config = PromotionConfig.model_validate(given.get("config") or {})
    return Asked(
        flow_run_id=flow_run.id,
        name=str(given.get("name")),
        version=str(given.get("version")),
        hours=config.approval_hours,
        state=(state.name if state else None) or "not started",
        kind=state.type if state else StateType.SCHEDULED,
        message=(state.message if state else None) or "",
        since=state.timestamp if state else dt.datetime.now(dt.UTC),
    )
