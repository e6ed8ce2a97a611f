"""`patchline evaluate`: which images count, and what is said about the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.conftest import write_photos
from tests.flows.commands.photo_stores import class_photos, entered_store, manifest_of
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import CLASSES, make_version


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with 36 photos and a version that was trained on 12 of them."""
    folder = tmp_path_factory.mktemp("evaluated")
    with entered_store(folder, empty_store):
        photos = class_photos(folder, 12)
        make_version("stripes", folder, manifest=manifest_of(photos, train=3, validation=1))
    return folder


def test_images_that_the_model_has_seen_are_left_out(command: Command) -> None:
    """The report is about the rest, which is recorded on a run of its own, linked to the model.

    Where corrupted images are asked for, page, answer and MLflow have the accuracy on them.
    """
    answer = command.json("evaluate stripes photos --evaluation.corruptions 4")
    assert answer["images"] == answer["metrics"]["all/accuracy"]["n"] == 24
    assert any("12 of 36 images were left out" in note for note in answer["notes"])
    run = client().get_run(answer["run_id"])
    assert run.info.status == "FINISHED"
    assert run.inputs is not None
    [model] = run.inputs.model_inputs
    [dataset] = run.inputs.dataset_inputs
    assert dataset.dataset.digest == answer["data_fingerprint"]
    metrics = client().get_logged_model(model.model_id).metrics or []
    [linked] = [metric for metric in metrics if metric.key == "all/accuracy"]
    assert linked.dataset_digest == answer["data_fingerprint"]
    assert linked.value == answer["metrics"]["all/accuracy"]["value"]
    names = {Path(item.path).name for item in client().list_artifacts(answer["run_id"], "report")}
    assert names >= {"report.html", "report.json", "predictions.parquet", "reliability.png"}
    mean = answer["robustness"]["mean"]
    logged = run.data.metrics
    assert logged["all/corrupted_accuracy"] == mean["value"]
    assert logged["all/corrupted_accuracy_low"] == mean["low"]
    assert "all/corrupted_accuracy/fog" in logged
    assert "Corrupted images" in Path(answer["report"]).read_text(encoding="utf-8")


def test_a_package_of_another_workspace_knows_what_it_has_seen(
    command: Command, tmp_path: Path
) -> None:
    """Also if it was registered from a folder, so that no run here has trained it.

    Without the record in the file of its weights, nothing is evaluated until that is asked for.
    """
    import mlflow
    from mlflow.artifacts import download_artifacts

    copy = Path(download_artifacts("models:/stripes/1", dst_path=str(tmp_path / "copy")))
    mlflow.register_model(copy.as_uri(), "copied")
    answer = command.json("evaluate copied/1 photos")
    assert (answer["images"], answer["provenance"]["state"]) == (24, "known")
    assert answer["robustness"] is None
    weights = copy / "artifacts" / "model.safetensors"
    save_file(load_file(weights), weights)  # as a tool does that knows nothing of the record
    err = command.refusal("evaluate copied/1 photos")
    assert "has no record of the images that its weights have seen" in err
    answer = command.json("evaluate copied/1 photos --seen-images")
    assert (answer["images"], answer["provenance"]["state"]) == (36, "unknown")


def test_seen_images_are_marked_and_the_predictions_are_those_of_predict(
    command: Command, store: Path
) -> None:
    """The report calls them optimistic; an image's probability is the same in both commands.

    Where two columns of a table could be labels, the flag decides; another one may make slices.
    """
    files = sorted((store / "photos").rglob("*.png"))
    table = pd.DataFrame(
        {
            "file": [str(file) for file in files],
            "color": ["warm" if number % 2 else "cold" for number in range(len(files))],
            "species": [file.parent.name for file in files],
        }
    )
    table.to_csv("known.csv", index=False)
    columns = ("--data.image-column", "file", "--data.label-column", "species")
    species = ("evaluate stripes@champion known.csv --seen-images", *columns)
    out = command.out(*species, "--evaluation.slices=column:color", "--out", "sliced")
    report, page = (
        Path("sliced/report").with_suffix(each).read_text() for each in (".json", ".html")
    )
    assert "36 images" in out
    for text in (out, page):
        assert "the metrics are optimistic" in text
    parts = {
        (each["column"], each["value"]): each["images"] for each in json.loads(report)["slices"]
    }
    assert parts == {("column:color", "cold"): 18, ("column:color", "warm"): 18}
    assert "By column:color" in page
    found = pd.read_parquet("sliced/predictions.parquet")
    assert "column:color" in found
    images = [next(file for file in table["file"] if file.endswith(path)) for path in found["path"]]
    answers = command.json("predict stripes", *images)["predictions"]
    assert [answer["label"] for answer in answers] == list(found["predicted"])
    probabilities = [answer["probability"] for answer in answers]
    assert probabilities == pytest.approx(list(found["probability"]), abs=1e-5)
    wrong = (*species, "--evaluation.slices=column:site")
    assert "choose from: column:color" in command.refusal(*wrong)


def test_other_classes_and_damaged_images_are_named_one_by_one(
    command: Command, tmp_path: Path
) -> None:
    """Nothing is evaluated on classes that do not fit, unless the common ones are asked for."""
    other = write_photos(tmp_path / "other", classes=4, images=3, side=24)
    (other / "rising").rename(other / "up")
    (other / "up" / "broken.png").write_bytes(b"\x89PNG but not really")
    err = command.refusal("evaluate stripes", other)
    assert "Only in the data: across (3 images), falling (3 images)." in err
    assert "Only in the model: rising." in err
    answer = command.json("evaluate stripes", other, "--common-classes")
    assert answer["images"] == 6
    for words in ("6 images were left out because the model does not have", "broken.png"):
        assert words in str(answer["notes"])


def test_what_cannot_be_evaluated_is_said(command: Command, tmp_path: Path) -> None:
    """Data that the model was trained on wholly has nothing to evaluate on, and no run failed."""
    (tmp_path / "seen" / CLASSES[0]).mkdir(parents=True)
    for number in range(3):
        shutil.copy(f"photos/{CLASSES[0]}/{number:03d}.png", tmp_path / "seen" / CLASSES[0])
    (tmp_path / "report.txt").touch()
    for arguments, words in (
        ((str(tmp_path / "seen"),), "--seen-images"),
        (("photos", "--out", str(tmp_path / "report.txt")), "is a file"),
        (("photos", "--split", "test"), "it has no split 'test'. Set --split to all"),
        (("photos", "--data.label-column", "species"), "label_column"),
    ):
        assert words in command.refusal("evaluate stripes", *arguments)
    experiments = [each.experiment_id for each in client().search_experiments()]
    assert not client().search_runs(experiments, "attributes.status = 'FAILED'")
