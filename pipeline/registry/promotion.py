"""Promote a version to champion when the evidence is there, and go back to the one before."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ModelReferenceError, TrackingError
from pipeline.evaluation.comparison import Comparison
from pipeline.evaluation.comparison_page import DECISION, write_comparison
from pipeline.evaluation.promotion_decision import Decision, GateResult
from pipeline.files.atomic_files import write_text
from pipeline.packaging.clean_process_check import check_package
from pipeline.registry import history
from pipeline.registry.alias_lock import claimed, machine_lock
from pipeline.registry.config import PromotionConfig
from pipeline.registry.history import CHALLENGER, CHAMPION, Action, AliasChange, Proposal
from pipeline.registry.judgement import Judgement, judge
from pipeline.registry.package_download import open_package, package_folder
from pipeline.registry.registered_models import (
    DECISION_TAG,
    ModelReference,
    resolve,
    summaries,
)
from pipeline.tracking.tracking_store import client
from pipeline.workspace import make_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient


OnNote = Callable[[str], None]
_ATTEMPTS = 10


class Promotion(Decision):
    """A decision that was carried out, and where its evidence is."""

    report: str | None
    """Path of the comparison's page on this machine; none if there was nothing to compare."""


@dataclass(frozen=True)
class Answer:
    """What a person said to a promotion, or that nobody said anything in time."""

    approved: bool
    words: str
    """Such as `approved by Ada: looks good`."""
    champion: str | None = None
    """The champion that an approval was given against; it means no other one."""


@dataclass(frozen=True)
class Request:
    """Somebody wants a version to become champion."""

    reference: ModelReference
    config: PromotionConfig
    force_reason: str | None = None
    """Why gates that refuse are to be overruled; none respects them."""
    only_first: bool = False
    """Ask for the place only while nobody has it, as a run does unless it promotes by itself."""
    answer: Answer | None = None
    """Of the person who was asked; a refusal is recorded as one of the gates is."""

    @property
    def declined(self) -> bool:
        """Whether the person who was asked said no."""
        return self.answer is not None and not self.answer.approved

    def fits(self, champion: str | None) -> bool:
        """Return whether the request was meant for this champion."""
        if self.only_first:
            return champion is None
        if self.answer is None or self.declined or champion == self.reference.version:
            return True
        return champion == self.answer.champion


def promote(
    request: Request, folder: Path, on_note: OnNote = lambda _: None
) -> tuple[Promotion | None, AliasChange | None]:
    """Hold a version against the gates and make it champion if they all pass, or if forced.

    The machine's lock is held from the look at the champion to the change. On a shared server
    another machine may be faster; then the decision is taken again, against the new champion.

    Args:
        request: which version, and what it has to show.
        folder: gets the comparison's page and the decision.
        on_note: told what is being waited for.

    Returns:
        The decision, none if a request for an empty place found it taken or a person approved
        against another champion, and the entry of the history if the alias moved.

    Raises:
        ModelReferenceError: if the version's files or records are gone.
        TrackingError: if the champion keeps changing.
    """
    name, store = request.reference.name, client()
    with machine_lock(name, lambda: on_note(_waiting(name))):
        for _ in range(_ATTEMPTS):
            champion = history.alias_of(store, name, CHAMPION)
            if not request.fits(champion):
                return None, None
            judgement = _judged(request, champion, on_note)
            promotion = _decided(request, champion, judgement, folder)
            if champion == request.reference.version:
                return promotion, None
            if not promotion.promoted:
                _record(store, request.reference, promotion, folder, judgement.run_id)
                return promotion, None
            entry = _carry_out(store, request, promotion, folder, judgement.run_id)
            if entry is not None:
                return promotion, entry
            on_note("the champion changed meanwhile; deciding again")
    raise _restless(name)


def rollback(name: str, reason: str | None, on_note: OnNote = lambda _: None) -> AliasChange:
    """Make the champion before the present one champion again.

    Returns:
        The entry of the history.

    Raises:
        ModelReferenceError: if there is none, or its package does not answer any more.
        TrackingError: if the champion keeps changing.
    """
    store = client()
    with machine_lock(name, lambda: on_note(_waiting(name))):
        for _ in range(_ATTEMPTS):
            with claimed(name):
                entries = history.settle(store, name)
            present = history.alias_of(store, name, CHAMPION)
            target = _earlier_champion(name, present, entries)
            words = reason or f"back from version {present} to the champion before it"
            proposal = Proposal(
                alias=CHAMPION,
                to_version=target.version,
                action="rolled back",
                reason=words,
                gates={"package": True},
            )
            with claimed(name) as still_held:
                if history.alias_of(store, name, CHAMPION) == present:
                    return history.change_alias(store, name, proposal, still_held)
            on_note("the champion changed meanwhile; looking again")
    raise _restless(name)


def _earlier_champion(name: str, present: str | None, entries: list[AliasChange]) -> ModelReference:
    """Return the champion before the present one, whose package still answers."""
    there = {version.version for version in summaries(name)[0].versions}
    earlier = [v for v in history.earlier_champions(entries) if v != present and v in there]
    if present is None or not earlier:
        raise ModelReferenceError(
            f"'{name}' has no earlier champion to go back to. Choose a version with `patchline "
            f"promote {name} --version N`."
        )
    target = resolve(f"{name}/{earlier[0]}")
    folder = package_folder(target)
    check = check_package(folder, open_package(target, folder))
    if not check.passed:
        raise ModelReferenceError(
            f"Version {target.version} of '{name}' was champion before, but {check.finding}. "
            f"Choose a version with `patchline promote {name} --version N`."
        )
    return target


def welcome(
    reference: ModelReference,
    config: PromotionConfig,
    folder: Path,
    on_note: OnNote = lambda _: None,
) -> Promotion | None:
    """Give a new version its aliases: challenger, and champion if the config lets it.

    The first version of a name needs no comparison, but has to pass the limits on its own figures.
    Its package was compared with the trained model a moment ago, so it is not tried again.

    Returns:
        What was decided; none if a person has to decide.
    """
    _announce(reference.name, reference.version, on_note)
    if config.automatic:
        try:
            return promote(Request(reference, config), folder, on_note)[0]
        except ModelReferenceError as error:  # of the champion; the new version is fine
            on_note(f"not promoted: {error}")
            return None
    own = config.model_copy(update={"package_check": False})
    return promote(Request(reference, own, only_first=True), folder, on_note)[0]


def _announce(name: str, version: str, on_note: OnNote) -> None:
    with changing(name, on_note) as (store, still_held):
        history.settle(store, name)
        proposal = Proposal(
            alias=CHALLENGER,
            to_version=version,
            action="registered",
            reason="the newest version is the challenger",
        )
        history.change_alias(store, name, proposal, still_held)


@contextmanager
def changing(
    name: str, on_note: OnNote = lambda _: None
) -> Iterator[tuple[MlflowClient, Callable[[], None]]]:
    """Hold the exclusive right of a model, on this machine and on a shared server."""
    with machine_lock(name, lambda: on_note(_waiting(name))), claimed(name) as still_held:
        yield client(), still_held


def _waiting(name: str) -> str:
    return f"another process decides about '{name}'; waiting for it"


def _restless(name: str) -> TrackingError:
    return TrackingError(
        f"The champion of '{name}' changed {_ATTEMPTS} times while it was being decided. Try again "
        "when the others are done."
    )


def _judged(request: Request, champion: str | None, on_note: OnNote) -> Judgement:
    """Ask the gates; what a person refuses is refused even if nothing can be compared any more.

    A refusal does not wait for the package to be loaded in a process of its own.
    """
    config = request.config
    if request.declined:
        config = config.model_copy(update={"package_check": False, "max_latency_ms": None})
    try:
        return judge(request.reference, champion, config, on_note)
    except ModelReferenceError:
        if request.declined:
            return Judgement(gates=[])
        raise


def _decided(
    request: Request, champion: str | None, judgement: Judgement, folder: Path
) -> Promotion:
    version, gates = request.reference.version, judgement.gates
    refused = [gate for gate in gates if not gate.passed]
    forced = bool(refused) and request.force_reason is not None and not request.declined
    decision = Decision(
        name=request.reference.name,
        version=version,
        champion=champion,
        promoted=champion == version or (not request.declined and (forced or not refused)),
        forced=forced,
        reason=_reason(request, champion, gates, refused),
        gates=tuple(gates),
        decided_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    report = _write(decision, judgement.comparison, judgement, folder)
    return Promotion(**decision.model_dump(), report=str(report) if report else None)


def _reason(
    request: Request, champion: str | None, gates: list[GateResult], refused: list[GateResult]
) -> str:
    version, answer = request.reference.version, request.answer
    if champion == version:
        return f"version {version} is the champion already; nothing changed"
    if request.declined and answer:
        return answer.words
    said = f"{answer.words}; " if answer else ""
    if refused and request.force_reason is not None:
        names = ", ".join(gate.name for gate in refused)
        return f"{said}forced against {names}: {request.force_reason}"
    if refused:
        why = "; ".join(gate.sentence for gate in refused)
        return f"{why} (although {answer.words})" if answer else why
    if champion is None:
        return f"{said}there was no champion, and every gate that was asked passed"
    return said + _best_reason(gates, champion)


def _best_reason(gates: list[GateResult], champion: str) -> str:
    for gate in gates:
        if gate.name == "better_than_champion":
            return f"better than version {champion}: {gate.sentence}"
    return f"every gate that was asked passed; version {champion} was not compared with"


def _write(
    decision: Decision, comparison: Comparison | None, judgement: Judgement, folder: Path
) -> Path | None:
    make_folder(folder)
    if comparison is None:
        write_text(folder / DECISION, decision.model_dump_json(indent=2) + "\n")
        return None
    return write_comparison(comparison, decision, folder, judgement.pixels_of)


def _carry_out(
    store: MlflowClient, request: Request, promotion: Promotion, folder: Path, run_id: str | None
) -> AliasChange | None:
    """Change the alias, unless the champion is not the one that was decided against."""
    name, version = request.reference.name, request.reference.version
    with claimed(name) as still_held:
        history.settle(store, name)
        if history.alias_of(store, name, CHAMPION) != promotion.champion:
            return None
        artifact = _record(store, request.reference, promotion, folder, run_id)
        action: Action = "forced" if promotion.forced else "promoted"
        proposal = Proposal(
            alias=CHAMPION,
            to_version=version,
            action=action,
            reason=promotion.reason,
            gates={gate.name: gate.passed for gate in promotion.gates},
            artifact=artifact,
        )
        return history.change_alias(store, name, proposal, still_held)


def _record(
    store: MlflowClient,
    reference: ModelReference,
    promotion: Promotion,
    folder: Path,
    run_id: str | None,
) -> str | None:
    """Log the decision's files on the version's run and its outcome on the version.

    Returns:
        The URI of the files, or none if the run is gone.
    """
    from mlflow.exceptions import MlflowException

    brief = {
        "promoted": promotion.promoted,
        "forced": promotion.forced,
        "champion": promotion.champion,
        "reason": promotion.reason,
        "at": promotion.decided_at,
        "gates": {gate.name: gate.passed for gate in promotion.gates},
    }
    store.set_model_version_tag(reference.name, reference.version, DECISION_TAG, json.dumps(brief))
    if run_id is None:
        return None
    stamp = promotion.decided_at.replace(":", "").replace("+0000", "Z")
    place = f"promotion/{stamp}"
    with contextlib.suppress(MlflowException):  # the run was deleted; the tags still tell
        store.log_artifacts(run_id, str(folder), place)
        return f"runs:/{run_id}/{place}"
    return None
