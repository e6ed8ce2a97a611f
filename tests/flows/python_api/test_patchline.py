"""`import patchline`: what the commands do, with values and exceptions instead of text."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest

import patchline
from patchline.flows.python_api.session import session
from patchline.pipeline.registry.browsing.notebook import run_of
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.registry.config import PromotionConfig
from tests.conftest import Run, draw_photo, write_photos
from tests.flows.commands.photo_stores import class_photos, entered_store
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import CLASSES, make_version

GATES = {"package_check": False, "min_images": 10}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with two versions of `stripes`, and 36 photos that neither has seen."""
    folder = tmp_path_factory.mktemp("python_api")
    gates = PromotionConfig.model_validate(GATES)
    with entered_store(folder, empty_store):
        class_photos(folder, 12)
        for seed in (0, 1):
            make_version("stripes", folder, wrong=range(40), config=gates, seed=seed)
    return folder


@pytest.fixture(autouse=True)
def _in_the_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)


def test_a_loaded_model_answers_as_the_command_does(run_here: Command) -> None:
    """Labels and probabilities of files are those of `patchline predict`."""
    files = [str(file) for file in sorted(Path("photos/up").glob("*.png"))]
    expected = run_here.json("predict stripes@champion", *files, "--top-k", "3")
    model = patchline.load("stripes@champion")
    found = model.predict(files)
    for name, answer in zip(files, expected["predictions"], strict=True):
        row = found.loc[name].to_dict()
        assert (row["label"], row["probability"]) == (answer["label"], answer["probability"])
        for each in answer["top_k"]:
            assert float(row[each["label"]]) == each["probability"]
    assert model.predict(draw_photo(0, 0))["label"].item() in CLASSES  # needs no file and no list


def test_an_inspection_has_findings_a_plan_a_page_and_a_table(tmp_path: Path) -> None:
    """The page and the table are where it says; the plan names the data that it is for."""
    photos = write_photos(tmp_path / "inspected", images=8)
    shutil.copy(photos / "down" / "000.png", photos / "down" / "copy.png")
    found = patchline.inspect_data(photos, preset="quick", out=tmp_path / "report")
    assert found.images == 25
    assert "exact_duplicate" in [finding.kind for finding in found.findings]
    assert found.plan[0].startswith("model: ")
    assert any("training images of 32 pixels in 3 classes" in line for line in found.plan)
    assert found.path.parent == found.table.parent == tmp_path / "report"
    assert "srcdoc" in found._repr_html_()
    assert "Suggested plan" in found.path.read_text("utf-8")
    assert "down/copy.png" in found.table.read_text("utf-8")


def test_an_evaluation_is_a_report_with_its_metrics() -> None:
    """A notebook shows the page in a frame without scripts."""
    found = patchline.evaluate("stripes/1", "photos")
    assert found.images == found.metrics["all/accuracy"].n == 36
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in shown
    assert shown.count("<") == 2


def test_a_promotion_returns_the_decision() -> None:
    """A refusal is an answer with its gates; `force` needs a reason and is marked."""
    refused = patchline.promote("stripes", promotion=GATES)
    assert (refused.promoted, refused.version, refused.champion) == (False, "2", "1")
    assert [gate.name for gate in refused.gates if not gate.passed] == ["better_than_champion"]
    assert "not promoted" in refused._repr_html_()
    assert refused.report
    assert "<iframe" in refused.report._repr_html_()
    again = patchline.promote("stripes", version=1, promotion=GATES)
    assert (again.promoted, again.forced) == (True, False)


def test_the_models_are_a_table(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row for each version, newest first; the working directory decides at each call.

    `mlflow.set_tracking_uri` overrules it, as it does for MLflow itself.
    """
    found = patchline.models("stripes")
    assert list(found.index) == [("stripes", 2), ("stripes", 1)]
    assert found.loc[("stripes", 1), "aliases"] == "champion"
    assert "test/accuracy" in found.columns
    monkeypatch.chdir(tmp_path)
    found = patchline.models()
    assert (len(found), "aliases" in found.columns) == (0, True)
    assert list(tmp_path.iterdir()) == []
    mlflow.set_tracking_uri(f"sqlite:///{store / 'mlflow.db'}")
    try:
        assert len(patchline.models()) == 2
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # "" would stay set as a folder


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (lambda: patchline.load("strpes"), "predict strpes photos"),
        (lambda: patchline.evaluate("stripes", "nowhere"), "evaluate stripes nowhere"),
        (lambda: patchline.promote("stripes", force=True), "promote stripes --force"),
        (lambda: patchline.run("photos", preset="qick"), "run photos --preset qick"),
        (
            lambda: patchline.run("photos", data={"resize": "cropp"}),
            "run photos --data.resize cropp",
        ),
    ],
)
def test_an_error_is_an_exception_with_the_sentence_of_the_command(
    call: Callable[[], object], command: str, run_here: Command
) -> None:
    """What the command prints behind `Error:` is the text of the exception."""
    err = run_here.refusal(command)
    with pytest.raises(patchline.UserError) as caught:
        call()
    assert f"Error: {caught.value}" in err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trainig": {"epochs": 1}}, "no setting trainig. Did you mean training?"),
        ({"training": {"epochz": 1}}, "Did you mean training.epochs?"),
        ({"training": 3}, "training is 3, but must be a dict"),
        ({"model": {"patch_embedding": "conv"}}, "model.patch_embedding is 'conv', but must be"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], sentence: str) -> None:
    """An unknown one with the nearest spelling; nothing is started for it.

    A resumed run takes none: its settings are those that it was started with.
    """
    with pytest.raises(patchline.UserError, match=sentence):
        patchline.run("photos", **settings)  # type: ignore[arg-type]
    with pytest.raises(patchline.ConfigError, match="cannot be combined with resume"):
        patchline.run(resume="last", **settings)  # type: ignore[arg-type]


def test_the_settings_are_the_sections_of_a_run() -> None:
    """What an editor completes is what a run takes."""
    from patchline.pipeline.config import RunConfig

    keyword = {"preset", "record"}  # a parameter of its own; what a run writes
    assert set(patchline.Settings.__annotations__) == set(RunConfig.model_fields) - keyword


def test_a_call_works_inside_a_running_event_loop() -> None:
    """A notebook's cell runs in one; it is there again afterwards."""

    async def cell() -> int:
        found = patchline.models()
        await asyncio.sleep(0)
        return len(found)

    assert asyncio.run(cell()) == 2


def test_nothing_of_a_call_is_left_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment, levels, handlers, hooks and the record factory are as before."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    logging.getLogger("mlflow").setLevel(logging.INFO)
    before = _state()
    patchline.models()
    with pytest.raises(patchline.ModelReferenceError):
        patchline.load("strpes")
    assert _state() == before


def _state() -> list[object]:
    root = logging.getLogger()
    hooks = [sys.excepthook, threading.excepthook, logging.getLogRecordFactory()]
    levels = [logging.getLogger(name).level for name in ("", "mlflow", "alembic")]
    ours = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return [ours, Path.cwd(), list(root.handlers), *levels, *hooks]


def test_an_exit_becomes_an_exception() -> None:
    """No call ends the caller's process: Ctrl-C stays an interrupt, anything else is an error."""
    with pytest.raises(KeyboardInterrupt), session():
        sys.exit(130)
    with pytest.raises(patchline.RunError, match="early with code 3"), session():
        sys.exit(3)
    with pytest.raises(KeyboardInterrupt), session():
        raise KeyboardInterrupt


def test_a_run_shows_what_it_came_to(finished_run: Run) -> None:
    """Its values are those of the summary; only an address that works is a link."""
    summary = RunSummary.model_validate(finished_run.summary)
    run = run_of(summary)
    assert repr(run).startswith("Run(photos/1, test accuracy ")
    assert run.url is None
    assert "photos, version 1 (challenger, champion)" in run._repr_html_()
    assert 'srcdoc="&lt;!doctype html&gt;' in run.report._repr_html_()
    served = run_of(summary.model_copy(update={"tracking_uri": "http://127.0.0.1:5000"}))
    assert served.url == summary.page
