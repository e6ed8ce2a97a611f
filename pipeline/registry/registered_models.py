"""What the registry holds: versions, aliases, figures, classes."""

from __future__ import annotations

import datetime as dt
import difflib
import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.errors import ModelReferenceError
from pipeline.registry import history
from pipeline.registry.history import CHAMPION, AliasChange
from pipeline.section import Section
from pipeline.tracking.tracked_run import FLOW_RUN_TAG
from pipeline.tracking.tracking_store import client, store_exists

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion


CLASSES_TAG, DIGEST_TAG = "patchline.classes", "patchline.classes_sha256"
FINGERPRINT_TAG = "patchline.data_fingerprint"
COMMIT_TAG = "patchline.commit"
DECISION_TAG = "patchline.decision"
APPROVAL_TAG = "patchline.approval"
_LONGEST_TAG = 4000
_REFERENCE = re.compile(
    r"^(?:models:/)?(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)"
    r"(?:@(?P<alias>[A-Za-z][A-Za-z0-9_-]*)|/(?P<version>\d+))?$"
)


class VersionSummary(Section):
    """One version of a registered model."""

    version: str
    aliases: tuple[str, ...]
    run_id: str
    metrics: dict[str, float]
    data_fingerprint: str
    commit: str
    """Of Patchline's source, when the version was registered."""
    flow_run_id: str
    """Of the Prefect flow that made it."""
    created_at: str
    """ISO 8601, UTC."""
    decision: dict[str, Any] | None
    """What was decided last when the version asked to become champion."""
    approval: dict[str, Any] | None = None
    """Whether a person is asked or has answered; see `approving.Note`."""


class ModelSummary(Section):
    """A registered model, its versions, newest first, and the history of its aliases."""

    name: str
    versions: tuple[VersionSummary, ...]
    history: tuple[AliasChange, ...]
    """Oldest first."""


class ModelReference(NamedTuple):
    """What a reference such as `flowers@champion` points at."""

    name: str
    version: str
    source: str
    """Where the package is: a `models:/m-…` URI."""


def class_tags(classes: tuple[str, ...]) -> dict[str, str]:
    """Return the tags that say which classes a version knows, in order."""
    listed = json.dumps(list(classes))
    digest = hashlib.sha256(listed.encode()).hexdigest()
    return {DIGEST_TAG: digest, **({CLASSES_TAG: listed} if len(listed) <= _LONGEST_TAG else {})}


def check_classes(name: str, classes: tuple[str, ...]) -> None:
    """Refuse a name whose newest version knows other classes.

    Raises:
        ModelReferenceError: naming the classes that differ.
    """
    versions = _versions(client(), name) if store_exists() else []
    if not versions:
        return
    newest = versions[0]
    if newest.tags.get(DIGEST_TAG) in (None, class_tags(classes)[DIGEST_TAG]):
        return
    known = set(json.loads(newest.tags.get(CLASSES_TAG, "[]")))
    added, missing = sorted(set(classes) - known), sorted(known - set(classes))
    parts = [f"{len(classes)} classes here, {len(known)} there"] if known else []
    parts += [f"only here: {_few(added)}"] if added and known else []
    parts += [f"only there: {_few(missing)}"] if missing else []
    raise ModelReferenceError(
        f"The registered model '{name}' (version {newest.version}) has other classes than this "
        f"data ({'; '.join(parts) or 'too many to list'}). Choose another name with --name."
    )


def summaries(name: str | None = None) -> list[ModelSummary]:
    """Return all registered models, or the one of that name.

    Raises:
        ModelReferenceError: if there is no model of that name.
    """
    if not store_exists():
        names: list[str] = []
    else:
        store = client()
        names = sorted(model.name for model in store.search_registered_models(max_results=1000))
    if name is not None:
        if name not in names:
            raise _unknown(f"There is no registered model '{name}'.", name, names)
        names = [name]
    return [_summary(store, each) for each in names]


def resolve(reference: str) -> ModelReference:
    """Return the version that a reference names: `flowers`, `flowers@champion`, `flowers/3`.

    A bare name means its champion.

    Raises:
        ModelReferenceError: if the form is wrong, or there is no such model, version or alias.
    """
    name, at, number = reference.partition("@")
    if at and number.isdigit():
        raise ModelReferenceError(f"A version is written {name}/{number}, not {reference}.")
    match = _REFERENCE.match(reference)
    if match is None:
        raise ModelReferenceError(
            f"'{reference}' is not a model. Write NAME, NAME@ALIAS, NAME/VERSION or "
            "models:/NAME@ALIAS."
        )
    [model] = summaries(match["name"])
    by_version = {version.version: version for version in model.versions}
    if match["version"]:
        chosen = match["version"]
        if chosen not in by_version:
            there = ", ".join(sorted(by_version, key=int)) or "none"
            raise ModelReferenceError(f"'{model.name}' has no version {chosen}. It has: {there}.")
    else:
        alias = match["alias"] or CHAMPION
        aliases = {a: version.version for version in model.versions for a in version.aliases}
        if alias not in aliases:
            raise _unknown(f"'{model.name}' has no alias '{alias}'.", alias, sorted(aliases))
        chosen = aliases[alias]
    version = client().get_model_version(model.name, chosen)
    return ModelReference(model.name, chosen, str(version.source))


def aliases(name: str, version: str) -> tuple[str, ...]:
    """Return the aliases that point at a version."""
    found = client().get_registered_model(name).aliases
    return tuple(sorted(alias for alias, number in found.items() if str(number) == version))


def _versions(store: MlflowClient, name: str) -> list[ModelVersion]:
    quoted = name.replace("'", "''")
    found = store.search_model_versions(f"name = '{quoted}'", max_results=10_000)
    return sorted(found, key=lambda version: -int(version.version))


def _summary(store: MlflowClient, name: str) -> ModelSummary:
    aliases: dict[str, str] = dict(store.get_registered_model(name).aliases)
    versions = []
    for version in _versions(store, name):
        metrics = _run_metrics(store, version.run_id)
        number = str(version.version)
        versions.append(
            VersionSummary(
                version=number,
                aliases=tuple(sorted(a for a, v in aliases.items() if str(v) == number)),
                run_id=version.run_id or "",
                metrics={k: v for k, v in metrics.items() if k.startswith("test/")},
                data_fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
                commit=version.tags.get(COMMIT_TAG, ""),
                flow_run_id=version.tags.get(FLOW_RUN_TAG, ""),
                created_at=_moment(version.creation_timestamp),
                decision=_recorded(version.tags.get(DECISION_TAG)),
                approval=_recorded(version.tags.get(APPROVAL_TAG)),
            )
        )
    return ModelSummary(
        name=name, versions=tuple(versions), history=tuple(history.read(store, name))
    )


def _moment(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="seconds")


def _recorded(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None  # written by hand
    return found if isinstance(found, dict) else None


def _run_metrics(store: MlflowClient, run_id: str | None) -> dict[str, float]:
    from mlflow.exceptions import MlflowException

    try:
        metrics: dict[str, Any] = store.get_run(run_id).data.metrics if run_id else {}
    except MlflowException:
        return {}  # the run was deleted; the version still works
    return metrics


def _unknown(what: str, name: str, known: list[str]) -> ModelReferenceError:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return ModelReferenceError(f"{what}{hint} There are: {', '.join(known) or 'none yet'}.")


def _few(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
