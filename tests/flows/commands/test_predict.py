"""`patchline predict` as a user meets it: tables, lists of damaged images, going on, exit codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

import patchline
from patchline.pipeline.packaging.prediction import batch_prediction
from tests.conftest import Finished, write_photos
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import made_package

CLASSES = ("across", "down", "rising")
Predict = Callable[..., Finished]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    """Return a registry with two versions of `pets`."""
    folder = tmp_path_factory.mktemp("registry")
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(uri)
    client.create_registered_model("pets")
    for version in ("1", "2"):
        made_package(folder / version / "artifacts", CLASSES)
        client.create_model_version("pets", str(folder / version))
    client.set_registered_model_alias("pets", "champion", "1")
    return uri


@pytest.fixture
def predict(uri: str, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Predict:
    """Return a function that predicts in this process."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return lambda *arguments: Finished(*run_here("predict", *map(str, arguments)))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_folder_becomes_a_table(predict: Predict, tmp_path: Path, suffix: str) -> None:
    """Nothing but the table is left, and it agrees with what is printed without `--out`."""
    write_photos(tmp_path / "photos", images=3)
    done = predict("pets", "photos", "--out", f"out.{suffix}")
    assert (done.code, done.out) == (0, "")
    assert done.err.strip().endswith(f"Wrote 9 predictions to out.{suffix}")
    table = (pd.read_csv if suffix == "csv" else pd.read_parquet)(f"out.{suffix}")
    assert table["image"].tolist() == [f"photos/{c}/00{n}.png" for c in CLASSES for n in "012"]
    assert ("probabilities" in table) == (suffix == "parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{suffix}", "photos"]
    shown = predict("pets", "photos", "--json").json
    assert (shown["model"], shown["version"]) == ("pets", "1")
    for answer, row in zip(shown["predictions"], table.to_dict("records"), strict=True):
        assert (answer["image"], answer["label"]) == (row["image"], row["label"])
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-5)
        assert len(answer["top_k"]) == len(json.loads(row["top_k"])) == 3
    lines = predict("pets", "photos").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == table["image"].tolist()


def test_an_archive_is_predicted_as_its_folder(predict: Predict, tmp_path: Path) -> None:
    """The same answers, printed or in a table or from Python, without unpacking it."""
    folder = write_photos(tmp_path / "photos", images=2)
    (folder / "across" / "broken.png").write_bytes(b"")
    archive = Path(shutil.make_archive("packed", "gztar", folder)).relative_to(tmp_path)
    for data, table in (("photos", "folder.parquet"), (archive, "archive.parquet")):
        assert predict("pets", data, "--out", table).code == 0
    expected, found = pd.read_parquet("folder.parquet"), pd.read_parquet("archive.parquet")
    names = expected["image"].str.replace("photos/", f"{archive}/", n=1).tolist()
    assert found["image"].tolist() == names
    others = ["label", "error", "top_k"]
    assert found[others].equals(expected[others])
    shown = predict("pets", archive, "--json").json["predictions"]
    assert [each["label"] or "" for each in shown] == found["label"].fillna("").tolist()
    assert [each["error"] for each in shown if each["error"]] == ["the file is empty"]
    assert patchline.load("pets").predict(archive, errors="mark").index.tolist() == names
    assert {each.name for each in tmp_path.iterdir() if each.is_dir()} <= {".patchline", "photos"}


def test_damaged_images_are_listed_and_counted(predict: Predict, tmp_path: Path) -> None:
    """Twenty are named with their reasons, the rest are counted; the exit code stays 0.

    If no other image is left, it is 2.
    """
    write_photos(tmp_path / "photos", images=1)
    for number in range(23):
        (tmp_path / "photos" / f"broken-{number:02d}.png").write_bytes(b"")
    done = predict("pets", "photos", "--out", "out.csv", "--json")
    assert done.code == 0
    assert done.err.count("could not be read: the file is empty") == 20
    assert "and 3 more; see the column error of out.csv" in done.err
    assert (done.json["images"], done.json["unreadable"], done.json["out"]) == (26, 23, "out.csv")
    for name in CLASSES:
        shutil.rmtree(tmp_path / "photos" / name)
    assert predict("pets", "photos", "--out", "out.csv").code == 2
    assert predict("pets", "photos").code == 2
    assert pd.read_csv("out.csv")["error"].notna().all()


def test_an_interrupted_command_goes_on(
    predict: Predict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command resumes; another version has to start over, and says how."""
    monkeypatch.setattr(batch_prediction, "_PART_IMAGES", 16)
    write_photos(tmp_path / "photos", images=20)
    command = ("photos", "--out", "out.parquet")
    real, calls = batch_prediction._table, []

    def interrupted(*arguments: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(batch_prediction, "_table", interrupted)
        assert predict("pets", *command).code == 130
    other = predict("pets/2", *command)
    assert (other.code, "--restart" in other.err) == (2, True)
    done = predict("pets/1", *command)
    assert done.code == 0
    assert "Wrote 60 predictions (32 of them by an interrupted command) to" in done.err
    assert pd.read_parquet("out.parquet")["image"].is_unique
    assert predict("pets/2", *command, "--restart", "--no-probabilities").code == 0
    assert "probabilities" not in pd.read_parquet("out.parquet")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("photos --out out.txt", "must end in .csv or .parquet"),
        ("photos --out out.csv --top-k 0", "--top-k is 0"),
        ("photos --out empty.csv", "is a folder"),
        ("none --out out.csv", "There is no file or folder none"),
        ("empty.csv --out out.csv", "The folder empty.csv holds no images"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    predict: Predict, tmp_path: Path, arguments: str, words: str
) -> None:
    """The exit code is 2, and nothing is left behind."""
    write_photos(tmp_path / "photos", classes=1, images=1)
    (tmp_path / "empty.csv").mkdir()
    done = predict("pets", *arguments.split())
    assert (done.code, words in done.err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty.csv", "photos"]
