"""The commands `patchline models`, `promote`, `rollback`, `approve` and `reject`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from patchline.flows import prefect_session
from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, Switch, emit, without_needless_negatives
from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display, show_progress
from patchline.pipeline.errors import ConfigError, ModelReferenceError, OrchestrationError, RunError
from patchline.pipeline.registry.aliases import CHALLENGER, check_reason
from patchline.pipeline.registry.config import GateConfig
from patchline.pipeline.registry.gate_settings import gates_for
from patchline.pipeline.registry.registered_models import (
    ModelReference,
    champion_of,
    check_name,
    resolve,
    summaries,
    was_made_by,
)

if TYPE_CHECKING:
    from patchline.flows.approval.requests import ApprovalRequest
    from patchline.pipeline.registry.approval_answer import ApprovalAnswer
    from patchline.pipeline.registry.promotion import Promotion

REFUSED = 3
without_needless_negatives(GateConfig)


def promote(
    name: str,
    /,
    *,
    version: int | None = None,
    config: Path | None = None,
    force: Switch = False,
    reason: str | None = None,
    ask: Switch = False,
    as_json: Json = False,
    promotion: GateConfig | None = None,
) -> int:
    """Promote a version to champion if it passes the gates; exits with code 3 if one fails.

    Parameters
    ----------
    name
        The registered model.
    version
        The version to promote; default: the challenger, which is the newest version.
    config
        YAML file with the gates in its section `promotion`; default: the config of the
        version's own run.
    force
        Promote even if a gate fails; the history records it. Requires --reason.
    reason
        Reason for overruling the gates.
    ask
        Request approval instead of promoting at once; answer it with `patchline approve` or in
        the Prefect UI. Needs `patchline up`.
    promotion
        Gates; flags override the file.
    """
    if ask:
        if force or reason is not None:
            raise ConfigError(
                "--ask requests approval, so --force and --reason do not apply. Omit them."
            )
        return _request_approval(_version(name, version), config, promotion, as_json=as_json)
    with show_progress():
        decision = promote_version(
            name, version=version, config=config, promotion=promotion, force=force, reason=reason
        )
    from patchline.pipeline.registry.terminal_text import decision_text

    emit(decision, *decision_text(decision).split("\n"), as_json=as_json)
    return 0 if decision.promoted else REFUSED


def promote_version(
    name: str,
    *,
    version: int | str | None,
    config: Path | None,
    promotion: GateConfig | None,
    force: bool,
    reason: str | None,
) -> Promotion:
    """Decide whether a version becomes champion; the arguments are those of the command."""
    if force and not (reason or "").strip():
        raise ConfigError("--force overrules the gates, so it requires --reason TEXT.")
    if reason is not None and not force:
        raise ConfigError("--reason explains --force, which is missing. Add it, or omit --reason.")
    if promotion and "approval_hours" in promotion.model_fields_set:
        raise ConfigError(
            "promotion.approval_hours limits a request for approval, and none is made. Omit it, or "
            "request one with --ask."
        )
    reason = check_reason(reason)
    reference = _version(name, version)
    gates = gates_for(reference, config, promotion)
    from patchline.pipeline.registry.promotion import Request, decision_folder
    from patchline.pipeline.registry.promotion import promote as decide

    display().stage(f"Evaluating the gates for {reference.name}, version {reference.version}")
    request = Request(reference, gates, reason)
    decision, _ = decide(request, decision_folder(reference), display().note)
    if decision is None:  # cannot be: only a request for the first champion finds it taken
        raise RunError(f"The champion of '{name}' changed meanwhile. Try again.")
    events.emit_decision(decision)
    return decision


def _version(name: str, version: int | str | None) -> ModelReference:
    """Return the version that is meant; the challenger if none is named."""
    check_name(name)
    tell_closed()
    return resolve(f"{name}/{version}" if version is not None else f"{name}@{CHALLENGER}")


def _request_approval(
    reference: ModelReference,
    config: Path | None,
    promotion: GateConfig | None,
    *,
    as_json: bool,
) -> int:
    """Request approval; return 0 if it is pending, or not needed."""
    from patchline.flows import prefect_session

    gates = gates_for(reference, config, promotion)
    with prefect_session.connect():
        from patchline.flows.approval import approval_flow, requests

        sentence = approval_flow.request_approval(reference, gates)
        is_pending = requests.is_pending(reference)
    champion = champion_of(reference.name)
    sentence = sentence or f"version {reference.version} is already champion; nothing changed"
    content = {
        "promoted": champion == reference.version,
        "asked": is_pending,
        "name": reference.name,
        "version": reference.version,
        "champion": champion,
        "reason": sentence,
        "gates": [],
    }
    emit(content, sentence, as_json=as_json)
    return 0 if is_pending or champion == reference.version else 1


def rollback(name: str, /, *, reason: str | None = None, as_json: Json = False) -> None:
    """Roll back to the previous champion.

    Parameters
    ----------
    name
        The registered model.
    reason
        Reason for the rollback; recorded in the model's history.
    """
    reason = check_reason(reason)
    check_name(name)
    tell_closed()
    resolve(name)  # report an unknown name before anything is locked
    with show_progress():
        from patchline.pipeline.registry.promotion import rollback as roll_back

        display().stage(f"Rolling back to the previous champion of {name}")
        entry = roll_back(name, reason, display().note)
    facts = {"version": entry.to_version, "before": entry.from_version, "reason": entry.reason}
    events.emit(events.MODEL_ROLLED_BACK, f"patchline.model.{name}", {"name": name, **facts})
    emit(
        {"name": name, "champion": entry.to_version, **entry.model_dump(mode="json")},
        f"{name}, version {entry.to_version} is champion again, replacing version "
        f"{entry.from_version}. Reason: {entry.reason}.",
        as_json=as_json,
    )


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
    reason = check_reason(reason) or ""
    with show_progress(), prefect_session.connect():
        from patchline.flows.approval import approval_flow, requests
        from patchline.pipeline.registry.approval_answer import ApprovalAnswer, current_user

        approval_flow.expire_overdue()
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

    return _wait(requests.refresh(request))


def _wait(request: ApprovalRequest) -> ApprovalRequest:
    """Wait until a request needs an answer or is closed.

    Raises:
        OrchestrationError: if its flow run keeps failing, or nothing runs it.
    """
    from patchline.flows.approval import approval_flow, requests

    deadline, state = time.monotonic() + _PATIENCE_SECONDS, ""
    while not (request.waits or request.is_closed):
        if approval_flow.retries_exhausted(request):
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
        request = requests.refresh(request)
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


def models(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List registered models with their versions, aliases and metrics.

    Parameters
    ----------
    name
        List one model only, with the origin of its versions and the history of its aliases.
    """
    tell_closed()
    listed = summaries(name)
    from patchline.pipeline.registry.terminal_text import models_text

    emit(
        {"models": [model.model_dump(mode="json") for model in listed]},
        *models_text(listed, details=name is not None).split("\n"),
        as_json=as_json,
    )
