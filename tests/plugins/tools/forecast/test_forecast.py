"""The command `patchline forecast`: what it says, keeps and refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import patchline
from patchline.pipeline.config import RunConfig
from patchline.plugins.tools.forecast.forecasting import (
    Forecast,
    Learner,
    Measured,
    Questions,
    measure,
    write_page,
)
from tests.conftest import patchline_here, write_photos
from tests.flows.training.runs import TINY, store_of
from tests.plugins.tools.forecast.test_learning_curve import fits_with

STEEP, FLAT = [0.5, 0.38, 0.29, 0.22], [0.2, 0.2, 0.2, 0.2]


def measured(errors: list[float], images: int = 1000) -> Measured:
    """Return what fits have shown on roses and tulips."""
    tested = pd.DataFrame({"label": ["rose", "tulip"] * (images // 2)})
    return Measured(fits_with(errors, images), tested, {"rose": 1200, "tulip": 400}, 0)


def forecast_of(errors: list[float], questions: Questions | None = None) -> Forecast:
    """Return the forecast of fits."""
    return measure(measured(errors), "a head", questions or Questions(), "flowers")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """Return a folder of 40 images and a table."""
    folder = tmp_path / "inbox"
    write_photos(folder, 2, 20)
    (folder / "notes.csv").write_text("path\n", encoding="utf-8")
    return folder


def test_the_forecast_is_for_the_learner_in_so_many_words() -> None:
    """The gain with twice the labels, its interval, and what the next points cost."""
    result = forecast_of(STEEP, Questions(seconds_per_label=4))
    now, then = result.points[-1], result.forecast[0]
    ends = f"({100 * then.low:.1f} to {100 * then.high:.1f})"
    sentence, price = result.sentences()
    assert sentence == (
        "For this learner (a head), not for the champion: with twice the labels, "
        f"{now.value:.1%} becomes {then.value:.1%} {ends}."
    )
    assert result.further
    assert result.further.seconds == 4 * result.further.labels
    assert f"about {result.further.labels:,} more labels" in price
    assert "of labelling" in price
    assert [each.labels for each in result.points] == [200, 400, 800, 1600]
    assert then.labels == 3200


def test_too_few_to_tell_gives_no_number(inbox: Path) -> None:
    """Of a flat curve nothing is told: no forecast, no price, no classes."""
    result = forecast_of(FLAT, Questions(inbox=inbox, seconds_per_label=4))
    assert (result.forecast, result.further, result.classes) == ((), None, ())
    first, last = result.sentences()
    assert first.startswith("Too few to tell")
    assert "%" not in first
    assert last == "The inbox has 40 images; label some of them and ask again."


def test_the_classes_that_would_gain_most_for_each_label_come_first() -> None:
    """Both gain the same, and the tulips have fewer labels."""
    result = forecast_of(STEEP)
    assert [each.name for each in result.classes] == ["tulip", "rose"]
    assert [each.then.labels for each in result.classes] == [800, 2400]
    assert all(each.then.value > each.now for each in result.classes)


def test_an_inbox_is_counted_and_forecast(inbox: Path) -> None:
    """Tables are no images; a forecast is for as many as it reaches."""
    result = forecast_of(STEEP, Questions(inbox=inbox))
    assert (result.inbox_images, result.inbox_labels) == (40, 40)
    assert [each.labels for each in result.forecast] == [3200, 1640]
    assert "labels of all 40 images of the inbox" in result.sentences()[-1]


@pytest.mark.parametrize("errors", [STEEP, FLAT])
def test_the_page_shows_what_was_measured(tmp_path: Path, errors: list[float]) -> None:
    """Every point is in the table, and the sentences are at the top."""
    result = forecast_of(errors)
    write_page(result, measured(errors).curve(), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    for point in (*result.points, *result.forecast):
        assert f"{point.labels:,}" in page
        assert f"{point.value:.1%}" in page
    assert ("Too few to tell" in page) == (not result.forecast)
    assert "data:image/svg+xml" in page


@pytest.mark.parametrize(("record", "steps"), [({}, 5 * 7), ({"step_plan": [[0, 0.0, 123]]}, 123)])
def test_the_updates_of_a_fit_do_not_depend_on_its_share(
    record: dict[str, Any], steps: int
) -> None:
    """They are those of all images; ten validations on all validation images choose the weights."""
    settings = {"training": {"epochs": 5, "batch_size": 16, "folds": 5}, "record": record}
    data: Any = SimpleNamespace(
        task="single_label",
        counts={"train": 100, "validation": 30},
        seen_before=SimpleNamespace(trained=0),
    )
    learner = Learner.of(RunConfig.model_validate(settings), data)
    planned, validations = learner.config.record.step_plan, learner.config.record.validation_plan
    assert planned == ((0, 0.0, steps),)
    assert validations is not None
    assert (len(validations), validations[-1]) == (10, (steps, 30))
    assert learner.config.training.folds is None
    assert f"{steps} updates" in learner.words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--training.time-limit 5m", "training.time_limit is 5m"),
        ("--seconds-per-label 0", "must be more than 0"),
        ("--objective.name mae", "uses no labels"),
        ("--inbox nowhere", "There is no file or folder nowhere"),
        ("nowhere", "nowhere"),
    ],
)
def test_what_cannot_be_forecast_is_refused_with_one_sentence(
    tmp_path: Path, arguments: str, words: str
) -> None:
    """Exit code 2, before anything is fitted."""
    done = patchline_here("forecast", *arguments.split(), cwd=tmp_path)
    assert done.code == 2, done.err
    [sentence] = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    assert words in sentence
    assert not list(tmp_path.glob(".patchline/runs/*"))


@pytest.mark.slow
def test_the_digits_are_forecast_and_no_fit_is_repeated(tmp_path: Path) -> None:
    """One MLflow run for each call; what a kill has left is used, and only the rest is fitted."""
    arguments = ("forecast", *TINY.split(), "--json")
    first = patchline_here(*arguments, cwd=tmp_path)
    assert first.code == 0, first.err
    result = first.json
    assert result["metric"] == "accuracy"
    sizes = [point["labels"] for point in result["points"]]
    assert len(sizes) == 4
    assert np.allclose(np.array(sizes) / sizes[-1], [1 / 8, 1 / 4, 1 / 2, 1], atol=0.01)
    assert result["known"] == bool(result["forecast"])
    assert Path(result["page"]).is_file()
    client = store_of(tmp_path)
    run = client.get_run(result["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["mlflow.source.name"] == "patchline forecast"
    history = client.get_metric_history(result["run_id"], "test/accuracy")
    assert [metric.step for metric in history] == sizes
    artifacts = {each.path for each in client.list_artifacts(result["run_id"], "report")}
    assert artifacts == {"report/report.html", "report/forecast.json"}
    [kept] = (tmp_path / ".patchline/forecasts").iterdir()
    times = {file: file.stat().st_mtime_ns for file in kept.glob("fit-*.npy")}
    assert len(times) == 12
    lost = kept / "fit-0-1.npy"
    before = lost.read_bytes()
    lost.unlink()
    again = patchline_here(*arguments, cwd=tmp_path).json
    assert (again["points"], again["forecast"]) == (result["points"], result["forecast"])
    assert lost.read_bytes() == before
    assert {file: file.stat().st_mtime_ns for file in times if file != lost} == {
        file: time for file, time in times.items() if file != lost
    }


@pytest.mark.slow
def test_a_forecast_from_python_is_that_of_the_command(tmp_path: Path) -> None:
    """`patchline.forecast` comes from the registry of tools."""
    function: Any = getattr(patchline, "forecast")  # noqa: B009 - type checkers do not know it
    shape = {"name": "vit", "embed_dim": 16, "depth": 1, "num_heads": 2}
    result = function(preset="none", model=shape, training={"epochs": 1})
    assert isinstance(result, Forecast)
    assert Path(result.page).is_file()
    assert tmp_path in Path(result.page).resolve().parents
