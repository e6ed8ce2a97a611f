"""The commands `patchline approve` and `patchline reject`, and the question of `promote --ask`."""

from __future__ import annotations

import getpass
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from flows import prefect_session
from flows.closing.close_runs import tell_closed
from flows.commands.promote import REFUSED, check_name, gates_of, one_line
from flows.commands.switches import Json
from flows.progress import display, shown
from pipeline.errors import ModelReferenceError, OrchestrationError
from pipeline.registry import history
from pipeline.registry.config import PromotionConfig
from pipeline.registry.history import CHALLENGER, CHAMPION
from pipeline.registry.registered_models import ModelReference, resolve, summaries
from pipeline.tracking.tracking_store import client, store_exists

if TYPE_CHECKING:
    from flows.approval.questions import Asked

Run = Annotated[
    str,
    Parameter(
        help="The run that made the version: its id or its name; or the version, NAME/VERSION."
    ),
]
Reason = Annotated[str | None, Parameter(help="Why; it stands in the history.")]
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 600.0
_SHORTEST_ID = 4


def approve(run: Run, /, *, reason: Reason = None, as_json: Json = False) -> int:
    """Let a version become champion that waits for a person's answer."""
    return _answer(run, approved=True, reason=reason, as_json=as_json)


def reject(run: Run, /, *, reason: Reason = None, as_json: Json = False) -> int:
    """Refuse a version that waits for a person's answer."""
    return _answer(run, approved=False, reason=reason, as_json=as_json)


def _answer(run: str, *, approved: bool, reason: str | None, as_json: bool) -> int:
    """Answer a question, wait until the answer is carried out, and say what came of it.

    Returns:
        0 if it was done; 3 if the version was approved and is not champion all the same.
    """
    words = one_line(reason or "")
    decision = "approve" if approved else "reject"
    with shown(), prefect_session.connected():
        from flows.approval import questions
        from flows.approval.answer_form import Approval

        questions.expire_overdue()
        asked = _question(run)
        display().stage(f"Answering the question about {asked.reference}")
        asked = _prepared(asked)
        approval = Approval(decision=decision, who=_user(), reason=words)
        if not asked.waits or not questions.answer(asked, approval):
            raise _too_late(_ended(asked))
        display().stage("The answer is recorded; the runner of `patchline up` carries it out")
        ended = _ended(asked)
    return _print(ended, approved=approved, as_json=as_json)


def print_question(
    name: str,
    *,
    version: int | None,
    config: Path | None,
    promotion: PromotionConfig | None,
    as_json: bool,
) -> int:
    """Ask a person whether a version shall become champion; return 0 when that has begun."""
    check_name(name)
    tell_closed()
    reference = resolve(f"{name}/{version}" if version is not None else f"{name}@{CHALLENGER}")
    gates = gates_of(reference, config, promotion)
    with prefect_session.connected():
        from flows.approval import questions

        sentence = questions.ask(reference, gates)
        asked = any(
            (each.name, each.version) == (reference.name, reference.version)
            for each in questions.open_questions()
        )
    champion = history.alias_of(client(), reference.name, CHAMPION)
    sentence = sentence or f"version {reference.version} is the champion already; nothing changed"
    if as_json:
        content = {
            "promoted": champion == reference.version,
            "asked": asked,
            "name": reference.name,
            "version": reference.version,
            "champion": champion,
            "reason": sentence,
            "gates": [],
        }
        print(json.dumps(content, indent=2))
    else:
        print(sentence)
    return 0 if asked or champion == reference.version else 1


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        return f"the user {os.getuid()}" if hasattr(os, "getuid") else "somebody"


def _question(run: str) -> Asked:
    """Return the open question about a version, given as NAME/VERSION or by its run.

    Raises:
        ModelReferenceError: if none or several match; it lists what waits.
    """
    from flows.approval import questions

    waiting = questions.open_questions()
    found = [each for each in waiting if run == each.reference]
    if not found:
        found = [each for each in waiting if _is_of_run(each, run)]
    listed = ", ".join(each.reference for each in found or waiting) or "nothing"
    if not found:
        if "/" in run:
            _refuse_answered(resolve(run))  # or say that there is no such model or version
        raise ModelReferenceError(
            f"No question about '{run}' waits for an answer. Waiting: {listed}. Give NAME/VERSION, "
            "or the run that made the version."
        )
    if len(found) > 1:
        raise ModelReferenceError(
            f"'{run}' stands for several versions that wait: {listed}. Give one of these."
        )
    return found[0]


def _refuse_answered(reference: ModelReference) -> None:
    """Say what became of the question about a version that waits no longer.

    Raises:
        ModelReferenceError: if there was a question.
    """
    [model] = summaries(reference.name)
    [known] = [each for each in model.versions if each.version == reference.version]
    note = known.approval or {}
    if note.get("state") in {"approved", "rejected", "expired", "superseded", "cancelled"}:
        by = f" by {note['by']}" if note.get("by") else ""
        raise ModelReferenceError(
            f"The question about {reference.name}/{reference.version} is closed: it was "
            f"{note['state']}{by} at {note.get('at')}. Ask again with `patchline promote "
            f"{reference.name} --version {reference.version} --ask`."
        )


def _is_of_run(asked: Asked, run: str) -> bool:
    """Return whether a run, given by its name or the beginning of its id, made the version."""
    from mlflow.exceptions import MlflowException

    if not store_exists():
        return False
    store = client()
    try:
        run_id = str(store.get_model_version(asked.name, asked.version).run_id)
        if len(run) >= _SHORTEST_ID and run_id.startswith(run):
            return True
        return bool(store.get_run(run_id).info.run_name == run)
    except MlflowException:  # the version or its run was deleted; NAME/VERSION still finds it
        return False


def _prepared(asked: Asked) -> Asked:
    """Wait until the comparison is made and the question asked."""
    if not asked.waits:
        display().note("the comparison is still being made; waiting for it")
    return _followed(asked, until_it_waits=True)


def _ended(asked: Asked) -> Asked:
    """Wait until the answer is carried out, or the question is asked again."""
    return _followed(asked, until_it_waits=False)


def _followed(asked: Asked, *, until_it_waits: bool) -> Asked:
    """Look at a question until something is to be said about it.

    Raises:
        OrchestrationError: if nothing carries it out.
    """
    from flows.approval import questions

    deadline, state = time.monotonic() + _PATIENCE_SECONDS, ""
    now = asked if until_it_waits else questions.look_at(asked)
    while not (now.waits or now.is_over):
        if questions.given_up(now):
            raise OrchestrationError(
                f"The flow that asks about {asked.reference} failed again and again "
                f"({now.message}). An answer that was given is kept; Retry on the page of its flow "
                "run goes on with it."
            )
        if time.monotonic() > deadline:
            raise OrchestrationError(
                f"Nothing has carried out the flow that asks about {asked.reference} for "
                f"{_PATIENCE_SECONDS / 60:.0f} minutes; an answer that was given is kept. Look "
                "whether `patchline up` runs and its runner is free."
            )
        if now.state != state:
            state = now.state
            display().note(f"its flow run: {state.lower()}")
        time.sleep(_POLL_SECONDS)
        now = questions.look_at(asked)
    return now


def _too_late(ended: Asked) -> ModelReferenceError:
    if ended.waits:
        return ModelReferenceError(
            f"The question about {ended.reference} changed while you answered. Answer again."
        )
    return ModelReferenceError(
        f"The question about {ended.reference} was answered already, so this answer does not "
        f"count. {ended.state}: {ended.message}."
    )


def _print(ended: Asked, *, approved: bool, as_json: bool) -> int:
    from flows.approval.approval_flow import ALREADY, GONE, PROMOTED

    if ended.state == GONE:
        raise ModelReferenceError(ended.message)
    promoted = ended.state in (PROMOTED, ALREADY)
    reason = ended.message
    if ended.waits:
        reason = (
            "the champion changed meanwhile, so the comparison was made again and the question is "
            "asked again"
        )
    verdict = "waits for an answer again" if ended.waits else ended.state.lower()
    champion = _champion(ended.name)
    if as_json:
        content = {
            "answer": "approved" if approved else "rejected",
            "promoted": promoted,
            "name": ended.name,
            "version": ended.version,
            "champion": champion,
            "reason": reason,
        }
        print(json.dumps(content, indent=2))
    else:
        print(f"{ended.name}, version {ended.version}: {verdict}")
        print(f"  reason: {reason}")
        print(f"  champion now: {f'version {champion}' if champion else 'none'}")
    return 0 if promoted == approved and not ended.waits else REFUSED


def _champion(name: str) -> str | None:
    from mlflow.exceptions import MlflowException

    try:
        return history.alias_of(client(), name, CHAMPION)
    except MlflowException:  # the model was deleted
        return None
