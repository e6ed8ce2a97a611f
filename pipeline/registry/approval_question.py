"""What a person is shown who has to decide about a promotion, and the note that one was asked."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pipeline.evaluation.comparison import Comparison
from pipeline.evaluation.comparison_page import PAGE, write_comparison
from pipeline.evaluation.promotion_decision import GateResult
from pipeline.registry.config import PromotionConfig
from pipeline.registry.judgement import judge
from pipeline.registry.registered_models import APPROVAL_TAG, ModelReference, summaries
from pipeline.section import Section
from pipeline.tracking import addresses
from pipeline.tracking.tracked_run import TrackedRun
from pipeline.tracking.tracking_store import client

State = Literal["asked", "approved", "rejected", "expired", "superseded", "cancelled"]


class Question(Section):
    """May this version become champion? With everything that a person needs to answer."""

    name: str
    """Of the registered model."""
    version: str
    champion: str | None
    """The version that is champion now; none if there is none."""
    gates: tuple[GateResult, ...]
    comparison: Comparison | None
    """With the champion; none if there is none."""
    metrics: dict[str, float]
    """Of the version's own test report: `test/accuracy` and the like."""
    champion_metrics: dict[str, float]
    run_page: str | None
    """Address of the version's run in MLflow; none if the run is gone."""
    champion_run_page: str | None
    comparison_page: str | None
    """Address of the page among the run's artifacts; none if there is no comparison."""

    @property
    def refusing(self) -> tuple[GateResult, ...]:
        """The gates that refuse."""
        return tuple(gate for gate in self.gates if not gate.passed)


class Note(Section):
    """What a version's tag says about the question to a person."""

    state: State
    by: str = ""
    """Who answered."""
    reason: str = ""
    flow_run_id: str = ""
    """Of the Prefect flow that asks."""
    at: str
    """ISO 8601, UTC."""


def pose(
    reference: ModelReference,
    champion: str | None,
    config: PromotionConfig,
    folder: Path,
    on_note: Callable[[str], None] = lambda _: None,
) -> Question:
    """Compare a version with the champion, and log the page on the version's run.

    Args:
        reference: the version that wants to become champion.
        champion: the version that is champion now; none if there is none.
        config: the gates.
        folder: gets the comparison's page.
        on_note: told what is being done.

    Raises:
        ModelReferenceError: if the files or the records of a version are gone.
    """
    judgement = judge(reference, champion, config, on_note)
    [model] = summaries(reference.name)
    versions = {version.version: version for version in model.versions}
    own, other = versions[reference.version], versions.get(champion or "")
    run_page, page = _run_page(own.run_id), None
    if judgement.comparison is not None:
        write_comparison(judgement.comparison, None, folder, judgement.pixels_of)
        page = _logged(folder, own.run_id, run_page)
    return Question(
        name=reference.name,
        version=reference.version,
        champion=champion,
        gates=tuple(judgement.gates),
        comparison=judgement.comparison,
        metrics=own.metrics,
        champion_metrics=other.metrics if other else {},
        run_page=run_page,
        champion_run_page=_run_page(other.run_id) if other else None,
        comparison_page=page,
    )


def note(
    reference: ModelReference,
    state: State,
    *,
    by: str = "",
    reason: str = "",
    flow_run_id: str = "",
) -> None:
    """Write on a version that a person is asked about it, or what was answered."""
    content = Note(
        state=state,
        by=by,
        reason=reason,
        flow_run_id=flow_run_id,
        at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    )
    client().set_model_version_tag(
        reference.name, reference.version, APPROVAL_TAG, content.model_dump_json()
    )


def withdraw(reference: ModelReference, flow_run_id: str, reason: str) -> None:
    """Write on a version that nobody is asked any more, if this flow was the one that asked."""
    version = client().get_model_version(reference.name, reference.version)
    noted = version.tags.get(APPROVAL_TAG)
    known = Note.model_validate_json(noted) if noted else None
    if known and (known.state, known.flow_run_id) == ("asked", flow_run_id):
        note(reference, "cancelled", reason=reason, flow_run_id=flow_run_id)


def _run_page(run_id: str) -> str | None:
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # the run was deleted; the version still works
        info = client().get_run(run_id).info
        return addresses.run_page(TrackedRun(run_id, info.experiment_id, Path()))
    return None


def _logged(folder: Path, run_id: str, run_page: str | None) -> str | None:
    """Log the folder on the run, and return the address of the page there."""
    if run_page is None:
        return None
    place = f"approval/{folder.name}"
    client().log_artifacts(run_id, str(folder), place)
    address, _, layout = run_page.partition("?")
    return f"{address}/artifacts/{place}/{PAGE}?{layout}"
