"""What a search shows in MLflow and in Prefect."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from patchline.pipeline.config import RunConfig
from patchline.pipeline.packaging.model_card import escaped
from patchline.pipeline.registry.browsing.pages import NOTE_TAG
from patchline.pipeline.workspace.tracking import addresses, tracked_run
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client
from patchline.plugins.tools.sweep.page import FOLDER, importances, write_page
from patchline.plugins.tools.sweep.result import SweepResult
from patchline.plugins.tools.sweep.search import table_of
from patchline.plugins.tools.sweep.space import SearchSpace, shown
from patchline.plugins.tools.sweep.study import TrialRecord

logger = logging.getLogger(__name__)

TABLE_FILE = "trials.json"


def log_trials(run: TrackedRun, records: list[TrialRecord]) -> None:
    """Log the validation metric of each ended trial at the step of its number, each once.

    Args:
        run: of the search.
        records: of all trials.
    """
    sender = MetricSender(dataclasses.replace(run, continued=True))
    best = 0.0
    for record in records:
        if record.state == "unfinished" or record.validation is None:
            continue
        values = {"trial/validation": record.validation, "trial/epochs": record.epochs}
        if record.state == "complete":
            best = max(best, record.validation)
            values["best/validation"] = best
        sender.add_metrics(values, record.number, time.time(), send=False)
    sender.send()


def write_run(run: TrackedRun, result: SweepResult, page: Path) -> None:
    """Log the result, the report with its pictures, and the table; name and describe the run.

    Args:
        run: of the search.
        result: of it.
        page: the report, beside its pictures.
    """
    log_trials(run, list(result.trials))
    estimates = {
        "gain": result.gain,
        f"test/{result.metric}": result.best_test,
        f"plan/test/{result.metric}": result.plan_test,
        "optimism": result.optimism,
    }
    values = {
        f"{name}{end}": value
        for name, estimate in estimates.items()
        for end, value in (
            ("", estimate.value),
            ("_low", estimate.low),
            ("_high", estimate.high),
        )
    }
    sender = MetricSender(dataclasses.replace(run, continued=True))
    sender.add_metrics({**values, "epochs": result.epochs}, 0, time.time(), send=False)
    sender.flush()
    for file in sorted(page.parent.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            tracked_run.log_file(run, file, page.parent.name)
    store = client()
    store.log_table(run.run_id, table_of(list(result.trials), list(result.space)), TABLE_FILE)
    best = {f"best.{key}": shown(value) for key, value in result.best.settings.items()}
    note = run_description(run, result)
    tracked_run.set_tags(run, {NOTE_TAG: note, "patchline.registered": result.registered, **best})
    store.update_run(run.run_id, name=f"{result.name} sweep: {result.gain_words()}")


def run_description(run: TrackedRun, result: SweepResult) -> str:
    """Return the result as Markdown: the verdict, the settings, and where everything is."""
    rows = [
        f"| {escaped(key)} | {escaped(text)} | {escaped(shown(result.best.settings.get(key)))} |"
        for key, text in result.space.items()
    ]
    report = addresses.report_path(run)
    return "\n\n".join(
        (
            f"**{result.verdict()}**",
            result.optimism_sentence(),
            f"[Report]({report}) · {_registered(result)}",
            "\n".join(("| setting | searched | best |", "|---|---|---|", *rows)),
            _length(result),
        )
    )


def _registered(result: SweepResult) -> str:
    return f"registered as {escaped(result.registered)}" if result.registered else "not registered"


def _length(result: SweepResult) -> str:
    return (
        f"{len(result.trials)} trials, {result.epochs:.0f} epochs: as many as "
        f"{result.whole_fits:.1f} whole fits. The trials and the final fits are the runs nested in "
        "this one."
    )


def publish(run: TrackedRun, result: SweepResult, space: SearchSpace, plan: RunConfig) -> Path:
    """Write the report, and show it in MLflow and Prefect; return the page.

    The model is registered by then, so a server error costs descriptions, never the search.

    Args:
        run: of the search.
        result: of it.
        space: of it.
        plan: the settings that it began with.
    """
    shares = importances(result.trials, space, result.rungs[0], result.seed)
    page = write_page(result, space, plan, shares, run.folder / FOLDER)
    _safely("MLflow", lambda: write_run(run, result, page))
    _safely("Prefect", lambda: _write_artifacts(run, result))
    return page


def _safely(where: str, write: Callable[[], None]) -> None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - a server fails in many ways
        logger.warning("The search could not be described in %s: %s", where, error)


def _write_artifacts(run: TrackedRun, result: SweepResult) -> None:
    text = run_description(run, result).replace("](#", f"]({addresses.server()}/#")
    create_markdown_artifact(
        key="sweep",
        markdown=f"## {result.name}: search over settings\n\n{text}\n",
        description="The result of this search",
    )
    columns = table_of(list(result.trials), list(result.space))
    names = [name for name in columns if name != "run_id"]
    create_table_artifact(
        key="trials",
        table=[
            dict(zip(names, row, strict=True))
            for row in zip(*(columns[name] for name in names), strict=True)
        ],
        description="All trials of this search",
    )
