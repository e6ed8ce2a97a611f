"""The kinds of events that Patchline sends: their names, payloads and sentences.

The names and payload keys are stable; docs/how_to/notifications.md lists them, with those of the
built-in tools.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchline.pipeline.plugin_system.tools import tools
from patchline.pipeline.redaction import redacted

logger = logging.getLogger(__name__)

RUN_STARTED = "patchline.run.started"
RUN_FINISHED = "patchline.run.finished"
RUN_FAILED = "patchline.run.failed"
RUN_KILLED = "patchline.run.killed"
RUN_SKIPPED = "patchline.run.skipped"
MODEL_REGISTERED = "patchline.model.registered"
MODEL_PROMOTED = "patchline.model.promoted"
MODEL_REFUSED = "patchline.model.refused"
MODEL_ROLLED_BACK = "patchline.model.rolled_back"
APPROVAL_ASKED = "patchline.approval.asked"
APPROVAL_ANSWERED = "patchline.approval.answered"
APPROVAL_EXPIRED = "patchline.approval.expired"
DATA_CHANGED = "patchline.data.changed"
DATA_UPDATED = "patchline.data.updated"
SERVICES_RESTARTED = "patchline.services.restarted"

PREFIX = "patchline."
_LONGEST_VALUE = 500


@dataclass(frozen=True)
class Kind:
    """A kind of event: when it is sent, what it is about, and what it carries."""

    when: str
    """What has just happened, as docs/how_to/notifications.md describes it."""
    resource: str
    """The resource's id; the part in capitals is a placeholder."""
    payload: tuple[str, ...]
    """The keys of the payload besides `sentence`; a key without a value is left out."""
    sentence: str
    """The message for people; a missing key is shown as a question mark."""
    without_accuracy: str = ""
    """The message about an encoder, which has no accuracy."""


KINDS: Mapping[str, Kind] = {
    RUN_STARTED: Kind(
        "A training run has started and opened its MLflow run",
        "patchline.run.RUN_ID",
        ("name", "run_id", "data"),
        "Training of {name} has started.",
    ),
    RUN_FINISHED: Kind(
        "A training run has finished and registered its model",
        "patchline.run.RUN_ID",
        ("name", "run_id", "version", "accuracy", "seconds"),
        "Training of {name} has finished: version {version}, test accuracy {accuracy}.",
        "Training of {name} has finished: version {version}.",
    ),
    RUN_FAILED: Kind(
        "A training run has failed",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "Training of {name} has failed: {reason}",
    ),
    RUN_KILLED: Kind(
        "A training run was stopped, or its process was found dead",
        "patchline.run.RUN_ID",
        ("name", "run_id", "reason"),
        "Training of {name} was killed: {reason}",
    ),
    RUN_SKIPPED: Kind(
        "A watched folder has changed, but has too few new images to train on",
        "patchline.model.NAME",
        ("name", "new_images", "asked", "removed", "relabelled", "reason"),
        "Training of {name} was skipped: {reason}",
    ),
    MODEL_REGISTERED: Kind(
        "A version was registered",
        "patchline.model.NAME",
        ("name", "version", "run_id", "accuracy"),
        "Version {version} of {name} was registered, test accuracy {accuracy}.",
        "Version {version} of {name} was registered.",
    ),
    MODEL_PROMOTED: Kind(
        "A version became champion",
        "patchline.model.NAME",
        ("name", "version", "before", "forced", "reason"),
        "Version {version} of {name} is now champion: {reason}",
    ),
    MODEL_REFUSED: Kind(
        "A version was not promoted: a gate failed or approval was rejected",
        "patchline.model.NAME",
        ("name", "version", "champion", "reason"),
        "Version {version} of {name} was not promoted: {reason}",
    ),
    MODEL_ROLLED_BACK: Kind(
        "The previous champion was restored",
        "patchline.model.NAME",
        ("name", "version", "before", "reason"),
        "Rolled {name} back from version {before} to version {version}: {reason}",
    ),
    APPROVAL_ASKED: Kind(
        "A promotion is waiting for approval",
        "patchline.model.NAME",
        ("name", "version", "champion", "flow_run_id", "expires"),
        "Version {version} of {name} is waiting for approval until {expires}.",
    ),
    APPROVAL_ANSWERED: Kind(
        "A promotion was approved or rejected",
        "patchline.model.NAME",
        ("name", "version", "answer", "reason", "flow_run_id"),
        "The promotion of version {version} of {name} was answered: {reason}.",
    ),
    APPROVAL_EXPIRED: Kind(
        "An approval request expired without an answer, so the version was not promoted",
        "patchline.model.NAME",
        ("name", "version", "flow_run_id"),
        "The approval of version {version} of {name} has expired; the champion is unchanged.",
    ),
    DATA_CHANGED: Kind(
        "A watched folder has changed and settled; its run was started",
        "patchline.watch.WATCH",
        ("name", "folder", "files", "flow_run_id"),
        "The watched folder of {name} has changed ({files} files); a run was started.",
    ),
    DATA_UPDATED: Kind(
        "Sent by your own programs: a watched folder has new data",
        "patchline.watch.WATCH",
        (),
        "There is new data.",
    ),
    SERVICES_RESTARTED: Kind(
        "A server or the runner of `patchline up` died and was restarted",
        "patchline.service.SERVICE",
        ("service", "reason"),
        "`patchline up` restarted {service}: it {reason}.",
    ),
}


def kinds() -> Mapping[str, Kind]:
    """Return the events of Patchline, and those of the installed tools, by name."""
    of_tools = {
        each.name: Kind(each.when, each.resource, each.payload, each.sentence)
        for each in tools().besides(KINDS).events()
    }
    return {**KINDS, **of_tools}


class _QuestionMarks(dict[str, Any]):
    """The values of a sentence; a missing key becomes a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def complete_payload(event: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an event carries: its documented keys, and the sentence for people.

    Credentials in URLs are removed and long texts truncated; undocumented keys are dropped.
    """
    kind = kinds()[event]
    for key in facts.keys() - set(kind.payload):
        logger.debug("the event %s has no key '%s'", event, key)
    kept = {key: _safe(facts[key]) for key in kind.payload if facts.get(key) not in (None, "")}
    shown = {key: f"{each:.4g}" if isinstance(each, float) else each for key, each in kept.items()}
    short = kind.without_accuracy if "accuracy" not in kept else ""
    return {**kept, "sentence": (short or kind.sentence).format_map(_QuestionMarks(shown))}


def _safe(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    return redacted(str(value))[:_LONGEST_VALUE]
