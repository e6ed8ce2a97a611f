"""`import patchline`: what the commands do, with values and exceptions instead of text."""

from __future__ import annotations

import asyncio
import json
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
from patchline.pipeline.browsing.notebook_results import run_of
from patchline.pipeline.browsing.run_summary import RunSummary
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.registry.config import PromotionConfig
from tests.conftest import draw_photo, write_photos
from tests.flows.conftest import Command
from tests.pipeline.registry.made_versions import CLASSES, make_version

GATES = {"package_check": False, "min_images": 10}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with two versions of `stripes`, and 36 photos that neither has seen."""
    folder = tmp_path_factory.mktemp("python_api")
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        write_photos(folder / "drawn", images=12)
        (folder / "photos").mkdir()
        for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
            (folder / "drawn" / old).rename(folder / "photos" / new)
        make_version("stripes", folder, wrong=range(40), config=_gates())
        make_version("stripes", folder, wrong=range(40), config=_gates(), seed=1)
    return folder


def _gates() -> PromotionConfig:
    return PromotionConfig.model_validate(GATES)


@pytest.fixture(autouse=True)
def _in_the_store(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store)


def test_a_loaded_model_answers_as_the_command_does(run_here: Command) -> None:
    """Labels and probabilities of files are those of `patchline predict`."""
    files = [str(file) for file in sorted(Path("photos/up").glob("*.png"))]
    code, out, err = run_here("predict", "stripes@champion", *files, "--top-k", "3", "--json")
    assert code == 0, err
    found = patchline.load("stripes@champion").predict(files)
    for name, answer in zip(files, json.loads(out)["predictions"], strict=True):
        row = found.loc[name].to_dict()
        assert row["label"] == answer["label"]
        assert row["probability"] == answer["probability"]
        for each in answer["top_k"]:
            assert float(row[each["label"]]) == each["probability"]


def test_an_inspection_finds_what_the_command_finds(run_here: Command, tmp_path: Path) -> None:
    """The same findings and version of the data; the page and the table are where it says."""
    photos = write_photos(tmp_path / "inspected", images=6)
    shutil.copy(photos / "down" / "000.png", photos / "across" / "copy.png")
    code, out, err = run_here("data", "inspect", str(photos), "--json")
    assert code == 0, err
    expected = json.loads(out)
    found = patchline.inspect_data(photos, out=tmp_path / "report")
    assert (found.images, found.fingerprint) == (19, expected["fingerprint"])
    kinds = [finding.kind for finding in found.findings]
    assert kinds == [finding["kind"] for finding in expected["findings"]]
    assert "label_conflict" in kinds
    assert found.path.parent == found.table.parent == tmp_path / "report"
    assert "srcdoc" in found._repr_html_()
    table = found.table.read_text(encoding="utf-8")
    assert "across/copy.png" in table


def test_an_evaluation_is_a_report_with_the_metrics_of_the_command(run_here: Command) -> None:
    """The same images, metrics and notes; a notebook shows the page in a frame without scripts."""
    code, out, err = run_here("evaluate", "stripes/1", "photos", "--json")
    assert code == 0, err
    found = patchline.evaluate("stripes/1", "photos")
    expected = json.loads(out)
    assert found.images == expected["images"] == 36
    assert {key: value.model_dump() for key, value in found.metrics.items()} == expected["metrics"]
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox srcdoc="&lt;!doctype html&gt;')
    assert "<script" not in shown
    assert shown.count("<") == 2


def test_a_promotion_returns_the_decision() -> None:
    """A refusal is an answer with its gates; `force` needs a reason and is marked."""
    refused = patchline.promote("stripes", promotion=GATES)
    assert not refused.promoted
    assert refused.version == "2"
    assert refused.champion == "1"
    assert [gate.name for gate in refused.gates if not gate.passed] == ["better_than_champion"]
    assert "not promoted" in refused._repr_html_()
    assert refused.report
    assert "<iframe" in refused.report._repr_html_()
    again = patchline.promote("stripes", version=1, promotion=GATES)
    assert (again.promoted, again.forced) == (True, False)


def test_the_models_are_a_table() -> None:
    """One row for each version, newest first, with aliases and metrics."""
    found = patchline.models("stripes")
    assert list(found.index) == [("stripes", 2), ("stripes", 1)]
    assert found.loc[("stripes", 1), "aliases"] == "champion"
    assert "test/accuracy" in found.columns
    assert len(patchline.models()) == 2


def test_without_a_store_there_are_no_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory decides at each call, and an empty one has an empty table."""
    monkeypatch.chdir(tmp_path)
    found = patchline.models()
    assert len(found) == 0
    assert "aliases" in found.columns
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (lambda: patchline.load("strpes"), "predict strpes photos"),
        (lambda: patchline.load("stripes@chmpion"), "predict stripes@chmpion photos"),
        (lambda: patchline.load("stripes").predict("no.png"), "predict stripes no.png"),
        (lambda: patchline.evaluate("stripes", "nowhere"), "evaluate stripes nowhere"),
        (lambda: patchline.promote("stripes", force=True), "promote stripes --force"),
        (lambda: patchline.promote("stripes@champion"), "promote stripes@champion"),
        (lambda: patchline.models("strpes"), "models strpes"),
        (lambda: patchline.run("nowhere"), "run nowhere"),
        (lambda: patchline.run("photos", preset="qick"), "run photos --preset qick"),
        (lambda: patchline.run("photos", config="no.yaml"), "run photos --config no.yaml"),
        (lambda: patchline.run(model={"name": "vti"}), "run --model.name vti"),
        (
            lambda: patchline.run("photos", data={"resize": "cropp"}),
            "run photos --data.resize cropp",
        ),
        (lambda: patchline.run(resume="none"), "run --resume none"),
    ],
)
def test_an_error_is_an_exception_with_the_sentence_of_the_command(
    call: Callable[[], object], command: str, run_here: Command
) -> None:
    """What the command prints behind `Error:` is the text of the exception."""
    code, _, err = run_here(*command.split())
    assert code == 2
    with pytest.raises(patchline.UserError) as caught:
        call()
    assert f"Error: {caught.value}" in err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"trainig": {"epochs": 1}}, "no setting trainig. Did you mean training?"),
        ({"training": {"epochz": 1}}, "Did you mean training.epochs?"),
        ({"model": {"embed_dimm": 8}}, "Did you mean model.embed_dim?"),
        ({"training": 3}, "training is 3, but must be a dict"),
        ({"model": {"patch_embedding": "conv"}}, "model.patch_embedding is 'conv', but must be"),
        ({"data": {"path": Path("nowhere")}}, "no setting|There is no|reads no path"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, object], sentence: str) -> None:
    """An unknown one with the nearest spelling; nothing is started for it."""
    with pytest.raises(patchline.UserError, match=sentence):
        patchline.run("photos" if "data" not in settings else None, **settings)  # type: ignore[arg-type]


def test_a_resumed_run_takes_nothing_else() -> None:
    """Its settings are those that it was started with."""
    with pytest.raises(patchline.ConfigError, match="'training' cannot be combined with resume"):
        patchline.run(resume="last", training={"epochs": 3})


def test_a_run_starts_from_weights(tmp_path: Path) -> None:
    """As with the flags; the file may be a `Path`, and a default that is given counts as set."""
    from patchline.flows.python_api.run_config import new_run
    from patchline.pipeline.config_files import requested

    file = tmp_path / "tower.safetensors"
    asked = new_run("photos", {"model": {"init": file, "activation": "gelu"}})
    flags = {"model": {"init": str(file), "activation": "gelu"}}
    assert asked == requested("photos", flags=flags)
    assert asked.training.trainable is None  # the plan decides
    plain = new_run("photos", {"model": {"init": file}}, preset="none")
    assert plain.training.trainable == "head"
    assert "model.activation" in (asked.record.set_by_user or ())


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


def test_the_store_that_the_caller_has_set_is_used(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mlflow.set_tracking_uri` decides, as it does for MLflow itself."""
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{store / 'mlflow.db'}")
    try:
        assert len(patchline.models()) == 2
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # "" would stay set as a folder


def test_an_exit_becomes_an_exception() -> None:
    """No call ends the caller's process: Ctrl-C stays an interrupt, anything else is an error."""
    with pytest.raises(KeyboardInterrupt), session():
        sys.exit(130)
    with pytest.raises(patchline.RunError, match="early with code 3"), session():
        sys.exit(3)
    with pytest.raises(KeyboardInterrupt), session():
        raise KeyboardInterrupt


def test_a_run_shows_what_it_came_to(tmp_path: Path) -> None:
    """Its values are those of the summary; only an address that works is a link."""
    page = tmp_path / "report.html"
    page.write_text('<!doctype html><p class="a">100 % & more</p>', encoding="utf-8")
    accuracy = MetricEstimate(value=0.98, low=0.95, high=0.99, n=286)
    summary = RunSummary(
        run_id="abc", name="digits", version="3", aliases=("challenger",), status="FINISHED",
        seconds={"train": 20.0}, metrics={"test/accuracy": accuracy}, report=str(page),
        tracking_uri="sqlite:////mlflow.db", config="config.yaml", data_fingerprint="f",
        example_image="0.png", notes=(), promotion=None, page="http://127.0.0.1:5000/#/run",
    )  # fmt: skip
    run = run_of(summary)
    assert repr(run) == "Run(digits/3, test accuracy 98.0% (95.0% to 99.0%, n=286))"
    assert run.metrics["test/accuracy"].value == 0.98
    assert run.url is None
    assert "digits, version 3 (challenger)" in run._repr_html_()
    assert "&lt;p class=&quot;a&quot;&gt;100 % &amp; more" in run.report._repr_html_()
    served = run_of(summary.model_copy(update={"tracking_uri": "http://127.0.0.1:5000"}))
    assert served.url == "http://127.0.0.1:5000/#/run"
    page.write_text("x" * 6_000_000, encoding="utf-8")
    assert "too large to show here" in run.report._repr_html_()
    page.unlink()
    assert "is gone" in run.report._repr_html_()


def test_one_image_is_enough() -> None:
    """An array needs no file and no list."""
    found = patchline.load("stripes").predict(draw_photo(0, 0))
    assert found["label"].item() in CLASSES
