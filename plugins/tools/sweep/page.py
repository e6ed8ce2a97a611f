"""The report of a search: one self-contained HTML file, its pictures as PNG, its result as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.html_page import render, vector_graphic
from patchline.pipeline.evaluation.plots import save_figure
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.plugins.tools.sweep import pictures
from patchline.plugins.tools.sweep.importance import FEWEST_TRIALS
from patchline.plugins.tools.sweep.ranges import shown
from patchline.plugins.tools.sweep.result import SweepResult
from patchline.plugins.tools.sweep.space import SearchSpace, value_at

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER, PAGE, JSON_FILE = "report", "report.html", "sweep.json"
HISTORY, IMPORTANCE, PARALLEL = "history.png", "importance.png", "parallel_coordinates.png"


def write_page(
    result: SweepResult,
    space: SearchSpace,
    plan: RunConfig,
    shares: Mapping[str, float],
    folder: Path,
) -> Path:
    """Write the report into a folder, and return the page.

    Args:
        result: of the search.
        space: of the search.
        plan: the settings that it began with.
        shares: the importance of each setting; empty if it is not known.
        folder: receives `report.html`, `sweep.json` and the pictures.
    """
    drawn = _pictures(result, space, shares)
    for name, figure in drawn.items():
        save_figure(figure, folder / name)
    best = {fit.seed: fit for fit in result.of("best")}
    planned = {fit.seed: fit for fit in result.of("plan")}
    text = render(
        "sweep.html.j2",
        package="patchline.plugins.tools.sweep",
        result=result,
        tone="good" if result.gain.low > 0 else "bad" if result.gain.high < 0 else "open",
        plan={key: shown(value_at(plan, key)) for key in result.space},
        best={key: shown(result.best.settings.get(key)) for key in result.space},
        shares=dict(shares),
        fewest=FEWEST_TRIALS,
        seeds=[(seed, planned.get(seed), fit) for seed, fit in sorted(best.items())],
        history=vector_graphic(drawn[HISTORY]),
        importance=vector_graphic(drawn[IMPORTANCE]) if shares else "",
        parallel=vector_graphic(drawn[PARALLEL]),
        rows=sorted(result.trials, key=lambda each: each.number),
        values={
            each.number: {key: shown(each.settings.get(key)) for key in result.space}
            for each in result.trials
        },
    )
    write_text(folder / JSON_FILE, result.model_dump_json(indent=2))
    page = folder / PAGE
    write_text(page, text)
    return page


def _pictures(
    result: SweepResult, space: SearchSpace, shares: Mapping[str, float]
) -> dict[str, Figure]:
    figures = {
        HISTORY: pictures.history_picture(result.trials, result.metric),
        PARALLEL: pictures.parallel_coordinates_picture(
            result.trials, space, result.metric, result.best.number
        ),
    }
    if shares:
        figures[IMPORTANCE] = pictures.importance_picture(shares)
    return figures
