"""`patchline evaluate`: which images count, and what is said about the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.tracking.tracking_store import client
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import draw_photo, write_photos
from tests.flows.conftest import Command
from tests.pipeline.registry.made_versions import CLASSES, make_version


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with 36 photos and a version that was trained on 12 of them."""
    folder = tmp_path_factory.mktemp("evaluated")
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        photos = write_photos(folder / "drawn", images=12)
        (folder / "photos").mkdir()
        for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
            (photos / old).rename(folder / "photos" / new)
        make_version("stripes", folder, manifest=_trained_on(folder / "photos"))
    return folder


def _trained_on(photos: Path) -> pd.DataFrame:
    listed = [
        ListedImage(path=file.relative_to(photos).as_posix(), label=file.parent.name)
        for file in sorted(photos.rglob("*.png"))
    ]
    manifest = manifests.scan(ImageListing(name="photos", root=photos, images=listed))
    number = manifest["path"].str.extract(r"(\d+)\.png")[0].astype(int)
    manifest["split"] = ["train" if n < 3 else "validation" if n < 4 else "test" for n in number]
    return manifest


@pytest.fixture
def command(store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command in that folder."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")

    return run_here


def test_images_that_the_model_has_seen_are_left_out(command: Command) -> None:
    """The report is about the rest, which is recorded on a run of its own, linked to the model."""
    code, out, err = command("evaluate", "stripes", "photos", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["images"] == 24
    assert answer["metrics"]["all/accuracy"]["n"] == 24
    assert any("12 of 36 images were left out" in note for note in answer["notes"])
    run = client().get_run(answer["run_id"])
    assert run.info.status == "FINISHED"
    assert run.inputs is not None
    [model] = run.inputs.model_inputs
    [dataset] = run.inputs.dataset_inputs
    assert dataset.dataset.digest == answer["data_fingerprint"]
    metrics = client().get_logged_model(model.model_id).metrics or []
    linked = {metric.key: metric for metric in metrics}
    assert linked["all/accuracy"].dataset_digest == answer["data_fingerprint"]
    assert linked["all/accuracy"].value == answer["metrics"]["all/accuracy"]["value"]
    names = {Path(item.path).name for item in client().list_artifacts(answer["run_id"], "report")}
    assert names >= {"report.html", "report.json", "predictions.parquet", "reliability.png"}


def test_corrupted_images_are_reported_where_they_are_asked_for(command: Command) -> None:
    """The page, the answer and MLflow have the accuracy on them; without the setting none has."""
    code, out, err = command(
        "evaluate", "stripes", "photos", "--evaluation.corruptions", "4", "--json"
    )
    assert code == 0, err
    answer = json.loads(out)
    assert answer["robustness"]["images"] == 4
    mean = answer["robustness"]["mean"]
    logged = client().get_run(answer["run_id"]).data.metrics
    assert logged["all/corrupted_accuracy"] == mean["value"]
    assert logged["all/corrupted_accuracy_low"] == mean["low"]
    assert "all/corrupted_accuracy/fog" in logged
    page = Path(answer["report"]).read_text(encoding="utf-8")
    assert "Corrupted images" in page
    assert page.count("gaussian noise") == 1
    _, out, _ = command("evaluate", "stripes", "photos", "--json")
    assert json.loads(out)["robustness"] is None
    assert "Corrupted images" not in Path(json.loads(out)["report"]).read_text(encoding="utf-8")


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
    code, out, err = command("evaluate", "copied/1", "photos", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["images"], answer["provenance"]["state"]) == (24, "known")
    weights = copy / "artifacts" / "model.safetensors"
    save_file(load_file(weights), weights)  # as a tool does that knows nothing of the record
    code, _, err = command("evaluate", "copied/1", "photos")
    assert code == 2
    assert "version 1 of copied has no record of the images that its weights have seen" in err
    code, out, err = command("evaluate", "copied/1", "photos", "--seen-images", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["images"], answer["provenance"]["state"]) == (36, "unknown")
    assert "has no record of the images" in answer["notes"][-1]


def test_seen_images_can_be_asked_for_and_are_marked(command: Command, tmp_path: Path) -> None:
    """All 36 images count, and the report in the chosen folder calls them optimistic."""
    code, out, _ = command(
        "evaluate", "stripes@champion", "photos", "--seen-images", "--out", str(tmp_path / "out")
    )
    assert code == 0
    assert "36 images" in out
    assert "the metrics are optimistic" in out
    assert "the metrics are optimistic" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_the_predictions_are_those_of_predict(command: Command, tmp_path: Path) -> None:
    """The probability of an image is the same to 1e-5, whichever command is asked."""
    code, _, err = command("evaluate", "stripes", "photos", "--out", str(tmp_path / "out"))
    assert code == 0, err
    table = pd.read_parquet(tmp_path / "out" / "predictions.parquet")
    files = [str(Path("photos") / path) for path in table["path"]]
    code, out, err = command("predict", "stripes", *files, "--json")
    assert code == 0, err
    answers = json.loads(out)["predictions"]
    assert [answer["label"] for answer in answers] == list(table["predicted"])
    for answer, probability in zip(answers, table["probability"], strict=True):
        assert answer["probability"] == pytest.approx(probability, abs=1e-5)


def test_the_columns_of_a_table_can_be_chosen(command: Command, store: Path) -> None:
    """Where two columns could be labels, the flag decides; a wrong one is a sentence."""
    files = sorted((store / "photos").rglob("*.png"))
    table = pd.DataFrame(
        {
            "file": [str(file) for file in files],
            "color": ["warm" if number % 2 else "cold" for number in range(len(files))],
            "species": [file.parent.name for file in files],
        }
    )
    table.to_csv(store / "known.csv", index=False)
    columns = ("--data.image-column", "file", "--data.label-column")
    code, out, err = command("evaluate", "stripes", "known.csv", *columns, "species", "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 24
    sliced = (*columns, "species", "--out", "sliced", "--evaluation.slices")
    code, _, err = command("evaluate", "stripes", "known.csv", *sliced, "column:color")
    assert code == 0, err
    report = json.loads((store / "sliced/report.json").read_text("utf-8"))
    parts = {(part["column"], part["value"]): part["images"] for part in report["slices"]}
    assert parts == {("column:color", "cold"): 12, ("column:color", "warm"): 12}
    assert "By column:color" in (store / "sliced/report.html").read_text("utf-8")
    assert "column:color" in pd.read_parquet(store / "sliced/predictions.parquet")
    code, _, err = command("evaluate", "stripes", "known.csv", *sliced, "column:site")
    assert code == 2
    assert "choose from: column:color" in err
    code, _, err = command("evaluate", "stripes", "known.csv", *columns, "kind")
    assert code == 2
    assert "kind" in err
    code, _, err = command("evaluate", "stripes", "photos", "--data.label-column", "species")
    assert code == 2
    assert "label_column" in err


def test_other_classes_are_named_one_by_one(command: Command, tmp_path: Path) -> None:
    """Nothing is evaluated on classes that do not fit, unless the common ones are asked for."""
    other = write_photos(tmp_path / "other", classes=4, images=3, side=24)
    (other / "rising").rename(other / "up")
    code, _, err = command("evaluate", "stripes", str(other))
    assert code == 2
    assert "Only in the data: across (3 images), falling (3 images)." in err
    assert "Only in the model: rising." in err
    code, out, err = command("evaluate", "stripes", str(other), "--common-classes", "--json")
    answer = json.loads(out)
    assert (code, answer["images"]) == (0, 6), err
    assert any(
        "6 images were left out because the model does not have their class" in n
        for n in answer["notes"]
    )


def test_an_empty_selection_is_said(command: Command, tmp_path: Path) -> None:
    """Data that the model was trained on wholly has nothing to evaluate on."""
    for number in range(3):
        target = tmp_path / "seen" / CLASSES[0]
        target.mkdir(parents=True, exist_ok=True)
        source = Path("photos") / CLASSES[0] / f"{number:03d}.png"
        (target / source.name).write_bytes(source.read_bytes())
    code, _, err = command("evaluate", "stripes", str(tmp_path / "seen"))
    assert code == 2
    assert "No image of" in err
    assert "--seen-images" in err
    experiments = [each.experiment_id for each in client().search_experiments()]
    assert not client().search_runs(experiments, "attributes.status = 'FAILED'")
    (tmp_path / "report.txt").touch()
    code, _, err = command("evaluate", "stripes", "photos", "--out", str(tmp_path / "report.txt"))
    assert code == 2
    assert "is a file" in err
    code, _, err = command("evaluate", "stripes", "photos", "--split", "test")
    assert code == 2
    assert "it has no split 'test'. Set --split to all" in err


def test_a_damaged_image_is_listed_and_the_others_count(command: Command, tmp_path: Path) -> None:
    """One broken file does not stop the report."""
    from PIL import Image

    for label, name in enumerate(CLASSES):
        (tmp_path / "new" / name).mkdir(parents=True)
        image = Image.fromarray(draw_photo(label, 77))
        image.save(tmp_path / "new" / name / "77.png")
    (tmp_path / "new" / CLASSES[0] / "broken.png").write_bytes(b"\x89PNG but not really")
    code, out, err = command("evaluate", "stripes", str(tmp_path / "new"), "--json")
    answer = json.loads(out)
    assert (code, answer["images"]) == (0, 3), err
    assert any("broken.png" in note for note in answer["notes"])


def test_groups_of_images_are_what_the_intervals_count(command: Command, tmp_path: Path) -> None:
    """The terminal and `--json` say so, beside the intervals."""
    from PIL import Image

    for number in range(12):
        folder = tmp_path / "new" / f"patient {number // 6}" / CLASSES[number % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw_photo(number % 3, 40 + number)).save(folder / f"{number}.png")
    pattern = ("--data.label", "{group}/{label}/*")
    said = "these 12 images form 2 groups: the intervals take groups, not images, as independent"
    code, out, err = command("evaluate", "stripes", str(tmp_path / "new"), *pattern)
    assert (code, said in " ".join(out.split())) == (0, True), err
    _, out, _ = command("evaluate", "stripes", str(tmp_path / "new"), *pattern, "--json")
    assert json.loads(out)["notes"][-1].startswith(said)
