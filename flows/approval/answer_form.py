"""The form that a person fills in to answer a promotion, and how Prefect keeps the answer.

A question is asked once against each champion. The answer is stored with the flow run under the
champion's key, so that whoever carries the flow run out finds it, also after a crash.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import Keyset, keyset_from_base_key, keyset_from_paused_state
from pydantic import Field, ValidationError

NOBODY = "nobody"
"""Who answers when the time is over."""
NEWER_VERSION = "a newer version"
"""Who answers when a newer version of the same model is asked about."""
LONGEST_REASON = 500
_PREFIX = "suspended-"
_RESPONSE = "-response"
_MOST_ANSWERS = 200


class Approval(RunInput):
    """Shall this version become champion?"""

    decision: Literal["approve", "reject"] = Field(
        description="approve makes the version champion if the gates let it pass."
    )
    who: str = Field(
        min_length=1, max_length=100, description="Your name; it stands in the model's history."
    )
    reason: str = Field(
        default="",
        max_length=LONGEST_REASON,
        description="Why; it stands in the model's history. Needed to overrule gates.",
    )
    force: bool = Field(
        default=False, description="Approve although a gate refuses; the history shows it."
    )

    @property
    def words(self) -> str:
        """The answer in one line, as it stands in the history."""
        reason = one_line(self.reason)
        if self.who in (NOBODY, NEWER_VERSION):
            return reason
        said = "approved" if self.decision == "approve" else "rejected"
        return f"{said} by {one_line(self.who)}{': ' + reason if reason else ''}"


def expired(hours: float) -> Approval:
    """Return the answer to a question that nobody answered in time."""
    unit = "hour" if hours == 1 else "hours"
    words = f"nobody answered within {hours:g} {unit}"
    return Approval(decision="reject", who=NOBODY, reason=words)


def superseded_by(version: str) -> Approval:
    """Return the answer to a question that a newer version of the model has made idle."""
    words = f"superseded: a person is asked about version {version}, which is newer"
    return Approval(decision="reject", who=NEWER_VERSION, reason=words)


def one_line(text: str) -> str:
    """Return plain text that fits into a history: no line breaks, no escapes."""
    return " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())


def question_key(champion: str | None) -> str:
    """Return the key of the question whether a version is to replace this champion."""
    return f"against-{champion or 'none'}"


def answers(client: SyncPrefectClient, flow_run_id: UUID) -> Mapping[str, Approval]:
    """Return what was answered, by the key of the question."""
    prefix = f"{_PREFIX}against-"
    found = client.filter_flow_run_input(
        flow_run_id=flow_run_id, key_prefix=prefix, limit=_MOST_ANSWERS, exclude_keys=set()
    )
    given = {}
    for each in found:
        if each.key.endswith(_RESPONSE):
            with contextlib.suppress(ValidationError):  # forced past the form by hand: ask again
                key = each.key.removeprefix(_PREFIX).removesuffix(_RESPONSE)
                given[key] = Approval(**json.loads(each.value))
    return given


def forget_question(client: SyncPrefectClient, flow_run_id: UUID, key: str) -> None:
    """Remove what an earlier attempt has left of a question, which could not be asked again."""
    _forget(client, flow_run_id, keyset_from_base_key(f"{_PREFIX}{key}"))


def _forget(client: SyncPrefectClient, flow_run_id: UUID, keyset: Keyset) -> None:
    for stored in keyset.values():
        with contextlib.suppress(ObjectNotFound):
            try:
                client.delete_flow_run_input(flow_run_id=flow_run_id, key=stored)
            except PrefectHTTPStatusError as error:
                if error.response.status_code != 404:  # noqa: PLR2004 - HTTP: not found
                    raise


def restore_form(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    """Store the form of a question whose process was killed before it could."""
    state = client.read_flow_run(flow_run_id).state
    if state is not None and state.is_paused():
        keyset = keyset_from_paused_state(state)
        _forget(client, flow_run_id, keyset)
        Approval.save(keyset, flow_run_id)
