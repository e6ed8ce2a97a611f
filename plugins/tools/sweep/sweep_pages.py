"""What a search shows in MLflow and in Prefect.

Which settings mattered is the share of each in the variance of the validation metric (fANOVA).
Trials stop at different epochs, so they are compared at the first rung, which nearly all reach
(Hutter et al. 2014, ICML, on functional analysis of variance).
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial
from prefect.artifacts import create_markdown_artifact, create_table_artifact

from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.html_page import render, vector_graphic
from patchline.pipeline.evaluation.plots import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    new_figure,
    plain_axes,
    save_figure,
)
from patchline.pipeline.registry.browsing.pages import NOTE_TAG
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.tracking import addresses, tracked_run
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client
from patchline.plugins.tools.sweep.final_fits import SweepResult
from patchline.plugins.tools.sweep.search import table_of
from patchline.plugins.tools.sweep.space import (
    Dimension,
    NumberRange,
    SearchSpace,
    Value,
    shown,
    value_at,
)
from patchline.plugins.tools.sweep.study import TrialRecord, distributions_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LONGEST_NAME = 26
_FAINT, _STRONG = 0.35, 0.95


def history_picture(records: Sequence[TrialRecord], metric: str) -> Figure:
    """Return the validation metric of each trial in its order, and the best so far.

    Args:
        records: the record of each trial.
        metric: what was validated.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(8.4, 3.9)
    axes = figure.add_subplot()
    complete = [each for each in records if each.state == "complete"]
    stopped = [each for each in records if each.state != "complete" and each.validation is not None]
    failed = [each for each in records if each.state == "failed" and each.validation is None]
    _dots(axes, stopped, GREY, "stopped at a rung", "o")
    _dots(axes, complete, BLUE, "whole fit", "o")
    if complete:
        numbers, best = _best_so_far(complete, records[-1].number)
        axes.step(numbers, best, where="post", color=BLUE, linewidth=1.6, label="best so far")
    for plan in (each for each in complete if each.is_plan):
        value = plan.validation or 0.0
        axes.axhline(value, color=ORANGE, linestyle="--", linewidth=1.2, label="the plan")
    if failed:
        low = axes.get_ylim()[0]
        axes.plot([each.number for each in failed], [low] * len(failed), "x", color=ORANGE,
                  label="failed", clip_on=False)  # fmt: skip
    axes.set_xlabel("trial")
    axes.set_ylabel(f"validation {metric}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain_axes(axes)
    figure.legend(frameon=False, loc="outside lower center", ncols=5)
    return figure


def importance_picture(shares: Mapping[str, float]) -> Figure:
    """Return bars of the share of each setting, the largest at the top."""
    figure = new_figure(8.4, 0.9 + 0.42 * len(shares))
    axes = figure.add_subplot()
    ordered = sorted(shares.items(), key=lambda each: each[1])
    axes.barh([_short(key) for key, _ in ordered], [share for _, share in ordered], color=BLUE)
    for place, (_, share) in enumerate(ordered):
        axes.text(share, place, f" {share:.0%}", va="center", color=INK, size=9)
    axes.set_xlabel("share of the variance of the validation metric")
    axes.set_xlim(0, min(1.1, 1.15 * max(shares.values())))
    plain_axes(axes)
    axes.grid(visible=False, axis="y")
    return figure


def parallel_coordinates_picture(
    records: Sequence[TrialRecord], space: SearchSpace, metric: str, best: int
) -> Figure:
    """Return a line for each trial through the values of its settings to its validation metric.

    Args:
        records: the record of each trial.
        space: the search space; each setting has an axis.
        metric: what was validated.
        best: number of the best trial, which stands out.
    """
    figure = new_figure(max(6.0, 1.9 * (len(space.dimensions) + 1)), 4.2)
    axes = figure.add_subplot()
    drawn = [each for each in records if each.validation is not None]
    values = [each.validation or 0.0 for each in drawn]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    places = np.arange(len(space.dimensions) + 1)
    for record, value in sorted(zip(drawn, values, strict=True), key=lambda each: each[1]):
        heights = [
            _height(dimension, record.settings.get(key))
            for key, dimension in space.dimensions.items()
        ]
        heights.append((value - low) / (high - low) if high > low else 0.5)
        whole = record.state == "complete"
        colour = ORANGE if record.number == best else BLUE if whole else GREY
        axes.plot(
            places,
            heights,
            color=colour,
            alpha=_STRONG if whole else _FAINT,
            linewidth=2.4 if record.number == best else 1.2,
            zorder=3 if record.number == best else 2,
        )
    for place, (key, dimension) in enumerate(space.dimensions.items()):
        _axis(axes, place, _short(key), _ends(dimension))
    _axis(
        axes, len(space.dimensions), f"validation {metric}", [(0, f"{low:.1%}"), (1, f"{high:.1%}")]
    )
    axes.set_xlim(-0.3, len(space.dimensions) + 0.3)
    axes.set_ylim(-0.12, 1.16)
    axes.set_axis_off()
    handles = [
        axes.plot([], [], color=colour, label=label)[0]
        for colour, label in ((ORANGE, "best"), (BLUE, "whole fit"), (GREY, "stopped at a rung"))
    ]
    figure.legend(handles=handles, frameon=False, loc="outside lower center", ncols=3)
    return figure


def _dots(axes: Axes, records: Sequence[TrialRecord], colour: str, label: str, marker: str) -> None:
    if records:
        axes.plot(
            [each.number for each in records],
            [each.validation or 0.0 for each in records],
            marker,
            color=colour,
            label=label,
            markersize=5,
        )


def _best_so_far(complete: Sequence[TrialRecord], last: int) -> tuple[list[int], list[float]]:
    numbers, best, highest = [], [], -math.inf
    for each in complete:
        highest = max(highest, each.validation or 0.0)
        numbers.append(each.number)
        best.append(highest)
    return [*numbers, last], [*best, highest]


def _axis(axes: Axes, place: int, name: str, ends: Sequence[tuple[float, str]]) -> None:
    axes.vlines(place, 0, 1, color=INK, linewidth=0.8, zorder=1)
    axes.text(place, 1.1, name, ha="center", size=9, color=INK, parse_math=False)
    for height, text in ends:
        axes.text(
            place + 0.04,
            height,
            text,
            va="top" if height == 0 else "bottom" if height == 1 else "center",
            size=8,
            color=INK,
            parse_math=False,
            bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
            zorder=4,
        )


def _ends(dimension: Dimension) -> list[tuple[float, str]]:
    """Return what stands beside an axis, and how high."""
    return [(_height(dimension, value), shown(value)) for value in dimension.ends]


def _height(dimension: Dimension, value: Value) -> float:
    """Return where a value is on its axis, from 0 to 1."""
    if not isinstance(dimension, NumberRange):
        if value not in dimension.values:
            return 0.0
        return dimension.values.index(value) / (len(dimension.values) - 1)
    if isinstance(value, str | None):
        return 0.0
    low, high, number = dimension.low, dimension.high, float(value)
    if dimension.log:
        low, high, number = math.log(low), math.log(high), math.log(max(number, 1e-300))
    return (number - low) / (high - low)


def _short(key: str) -> str:
    name = key if len(key) <= _LONGEST_NAME else key.rpartition(".")[2]
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"


FEWEST_TRIALS = 10
"""With fewer trials the shares say nothing."""


def importances(
    records: Sequence[TrialRecord], space: SearchSpace, first_rung: int, seed: int
) -> dict[str, float]:
    """Return the share of each setting, the largest first; nothing if too few trials tell.

    Args:
        records: the record of each trial.
        space: the search space.
        first_rung: the epoch at which trials are compared.
        seed: the seed of the random forest.
    """
    at_rung = {each.number: _value_at(each, first_rung) for each in records}
    values = [(each, at_rung[each.number]) for each in records]
    reached = [(each, value) for each, value in values if value is not None]
    if len(reached) < FEWEST_TRIALS or len({value for _, value in reached}) == 1:
        return {}
    study = optuna.create_study(direction="maximize")
    distributions = distributions_of(space)
    for each, value in reached:
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                params=dict(each.settings),
                distributions=distributions,
                value=value,
            )
        )
    found = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=seed))
    return {key: float(share) for key, share in found.items()}


def _value_at(record: TrialRecord, rung: int) -> float | None:
    """Return the validation metric at a rung; without rungs, that of a complete trial."""
    if rung in record.rungs:
        return record.rungs[rung]
    return record.validation if record.state == "complete" and not record.rungs else None


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
        result: the result of the search.
        space: the search space.
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
    result.to_file(folder / JSON_FILE)
    page = folder / PAGE
    write_text(page, text)
    return page


def _pictures(
    result: SweepResult, space: SearchSpace, shares: Mapping[str, float]
) -> dict[str, Figure]:
    figures = {
        HISTORY: history_picture(result.trials, result.metric),
        PARALLEL: parallel_coordinates_picture(
            result.trials, space, result.metric, result.best.number
        ),
    }
    if shares:
        figures[IMPORTANCE] = importance_picture(shares)
    return figures


logger = logging.getLogger(__name__)

TABLE_FILE = "trials.json"


def log_trials(run: TrackedRun, records: list[TrialRecord]) -> None:
    """Log the validation metric of each ended trial at the step of its number, each once.

    Args:
        run: the MLflow run of the search.
        records: the record of each trial.
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
        run: the MLflow run of the search.
        result: the result of the search.
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
    report = addresses.report_path(run)
    return render_markdown(
        "description.md.j2", __package__, result=result, report=report, shown=shown
    )


def publish(run: TrackedRun, result: SweepResult, space: SearchSpace, plan: RunConfig) -> Path:
    """Write the report, and show it in MLflow and Prefect; return the page.

    The model is registered by then, so a server error costs descriptions, never the search.

    Args:
        run: the MLflow run of the search.
        result: the result of the search.
        space: the search space.
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
