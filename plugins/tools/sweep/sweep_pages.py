"""What a search shows in MLflow and in Prefect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from patchline.pipeline.config import RunConfig
from patchline.pipeline.workspace.tracking import addresses
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.plugins.tools.sweep import mlflow_pages
from patchline.plugins.tools.sweep.importance import importances
from patchline.plugins.tools.sweep.page import FOLDER, write_page
from patchline.plugins.tools.sweep.result import SweepResult
from patchline.plugins.tools.sweep.search import table_of
from patchline.plugins.tools.sweep.space import SearchSpace

logger = logging.getLogger(__name__)


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
    _safely("MLflow", lambda: mlflow_pages.write_run(run, result, page))
    _safely("Prefect", lambda: _write_artifacts(run, result))
    return page


def _safely(where: str, write: Callable[[], None]) -> None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - a server fails in many ways
        logger.warning("The search could not be described in %s: %s", where, error)


def _write_artifacts(run: TrackedRun, result: SweepResult) -> None:
    text = mlflow_pages.run_description(run, result).replace("](#", f"]({addresses.server()}/#")
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
