"""What the approver of a promotion sees: gates, comparison, metrics and links, in Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from patchline.pipeline.evaluation.comparison import DIFFERENCE, p_value_text, points
from patchline.pipeline.evaluation.comparison_page import PAGE, write_comparison
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.evaluation.tasks import AnyComparison
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import ProvenanceSummary
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.gate_evaluation import evaluate_gates
from patchline.pipeline.registry.registered_models import ModelReference, summaries
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client, unless_deleted


class Question(FrozenModel):
    """Everything that a person needs to decide whether a version becomes champion."""

    name: str
    """The name of the registered model."""
    version: str
    champion: str | None
    """The version that is champion now; none if there is none."""
    gates: tuple[GateResult, ...]
    provenance: ProvenanceSummary
    """Whether all images that the version has seen are recorded."""
    comparison: AnyComparison | None
    """The comparison with the champion; none if there is none."""
    metrics: dict[str, float]
    """Metrics of the version's own test report, by name: `test/accuracy` and the like."""
    champion_metrics: dict[str, float]
    run_page: str | None
    """Address of the version's run in MLflow; none if the run was deleted."""
    champion_run_page: str | None
    comparison_page: str | None
    """Address of the comparison among the run's artifacts; none if there is no comparison."""

    @property
    def failed_gates(self) -> tuple[GateResult, ...]:
        """The gates that fail."""
        return tuple(gate for gate in self.gates if gate.failed)


def prepare_question(
    reference: ModelReference,
    champion: str | None,
    config: PromotionConfig,
    folder: Path,
    on_note: Callable[[str], None] = lambda _: None,
) -> Question:
    """Compare a version with the champion, and log the comparison on the version's run.

    Args:
        reference: the version to promote.
        champion: the version that is champion now; none if there is none.
        config: the gates.
        folder: receives the comparison's page.
        on_note: called with progress messages.

    Raises:
        ModelReferenceError: if files or records of a version are missing.
    """
    evaluation = evaluate_gates(reference, champion, config, on_note)
    [model] = summaries(reference.name)
    versions = {version.version: version for version in model.versions}
    own, other = versions[reference.version], versions.get(champion or "")
    run_page, page = _run_page(own.run_id), None
    if evaluation.comparison is not None:
        write_comparison(evaluation.comparison, None, folder, evaluation.pixels_of)
        page = _log(folder, own.run_id, run_page)
    return Question(
        name=reference.name,
        version=reference.version,
        champion=champion,
        gates=tuple(evaluation.gates),
        provenance=evaluation.provenance,
        comparison=evaluation.comparison,
        metrics=own.metrics,
        champion_metrics=other.metrics if other else {},
        run_page=run_page,
        champion_run_page=_run_page(other.run_id) if other else None,
        comparison_page=page,
    )


def _run_page(run_id: str) -> str | None:
    with unless_deleted():
        info = client().get_run(run_id).info
        return addresses.run_page(TrackedRun(run_id, info.experiment_id, Path()))
    return None


def _log(folder: Path, run_id: str, run_page: str | None) -> str | None:
    """Log the folder on the run, and return the address of the comparison there."""
    if run_page is None:
        return None
    place = f"approval/{folder.name}"
    client().log_artifacts(run_id, str(folder), place)
    address, _, layout = run_page.partition("?")
    return f"{address}/artifacts/{place}/{PAGE}?{layout}"


def page_text(question: Question, hours: float) -> str:
    """Return the complete question, for the page of the flow run."""
    return _text("page", question, hours)


def form_text(question: Question, hours: float) -> str:
    """Return a short version without tables, shown above the form, which is narrow."""
    return _text("form", question, hours)


def _text(kind: str, question: Question, hours: float) -> str:
    return render_markdown(
        f"approval_{kind}.md.j2",
        __package__,
        question=question,
        hours=f"{hours:g}",
        titles=ALL_METRICS,
        difference=DIFFERENCE,
        points=points,
        p_value_text=p_value_text,
    )
