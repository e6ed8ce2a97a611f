"""An answer to an approval request, and the note about the request on the model version."""

from __future__ import annotations

import datetime as dt
import getpass
import os
from typing import Literal, get_args

from pydantic import Field

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.frozen_model import DocumentedModel, FrozenModel
from patchline.pipeline.registry.aliases import LONGEST_REASON, one_line
from patchline.pipeline.registry.registered_models import (
    APPROVAL_RECORD,
    ModelReference,
    summaries,
    write_record,
)

NOBODY = "nobody"
"""Who answers a request that expires."""
NEWER_VERSION = "a newer version"
"""Who answers a request that a newer version supersedes."""

State = Literal["asked", "approved", "rejected", "expired", "superseded", "cancelled"]
_WAITING: State = "asked"
_OUTCOMES: dict[str, State] = {NOBODY: "expired", NEWER_VERSION: "superseded"}


def current_user() -> str:
    """Return the name of the user of this process, to record who answered."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        return f"user {os.getuid()}" if hasattr(os, "getuid") else "unknown user"


class ApprovalAnswer(DocumentedModel):
    """Should this version become champion?"""

    decision: Literal["approve", "reject"]
    """approve promotes the version if it passes the gates."""
    who: str = Field(min_length=1, max_length=100)
    """Your name, recorded in the model's history."""
    reason: str = Field(default="", max_length=LONGEST_REASON)
    """Why, recorded in the model's history. Give a reason if you overrule gates."""
    force: bool = False
    """Approve even if a gate fails; the history records it."""

    @property
    def approves(self) -> bool:
        """Whether the version was approved."""
        return self.decision == "approve"

    @property
    def text(self) -> str:
        """The answer on one line, as in the history: `approved by Ada: looks good`."""
        reason = one_line(self.reason)
        if self.who in (NOBODY, NEWER_VERSION):
            return reason
        verb = "approved" if self.approves else "rejected"
        return f"{verb} by {one_line(self.who)}{': ' + reason if reason else ''}"

    @property
    def force_reason(self) -> str | None:
        """Why gates are overruled; none if they are respected."""
        return (one_line(self.reason) or "no reason given") if self.force else None

    @property
    def state(self) -> State:
        """The state of a request that was closed with this answer."""
        return "approved" if self.approves else _OUTCOMES.get(self.who, "rejected")


def answer_expired(hours: float) -> ApprovalAnswer:
    """Return the answer to a request that nobody answered in time."""
    unit = "hour" if hours == 1 else "hours"
    return ApprovalAnswer(
        decision="reject", who=NOBODY, reason=f"nobody answered within {hours:g} {unit}"
    )


def answer_superseded(version: str) -> ApprovalAnswer:
    """Return the answer to a request that a newer version of the model supersedes."""
    reason = f"superseded: approval was requested for the newer version {version}"
    return ApprovalAnswer(decision="reject", who=NEWER_VERSION, reason=reason)


class Note(FrozenModel):
    """The state of an approval request, recorded on the model version."""

    state: State
    by: str = ""
    """Who answered."""
    reason: str = ""
    flow_run_id: str = ""
    """ID of the Prefect flow run that waits for the answer."""
    at: str
    """The time of this state: ISO 8601, UTC."""


def note(
    reference: ModelReference,
    state: State,
    *,
    flow_run_id: str,
    by: str = "",
    reason: str = "",
) -> None:
    """Record the state of an approval request on the model version."""
    content = Note(
        state=state,
        by=one_line(by),
        reason=one_line(reason),
        flow_run_id=flow_run_id,
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    write_record(reference, APPROVAL_RECORD, content.model_dump_json())


def note_cancelled(reference: ModelReference, flow_run_id: str) -> None:
    """Record that a request was cancelled, if it is the one that the version waits for."""
    known = _read_note(reference)
    if (known.get("state"), known.get("flow_run_id")) == (_WAITING, flow_run_id):
        reason = "the request was cancelled"
        note(reference, "cancelled", reason=reason, flow_run_id=flow_run_id)


def refuse_closed(reference: ModelReference) -> None:
    """Raise an error if a version's approval request is closed.

    Raises:
        ModelReferenceError: with the request's outcome, and how to request approval again.
    """
    known = _read_note(reference)
    if known.get("state") not in set(get_args(State)) - {_WAITING}:
        return
    by = f" by {known['by']}" if known.get("by") else ""
    raise ModelReferenceError(
        f"The approval request for {reference.name}/{reference.version} is closed: "
        f"{known['state']}{by} at {known.get('at')}. Request approval again with `patchline "
        f"promote {reference.name} --version {reference.version} --ask`."
    )


def _read_note(reference: ModelReference) -> dict[str, str]:
    """Return what a version's note says; empty if there is none, or it was written by hand."""
    [model] = summaries(reference.name)
    [version] = [each for each in model.versions if each.version == reference.version]
    return version.approval or {}
