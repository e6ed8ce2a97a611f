"""What the approver of a promotion sees: gates, comparison, metrics and links, in Markdown."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
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
from patchline.pipeline.terminal_words import by_number, few_names
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client


class Question(FrozenModel):
    """Everything that a person needs to decide whether a version becomes champion."""

    name: str
    """Of the registered model."""
    version: str
    champion: str | None
    """The version that is champion now; none if there is none."""
    gates: tuple[GateResult, ...]
    provenance: ProvenanceSummary
    """Whether all images that the version has seen are recorded."""
    comparison: AnyComparison | None
    """With the champion; none if there is none."""
    metrics: dict[str, float]
    """From the version's own test report: `test/accuracy` and the like."""
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
    from mlflow.exceptions import MlflowException

    with contextlib.suppress(MlflowException):  # the run was deleted
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


_METRICS = ("accuracy", "mAP", "macro_f1", "log_loss", "ece")
_CLASSES_SHOWN = 5


def headline(question: Question) -> str:
    """Return the outcome of the gates in one sentence."""
    failed, count = question.failed_gates, len(question.gates)
    if not count:
        return "No gates are configured, so your answer alone decides."
    unchecked = [f"`{gate.name}`" for gate in question.gates if gate.passed is None]
    if not failed and unchecked:
        return (
            f"No gate fails: {count - len(unchecked)} of {count} pass, and there was nothing to "
            f"check for {', '.join(unchecked)}. The promotion needs only your approval."
        )
    if not failed:
        return f"Every gate passes ({count} of {count}). The promotion needs only your approval."
    names = ", ".join(f"`{gate.name}`" for gate in failed)
    return (
        f"{len(failed)} of {count} gates {by_number(len(failed), 'fails', 'fail')}: {names}. "
        "To approve it anyway, set force and give a reason."
    )


def page_text(question: Question, hours: float) -> str:
    """Return the complete question, for the page of the flow run."""
    parts = [
        f"## Should {question.name}, version {question.version}, become champion?",
        f"**{headline(question)}**",
        _comparison_sentence(question),
        _table(question),
        _gates(question.gates),
        _classes(question.comparison),
        _links(question),
        _how_to_answer(question, hours),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def form_text(question: Question, hours: float) -> str:
    """Return a short version without tables, shown above the form, which is narrow."""
    parts = [
        f"**Should {question.name}, version {question.version}, become champion?**",
        headline(question),
        _comparison_sentence(question),
        _flips(question.comparison),
        _links(question),
        f"Without an answer within {hours:g} hours, the request expires.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _how_to_answer(question: Question, hours: float) -> str:
    version = f"{question.name}/{question.version}"
    return (
        "Answer with **Resume** on this flow run's page, or on the command line: "
        f"`patchline approve {version}` or `patchline reject {version}`. Without an answer within "
        f"{hours:g} hours, the request expires and the version is not promoted."
    )


def _comparison_sentence(question: Question) -> str:
    if question.comparison is None:
        return "There is no champion to compare with."
    return question.comparison.sentence


def _flips(comparison: AnyComparison | None) -> str:
    if comparison is None or comparison.only_right is None:
        return ""
    before, now = comparison.only_right
    return f"Correct only now: {now}; correct only before: {before}."


def _table(question: Question) -> str:
    """Return champion and challenger side by side; metrics on common images come first."""
    champion = f"champion, version {question.champion}" if question.champion else "no champion"
    lines = [f"| | {champion} | challenger, version {question.version} |", "|---|---|---|"]
    comparison = question.comparison
    if comparison is not None and comparison.images:
        for title, pair in comparison.pairs.items():
            before, now = (
                f"{value:.1%}{interval}"
                for value, interval in zip(pair[:2], pair.intervals, strict=True)
            )
            change, p_value = pair.difference, p_value_text(pair.p_value)
            gained = f"{points(change.value)} ({points(change.low)} to {points(change.high)})"
            lines += [
                f"| {title} on {comparison.counted_images} in common | {before} | {now} |",
                f"| {DIFFERENCE} | | {gained}, {p_value} |",
            ]
        if only := comparison.only_right:
            lines.append(f"| correct only here | {only[0]} images | {only[1]} images |")
    for name in _METRICS:
        own = _metric(question.metrics, name)
        if own:
            other = _metric(question.champion_metrics, name)
            lines.append(f"| {ALL_METRICS[name].title}, own test images | {other} | {own} |")
    return "\n".join(lines)


def _metric(metrics: Mapping[str, float], name: str) -> str:
    """Return a metric with its 95% interval; empty if it was not recorded."""
    value = metrics.get(f"test/{name}")
    if value is None:
        return ""
    low, high = metrics.get(f"test/{name}_low"), metrics.get(f"test/{name}_high")
    beside = "" if low is None or high is None else f" ({low:.3g} to {high:.3g})"
    return f"{value:.3g}{beside}"


def _gates(gates: tuple[GateResult, ...]) -> str:
    if not gates:
        return ""
    lines = ["### Gates", ""]
    for gate in gates:
        verdict = "FAILED" if gate.failed else gate.verdict
        lines.append(f"- **{verdict}** `{gate.name}`: {' '.join(gate.sentence.split())}")
    return "\n".join(lines)


def _classes(comparison: AnyComparison | None) -> str:
    """Return the classes with the largest loss of recall, or labels of average precision."""
    if comparison is None:
        return ""
    words, metric = comparison.WORDS, comparison.LOSES
    losing = sorted(
        (change for change in comparison.changes if change.gain < 0),
        key=lambda change: change.gain,
    )
    if not losing:
        return f"No {words.one} loses {metric}."
    columns = (words.one, "images", *comparison.COLUMNS)
    rows = ((_cell(each.name), str(each.images), *each.cells) for each in losing[:_CLASSES_SHOWN])
    lines = [
        f"### Largest losses of {metric}",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    if len(losing) > _CLASSES_SHOWN:
        further = [_cell(change.name) for change in losing[_CLASSES_SHOWN:]]
        lines += ["", f"Other {words.several} with a loss: {few_names(further, 20)}."]
    return "\n".join(lines)


def _links(question: Question) -> str:
    links = [
        ("comparison, with the images whose prediction changed", question.comparison_page),
        (f"MLflow run of version {question.version}", question.run_page),
        (f"MLflow run of the champion, version {question.champion}", question.champion_run_page),
    ]
    return " · ".join(f"[{words}]({address})" for words, address in links if address)


def _cell(text: str) -> str:
    """Return text escaped for a table cell."""
    return " ".join(text.split()).replace("|", "\\|")
