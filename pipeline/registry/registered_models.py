"""Read the registry: models, versions, aliases, metrics, classes, and the records on a version."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task
from patchline.pipeline.errors import ConfigError, ModelReferenceError, suggest_name
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import UNKNOWN
from patchline.pipeline.redaction import redact_text
from patchline.pipeline.registry.aliases import (
    CHAMPION,
    AliasChange,
    alias_of,
    changes_in,
    parsed,
)
from patchline.pipeline.registry.registry_reading import Registry, open_registry
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.workspace.tracking.tracked_run import FLOW_RUN_TAG
from patchline.pipeline.workspace.tracking.tracking_store import (
    client,
    store_exists,
    unless_deleted,
    use_store,
)

CLASSES_TAG, DIGEST_TAG = "patchline.classes", "patchline.classes_sha256"
TASK_TAG = "patchline.task"
"""Of a multi-label version: what it answers; other versions do not have it."""
FINGERPRINT_TAG = "patchline.data_fingerprint"
PROVENANCE_TAG = "patchline.seen_images"
"""Of a version: whether all images that its weights have seen are recorded."""
CHECKED_TAG = "patchline.checked_predictions"
"""Of a version: SHA-256 of the table of predictions that its package was compared with."""
TEST_IMAGES_TAG = "patchline.test_images"
TAUGHT_BY_TAG = "patchline.taught_by"
"""Of a version: the teacher whose predictions it was trained towards, in words."""
COMMIT_TAG = "patchline.commit"
DECISION_RECORD, APPROVAL_RECORD = "patchline.decision", "patchline.approval"
"""Records on a version, each JSON with the time in `at`; see `write_record`."""
HIDDEN = "mlflow."
"""The MLflow UI does not show tags whose names begin with this."""
METRICS_TAG = HIDDEN + "patchline.test_metrics"
"""Of a version: the test metrics of its run as JSON, so that a list of versions needs no runs."""
_LONGEST_TAG = 4000
_SHORTEST_ID = 4
"""Characters of a run id that are enough to name it."""


class VersionSummary(FrozenModel):
    """One version of a registered model."""

    version: str
    aliases: tuple[str, ...]
    run_id: str
    metrics: dict[str, float]
    data_fingerprint: str
    test_images: str
    """Version of the images that its test metrics belong to; equal for comparable metrics."""
    provenance: str
    """Whether all images that it has seen are recorded: known, upstream corpus unknown, unknown."""
    taught_by: str
    """The teacher whose predictions it was trained towards; empty without one."""
    commit: str
    """The commit of Patchline's source when the version was registered."""
    flow_run_id: str
    """ID of the Prefect flow run that made it."""
    created_at: str
    """The time at which the version was registered: ISO 8601, UTC."""
    decision: dict[str, Any] | None
    """The latest decision on whether the version becomes champion."""
    approval: dict[str, Any] | None = None
    """The state of the latest approval request; see `approval_answer.Note`."""


class ModelSummary(FrozenModel):
    """A registered model, its versions, newest first, and the history of its aliases."""

    name: str
    versions: tuple[VersionSummary, ...]
    history: tuple[AliasChange, ...]
    """Changes of the model's aliases, the oldest first."""


class ModelReference(NamedTuple):
    """The version that a reference such as `flowers@champion` points to."""

    name: str
    version: str
    source: str
    """URI of the package: `models:/m-…`."""


GIVEN: dict[str, str] = {SINGLE_LABEL: "one label", MULTI_LABEL: "any number of labels"}
"""How many labels a version of a task gives an image, in words."""


def class_tags(classes: tuple[str, ...]) -> dict[str, str]:
    """Return the tags that list a version's classes, in order."""
    listed = json.dumps(list(classes))
    digest = hashlib.sha256(listed.encode()).hexdigest()
    return {DIGEST_TAG: digest, **({CLASSES_TAG: listed} if len(listed) <= _LONGEST_TAG else {})}


def task_tag(task: Task) -> dict[str, str]:
    """Return the tag that tells what a version answers; none for one label for each image."""
    return {} if task == SINGLE_LABEL else {TASK_TAG: task}


def task_of(reference: ModelReference) -> Task | None:
    """Return how many labels a version gives an image; None if its tags do not tell."""
    tags = client().get_model_version(reference.name, reference.version).tags
    if DIGEST_TAG not in tags:
        return None
    return MULTI_LABEL if tags.get(TASK_TAG) == MULTI_LABEL else SINGLE_LABEL


def check_classes(name: str, classes: tuple[str, ...], task: Task = SINGLE_LABEL) -> None:
    """Check that a model's newest version has these classes, and answers with as many for an image.

    Raises:
        ModelReferenceError: if it has others; the message lists the differences.
    """
    versions = open_registry().versions(name) if store_exists() else []
    if not versions:
        return
    newest = versions[0]
    before = newest.tags.get(TASK_TAG, SINGLE_LABEL)
    if DIGEST_TAG in newest.tags and before != task:
        raise ModelReferenceError(
            f"The registered model '{name}' (version {newest.version}) gives an image "
            f"{GIVEN[before]}, but this data has {GIVEN[task]} for each image. Choose another "
            "name with --name, or set data.task."
        )
    if newest.tags.get(DIGEST_TAG) in (None, class_tags(classes)[DIGEST_TAG]):
        return
    classes_before = set(json.loads(newest.tags.get(CLASSES_TAG, "[]")))
    added, missing = sorted(set(classes) - classes_before), sorted(classes_before - set(classes))
    parts = [f"{len(classes)} classes here, {len(classes_before)} there"] if classes_before else []
    parts += [f"only here: {few_names(added)}"] if added and classes_before else []
    parts += [f"only there: {few_names(missing)}"] if missing else []
    raise ModelReferenceError(
        f"The registered model '{name}' (version {newest.version}) has other classes than this "
        f"data ({'; '.join(parts) or 'too many to list'}). Choose another name with --name. "
        f"Add --model.init {name}/{newest.version} to start from this version; it matches classes "
        "by name."
    )


def summaries(name: str | None = None) -> list[ModelSummary]:
    """Return all registered models, or the one with this name.

    Raises:
        ModelReferenceError: if there is no model with this name.
    """
    names = _names()
    if name is not None:
        _check_known(name, names)
        names = [name]
    return [_summary(open_registry(), each) for each in names]


def _names() -> list[str]:
    return open_registry().names() if store_exists() else []


def _check_known(name: str, names: list[str]) -> None:
    if name not in names:
        what = f"There is no registered model '{name}'."
        none = (
            f"No models are registered yet in the store of this folder, "
            f"{redact_text(use_store())}. Change to the folder in which the model was trained, or "
            "set MLFLOW_TRACKING_URI."
        )
        raise _unknown(what, name, names, "Registered models", none)


def resolve(reference: str) -> ModelReference:
    """Return the version that a reference names: `flowers`, `flowers@champion`, `flowers/3`.

    A name alone means the champion.

    Raises:
        ModelReferenceError: if the reference is malformed, or no such model, version or alias
            exists.
    """
    name, alias, version = parsed(reference)
    aliases = _aliases(name)
    if alias is not None:
        if alias not in aliases:
            what = f"'{name}' has no alias '{alias}'."
            raise _unknown(what, alias, sorted(aliases), "Its aliases", "It has no aliases.")
        version = aliases[alias]
    assert version is not None  # noqa: S101 - a reference has the one or the other
    return ModelReference(name, version, _source(name, version))


def _aliases(name: str) -> dict[str, str]:
    """Return the version that each alias of a model points to.

    Raises:
        ModelReferenceError: if there is no model with this name.
    """
    model = open_registry().model(name) if store_exists() else None
    if model is None:
        _check_known(name, _names())
        return {}
    return model.aliases


def _source(name: str, version: str) -> str:
    """Return where the package of a version is.

    Raises:
        ModelReferenceError: if the model has no such version.
    """
    versions = open_registry().versions(name)
    for each in versions:
        if each.version == int(version):
            return each.source
    there = ", ".join(str(each.version) for each in reversed(versions))
    listed = f"Its versions: {there}." if there else "It has no versions."
    raise ModelReferenceError(f"'{name}' has no version {version}. {listed}")


def version_numbers(name: str) -> set[str]:
    """Return the versions of a model."""
    return {str(each.version) for each in open_registry().versions(name)}


def run_of(reference: ModelReference) -> str:
    """Return the id of the run that trained a version.

    Raises:
        ModelReferenceError: if the registry does not know it.
    """
    run_id = client().get_model_version(reference.name, reference.version).run_id
    if not run_id:
        raise ModelReferenceError(
            f"{reference.name}, version {reference.version}, has no run. Name another version."
        )
    return str(run_id)


def check_name(name: str) -> None:
    """Check that a command was given a model name, not a reference.

    Raises:
        ConfigError: for `flowers@champion`, `flowers/2` and the like.
    """
    if not name or any(sign in name for sign in "@/:"):
        raise ConfigError(
            f"'{name}' is not the name of a registered model. Pass the bare name; promote takes a "
            "version with --version."
        )


def was_made_by(name: str, version: str, run: str) -> bool:
    """Return whether a run, given by its name or the beginning of its id, made the version."""
    if not store_exists():
        return False
    store = client()
    with unless_deleted():
        run_id = str(store.get_model_version(name, version).run_id)
        if len(run) >= _SHORTEST_ID and run_id.startswith(run):
            return True
        return bool(store.get_run(run_id).info.run_name == run)
    return False


class NewestVersion(NamedTuple):
    """The version of a model that counts: its champion, else its newest."""

    name: str
    version: str
    is_encoder: bool
    """Whether it has no classes."""


def newest_versions() -> list[NewestVersion]:
    """Return the champion of each registered model, or its newest version if it has none."""
    chosen = []
    encoder = class_tags(())[DIGEST_TAG]
    for name in _names():
        versions = open_registry().versions(name)
        champion = champion_of(name)
        found = next((each for each in versions if str(each.version) == champion), None)
        if versions:
            version = found or versions[0]
            is_encoder = version.tags.get(DIGEST_TAG) == encoder
            chosen.append(NewestVersion(name, str(version.version), is_encoder))
    return chosen


def champion_of(name: str) -> str | None:
    """Return the version that is champion; none if there is none, or no such model."""
    with unless_deleted():
        return alias_of(client(), name, CHAMPION)
    return None


def write_record(reference: ModelReference, name: str, content: str) -> None:
    """Write a record on a version, in a tag that the MLflow UI hides."""
    client().set_model_version_tag(reference.name, reference.version, HIDDEN + name, content)


def aliases(name: str, version: str) -> tuple[str, ...]:
    """Return the aliases that point to a version."""
    by_alias = client().get_registered_model(name).aliases
    return tuple(sorted(alias for alias, number in by_alias.items() if str(number) == version))


def _summary(registry: Registry, name: str) -> ModelSummary:
    aliases, tags = registry.model(name) or ({}, {})
    changes = changes_in(tags)
    versions = []
    for version in registry.versions(name):
        metrics = _metrics_in(version.tags) or registry.test_metrics(version.run_id)
        number = str(version.version)
        versions.append(
            VersionSummary(
                version=number,
                aliases=tuple(sorted(a for a, v in aliases.items() if v == number)),
                run_id=version.run_id,
                metrics=metrics,
                data_fingerprint=version.tags.get(FINGERPRINT_TAG, ""),
                test_images=version.tags.get(TEST_IMAGES_TAG, ""),
                provenance=version.tags.get(PROVENANCE_TAG, UNKNOWN.state),
                taught_by=version.tags.get(TAUGHT_BY_TAG, ""),
                commit=version.tags.get(COMMIT_TAG, ""),
                flow_run_id=version.tags.get(FLOW_RUN_TAG, ""),
                created_at=_moment(version.created_at),
                decision=_decision(version.tags, _promotion(changes, number, aliases)),
                approval=_record(version.tags, APPROVAL_RECORD),
            )
        )
    return ModelSummary(name=name, versions=tuple(versions), history=tuple(changes))


def _promotion(
    changes: list[AliasChange], version: str, aliases: Mapping[str, str]
) -> AliasChange | None:
    """Return the latest change that made a version champion by a decision; None without one."""
    is_champion = str(aliases.get(CHAMPION)) == version
    own = [
        change
        for change in changes
        if (change.alias, change.to_version) == (CHAMPION, version)
        and change.action in {"promoted", "forced"}
        and (change.state == "done" or is_champion)
    ]
    return own[-1] if own else None


def _decision(tags: Mapping[str, str], promotion: AliasChange | None) -> dict[str, Any] | None:
    """Return the latest decision about a version: its record, or a promotion that has none yet.

    The record follows the change of the alias, so a process may have been killed between the two.

    Args:
        tags: the version's tags.
        promotion: the latest change that made it champion by a decision.
    """
    record = _record(tags, DECISION_RECORD)
    if promotion is None:
        return record
    if record and (record.get("promoted") or str(record.get("at", "")) >= promotion.at):
        return record
    return {
        "promoted": True,
        "forced": promotion.action == "forced",
        "champion": promotion.from_version,
        **promotion.model_dump(include={"reason", "at", "gates"}),
    }


def _moment(milliseconds: int) -> str:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC).isoformat(timespec="seconds")


def _record(tags: Mapping[str, str], name: str) -> dict[str, Any] | None:
    """Return the record with this name; None without one, or if its tag was written by hand."""
    with contextlib.suppress(ValueError):
        content = json.loads(tags.get(HIDDEN + name, "null"))
        if isinstance(content, dict):
            return content
    return None


def metrics_tag(metrics: Mapping[str, float]) -> dict[str, str]:
    """Return the tag that lists a version's test metrics; none if they are too many for a tag."""
    listed = json.dumps(metrics)
    return {METRICS_TAG: listed} if len(listed) <= _LONGEST_TAG else {}


def _metrics_in(tags: Mapping[str, str]) -> dict[str, float]:
    """Return the metrics of that tag; nothing without it."""
    try:
        listed = json.loads(tags.get(METRICS_TAG, "{}"))
        return {str(key): float(value) for key, value in listed.items()}
    except (ValueError, TypeError, AttributeError):  # written by hand
        return {}


def _unknown(
    what: str, name: str, choices: list[str], title: str, if_empty: str
) -> ModelReferenceError:
    listed = f"{title}: {', '.join(choices)}." if choices else if_empty
    return ModelReferenceError(f"{what}{suggest_name(name, choices)} {listed}")
