"""The commands `patchline promote` and `patchline rollback`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, Switch, emit, without_needless_negatives
from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display, shown
from patchline.pipeline.errors import ConfigError, RunError
from patchline.pipeline.registry.aliases import CHALLENGER, checked_reason
from patchline.pipeline.registry.config import GateConfig
from patchline.pipeline.registry.gate_settings import gates_for
from patchline.pipeline.registry.registered_models import (
    ModelReference,
    champion_of,
    check_name,
    resolve,
)

if TYPE_CHECKING:
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
    with shown():
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
    reason = checked_reason(reason)
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
    with prefect_session.connected():
        from patchline.flows.approval import opening, requests

        sentence = opening.request_approval(reference, gates)
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
    reason = checked_reason(reason)
    check_name(name)
    tell_closed()
    resolve(name)  # report an unknown name before anything is locked
    with shown():
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
