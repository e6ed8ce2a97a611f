"""Promote a version to champion if it passes the gates, roll back, assign the first aliases."""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.errors import ModelReferenceError, TrackingError
from patchline.pipeline.evaluation.comparison_page import DECISION, write_comparison
from patchline.pipeline.evaluation.promotion_decision import PromotionDecision
from patchline.pipeline.packaging.clean_process_check import check_package
from patchline.pipeline.registry import aliases
from patchline.pipeline.registry.aliases import (
    CHALLENGER,
    CHAMPION,
    Action,
    AliasChange,
    Proposal,
    claim_model,
    machine_lock,
)
from patchline.pipeline.registry.approval_answer import ApprovalAnswer
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.gate_evaluation import GateEvaluation, evaluate_gates
from patchline.pipeline.registry.package_download import open_package, package_folder
from patchline.pipeline.registry.registered_models import (
    DECISION_RECORD,
    ModelReference,
    resolve,
    version_numbers,
    write_record,
)
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE, make_folder
from patchline.pipeline.workspace.tracking.tracking_store import client, unless_deleted

if TYPE_CHECKING:
    from mlflow import MlflowClient


OnNote = Callable[[str], None]
_ATTEMPTS = 10


class Promotion(PromotionDecision):
    """A decision that was carried out, and its report."""

    report: str | None
    """Path of the comparison's page on this machine; none if there was nothing to compare."""


@dataclass(frozen=True)
class Request:
    """A request to promote a version to champion."""

    reference: ModelReference
    config: PromotionConfig
    force_reason: str | None = None
    """Why failed gates are overruled; none if they are respected."""
    only_first: bool = False
    """Promote only the first champion of a model, as a run does unless `automatic` is set."""
    answer: ApprovalAnswer | None = None
    """The approver's answer; a rejection is recorded like a failed gate."""
    answered_against: str | None = None
    """The champion that the approver saw; an approval holds against no other one."""

    @property
    def rejected(self) -> bool:
        """Whether the approver rejected the version."""
        return self.answer is not None and not self.answer.approves

    def holds_against(self, champion: str | None) -> bool:
        """Return whether the request applies to this champion."""
        if self.only_first:
            return champion is None
        if self.answer is None or self.rejected or champion == self.reference.version:
            return True
        return champion == self.answered_against


def promote(
    request: Request, folder: Path, on_note: OnNote = lambda _: None
) -> tuple[Promotion | None, AliasChange | None]:
    """Evaluate the gates for a version and make it champion if they all pass, or if forced.

    This machine's lock is held from reading the champion to changing it. If another machine on a
    shared server changes the champion meanwhile, the version is compared with the new one.

    Args:
        request: the version, its gates, and the approver's answer.
        folder: receives the comparison's page and the decision.
        on_note: called with progress messages.

    Returns:
        The decision, and the history's entry if the alias moved. The decision is none if the
        request does not hold against the champion.

    Raises:
        ModelReferenceError: if the version's files or records are missing.
        TrackingError: if the champion keeps changing.
    """
    name, store = request.reference.name, client()
    place = f"promotion/{dt.datetime.now(dt.UTC):%Y-%m-%dT%H%M%SZ}"
    with machine_lock(name, on_note):
        for _ in range(_ATTEMPTS):
            champion = aliases.alias_of(store, name, CHAMPION)
            if not request.holds_against(champion):
                return None, None
            if request.only_first and aliases.had_champion(store, name):
                on_note(f"'{name}' had a champion before, so `patchline promote` chooses the next")
                return None, None
            evaluation = _evaluate(request, champion, on_note)
            promotion = _decide(request, champion, evaluation, folder)
            if champion == request.reference.version:
                return promotion, None
            artifact = _upload(store, evaluation.run_id, folder, place)
            entry = _make_champion(store, promotion, artifact) if promotion.promoted else None
            if entry is not None or not promotion.promoted:
                _record(request.reference, promotion)
                return promotion, entry
            on_note("the champion changed; comparing again")
    raise _keeps_changing(name)


def decision_folder(reference: ModelReference) -> Path:
    """Return a new folder in the workspace for the files of a decision."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{reference.name}-{reference.version}-{stamp}"
    return (WORKSPACE / "promotions" / name).resolve()


def rollback(name: str, reason: str | None, on_note: OnNote = lambda _: None) -> AliasChange:
    """Roll back to the previous champion.

    Returns:
        The entry of the history.

    Raises:
        ModelReferenceError: if there is no previous champion, or its package no longer works.
        TrackingError: if the champion keeps changing.
    """
    store = client()
    with machine_lock(name, on_note):
        for _ in range(_ATTEMPTS):
            with claim_model(name):
                entries = aliases.settle(store, name)
            present = aliases.alias_of(store, name, CHAMPION)
            target = _earlier_champion(name, present, entries)
            default_reason = f"rolled back from version {present} to the previous champion"
            proposal = Proposal(
                alias=CHAMPION,
                to_version=target.version,
                action="rolled back",
                reason=reason or default_reason,
                gates={"package": True},
            )
            with claim_model(name) as still_held:
                if aliases.alias_of(store, name, CHAMPION) == present:
                    return aliases.change_alias(store, name, proposal, still_held)
            on_note("the champion changed; looking for the previous one again")
    raise _keeps_changing(name)


def _earlier_champion(name: str, present: str | None, entries: list[AliasChange]) -> ModelReference:
    """Return the previous champion, after checking its package."""
    there = version_numbers(name)
    earlier = [v for v in aliases.earlier_champions(entries) if v != present and v in there]
    if present is None or not earlier:
        raise ModelReferenceError(
            f"'{name}' has no previous champion to roll back to. Choose a version with `patchline "
            f"promote {name} --version N`."
        )
    target = resolve(f"{name}/{earlier[0]}")
    folder = package_folder(target)
    check = check_package(folder, open_package(target, folder))
    if not check.passed:
        raise ModelReferenceError(
            f"Version {target.version} of '{name}' is the previous champion, but {check.finding}. "
            f"Choose a version with `patchline promote {name} --version N`."
        )
    return target


def assign_aliases(
    reference: ModelReference,
    config: PromotionConfig,
    folder: Path,
    on_note: OnNote = lambda _: None,
) -> Promotion | None:
    """Assign the aliases of a new version: challenger, and champion if the config allows it.

    The first champion of a model needs no comparison, but has to pass the limits on its own
    metrics. After a champion was removed, the next one is chosen like any later version. The
    package was compared with the trained model just before, so it is not checked again.

    Returns:
        The decision; none if the run makes none.
    """
    make_challenger(reference.name, reference.version, on_note)
    if config.automatic:
        try:
            return promote(Request(reference, config), folder, on_note)[0]
        except ModelReferenceError as error:  # about the champion, not the new version
            on_note(f"not promoted: {error}")
            return None
    own = config.model_copy(update={"package_check": False})
    return promote(Request(reference, own, only_first=True), folder, on_note)[0]


def make_challenger(name: str, version: str, on_note: OnNote = lambda _: None) -> None:
    """Give a new version the alias challenger, as the newest one."""
    store = client()
    with machine_lock(name, on_note), claim_model(name) as still_held:
        aliases.settle(store, name)
        proposal = Proposal(
            alias=CHALLENGER,
            to_version=version,
            action="registered",
            reason="the newest version is the challenger",
        )
        aliases.change_alias(store, name, proposal, still_held)


def _keeps_changing(name: str) -> TrackingError:
    return TrackingError(
        f"The champion of '{name}' changed {_ATTEMPTS} times during the comparison. Try again when "
        "the other promotions are done."
    )


def _evaluate(request: Request, champion: str | None, on_note: OnNote) -> GateEvaluation:
    """Evaluate the gates; a rejection needs neither a comparison nor the package check."""
    config = request.config
    if request.rejected:
        config = config.model_copy(update={"package_check": False, "max_latency_ms": None})
    try:
        return evaluate_gates(request.reference, champion, config, on_note)
    except ModelReferenceError:
        if request.rejected:
            return GateEvaluation(gates=[])
        raise


def _decide(
    request: Request, champion: str | None, evaluation: GateEvaluation, folder: Path
) -> Promotion:
    version, gates = request.reference.version, evaluation.gates
    failed = [gate for gate in gates if gate.failed]
    forced = bool(failed) and request.force_reason is not None and not request.rejected
    decision = PromotionDecision(
        name=request.reference.name,
        version=version,
        champion=champion,
        promoted=champion == version or (not request.rejected and (forced or not failed)),
        forced=forced,
        reason=render_markdown(
            "reason.txt.j2",
            __package__,
            version=version,
            champion=champion,
            answer=request.answer,
            rejected=request.rejected,
            force_reason=request.force_reason,
            gates=gates,
            failed=failed,
            unchecked=", ".join(gate.name for gate in gates if gate.passed is None),
        ),
        gates=tuple(gates),
        provenance=evaluation.provenance,
        decided_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    report = _write(decision, evaluation, folder)
    return Promotion(**decision.model_dump(), report=str(report) if report else None)


def _write(decision: PromotionDecision, evaluation: GateEvaluation, folder: Path) -> Path | None:
    make_folder(folder)
    if evaluation.comparison is None:
        decision.to_file(folder / DECISION)
        return None
    return write_comparison(evaluation.comparison, decision, folder, evaluation.pixels_of)


def _make_champion(
    store: MlflowClient, promotion: Promotion, artifact: str | None
) -> AliasChange | None:
    """Change the alias, unless the champion changed since the comparison.

    Nothing slow happens under the claim: the files of the decision are already there, and its
    record on the version follows. If the process dies before that, the history has the same facts.
    """
    name = promotion.name
    with claim_model(name) as still_held:
        aliases.settle(store, name)
        if aliases.alias_of(store, name, CHAMPION) != promotion.champion:
            return None
        action: Action = "forced" if promotion.forced else "promoted"
        proposal = Proposal(
            alias=CHAMPION,
            to_version=promotion.version,
            action=action,
            reason=promotion.reason,
            gates={gate.name: gate.passed for gate in promotion.gates},
            artifact=artifact,
        )
        return aliases.change_alias(store, name, proposal, still_held)


def _upload(store: MlflowClient, run_id: str | None, folder: Path, place: str) -> str | None:
    """Log the decision's files on the version's run.

    Args:
        store: the registry.
        run_id: ID of the version's run; None if it has none.
        folder: the folder that holds the files.
        place: the path among the run's artifacts; a repeated comparison replaces the files there.

    Returns:
        The URI of the files; none if the run was deleted.
    """
    if run_id is not None:
        with unless_deleted():  # the tags remain
            store.log_artifacts(run_id, str(folder), place)
            return f"runs:/{run_id}/{place}"
    return None


def _record(reference: ModelReference, promotion: Promotion) -> None:
    """Record the outcome on the version."""
    brief = {
        "promoted": promotion.promoted,
        "forced": promotion.forced,
        "champion": promotion.champion,
        "reason": promotion.reason,
        "at": promotion.decided_at,
        "gates": {gate.name: gate.passed for gate in promotion.gates},
    }
    write_record(reference, DECISION_RECORD, json.dumps(brief))
