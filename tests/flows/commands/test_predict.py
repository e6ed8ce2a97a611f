"""`patchline predict` as a user meets it: tables, lists of damaged images, going on, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient
from PIL import Image

import patchline
from patchline.flows.command_line import run_command_line
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.calibrated_onnx import ProbabilityModel, export_onnx
from patchline.pipeline.prediction import batch_prediction
from patchline.plugin_api import ImageSpec
from tests.conftest import Finished, write_photos

CLASSES = ("across", "down", "rising")


class Asked(NamedTuple):
    """The command, ready to be asked."""

    capture: pytest.CaptureFixture[str]

    def predict(self, *arguments: str | Path) -> Finished:
        """Run `patchline predict` in this process."""
        code = run_command_line(["predict", *map(str, arguments)])
        written = self.capture.readouterr()
        return Finished(code, written.out, written.err)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> str:
    """Return a registry with two versions of `pets`, with random weights."""
    folder = tmp_path_factory.mktemp("registry")
    shutil.copy(empty_store, folder / "mlflow.db")
    uri = f"sqlite:///{folder / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.create_registered_model("pets")
    given = {"name": "vit", "embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
    embedding = {"name": "conv", "patch_size": 8}
    choice = ModelChoice.model_validate({**given, "patch_embedding": embedding})
    image = ImageSpec(
        channels=3, height=16, width=16, mean=(0.5,) * 3, std=(0.2,) * 3, resize="crop"
    )
    torch.manual_seed(0)
    model = build_model(choice, image, len(CLASSES))
    description = ModelDescription(model=choice, plugins=(), classes=CLASSES, image=image)
    first = folder / "1" / "artifacts"
    first.mkdir(parents=True)
    save_model(first, model, description)
    export_onnx(ProbabilityModel(model, image).eval(), first / "model.onnx")
    shutil.copytree(folder / "1", folder / "2")
    for version in ("1", "2"):
        client.create_model_version("pets", str(folder / version))
    client.set_registered_model_alias("pets", "champion", "1")
    return uri


@pytest.fixture
def asked(store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    return Asked(capsys)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_folder_becomes_a_table(asked: Asked, tmp_path: Path, suffix: str) -> None:
    """Names are spelled as the folder was; nothing but the table is left, and no answer printed."""
    write_photos(tmp_path / "photos", images=3)
    done = asked.predict("pets", "photos", "--out", f"out.{suffix}")
    assert (done.code, done.out) == (0, "")
    assert done.err.strip().endswith(f"Wrote 9 predictions to out.{suffix}")
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    table = read(f"out.{suffix}")
    assert table["image"].tolist() == sorted(
        f"photos/{c}/00{n}.png" for c in CLASSES for n in "012"
    )
    assert set(table["label"]) <= set(CLASSES)
    assert ("probabilities" in table) == (suffix == "parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{suffix}", "photos"]


def test_the_table_agrees_with_the_answers_on_the_terminal(asked: Asked, tmp_path: Path) -> None:
    """Without --out the same labels and probabilities are printed."""
    write_photos(tmp_path / "photos", images=2)
    asked.predict("pets", "photos", "--out", "out.parquet")
    shown = asked.predict("pets", "photos", "--json").json
    table = pd.read_parquet("out.parquet")
    assert (shown["model"], shown["version"]) == ("pets", "1")
    assert [answer["image"] for answer in shown["predictions"]] == table["image"].tolist()
    for answer, row in zip(shown["predictions"], table.to_dict("records"), strict=True):
        assert answer["label"] == row["label"]
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-5)
        assert len(answer["top_k"]) == len(json.loads(row["top_k"])) == 3
    lines = asked.predict("pets", "photos").out.splitlines()
    assert [line.split("  ")[0] for line in lines] == table["image"].tolist()


@pytest.mark.parametrize("suffix", ["zip", "gztar"])
def test_archives_are_predicted_as_their_folders(asked: Asked, tmp_path: Path, suffix: str) -> None:
    """The same probabilities, printed or in a table or from Python, without unpacking them."""
    folder = write_photos(tmp_path / "photos", images=2)
    (folder / "across" / "broken.png").write_bytes(b"")
    archive = Path(shutil.make_archive("packed", suffix, folder)).relative_to(tmp_path)
    assert asked.predict("pets", "photos", "--out", "folder.parquet").code == 0
    assert asked.predict("pets", archive, "--out", "archive.parquet").code == 0
    expected, found = pd.read_parquet("folder.parquet"), pd.read_parquet("archive.parquet")
    names = expected["image"].str.replace("photos/", f"{archive}/", n=1)
    assert found["image"].tolist() == names.tolist()
    others = ["label", "error", "top_k"]
    assert found[others].equals(expected[others])
    shown = asked.predict("pets", archive, "--json").json["predictions"]
    assert [each["label"] or "" for each in shown] == found["label"].fillna("").tolist()
    assert [each["error"] for each in shown if each["error"]] == ["the file is empty"]
    told = patchline.load("pets").predict(archive, errors="mark")
    assert told.index.tolist() == names.tolist()
    assert {each.name for each in tmp_path.iterdir() if each.is_dir()} <= {".patchline", "photos"}


def test_damaged_images_are_listed_and_counted(asked: Asked, tmp_path: Path) -> None:
    """Twenty are named with their reasons, the rest are counted; the exit code stays 0."""
    write_photos(tmp_path / "photos", images=1)
    for number in range(23):
        (tmp_path / "photos" / f"broken-{number:02d}.png").write_bytes(b"")
    done = asked.predict("pets", "photos", "--out", "out.csv", "--json")
    assert done.code == 0
    assert done.err.count("could not be read: the file is empty") == 20
    assert "and 3 more; see the column error of out.csv" in done.err
    assert "Wrote 3 predictions and 23 unreadable images to out.csv" in done.err
    assert {key: done.json[key] for key in ("model", "version", "out", "images", "unreadable")} == {
        "model": "pets", "version": "1", "out": "out.csv", "images": 26, "unreadable": 23,
    }  # fmt: skip


@pytest.mark.parametrize("out", [(), ("--out", "out.csv")])
def test_images_of_other_values_are_said_with_their_number(
    asked: Asked, tmp_path: Path, out: tuple[str, ...]
) -> None:
    """Each image counts once: two of 16 bits among five, for a model of 8 bits."""
    folder = write_photos(tmp_path / "photos", classes=3, images=1)
    for number in range(2):
        values = np.linspace(0, 60_000, 400 + number * 20).astype(np.uint16).reshape(20, -1)
        Image.fromarray(values).save(folder / f"deep-{number}.png")
    done = asked.predict("pets", "photos", *out, "--json")
    said = "2 of 5 images have 16-bit values, and the model was trained on images of 8-bit values"
    assert f"Warning: {said}" in done.err
    assert said in str(done.json)


def test_nothing_but_damaged_images_is_exit_code_2(asked: Asked, tmp_path: Path) -> None:
    """The table is written all the same."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.png").write_bytes(b"no image")
    assert asked.predict("pets", "photos", "--out", "out.csv").code == 2
    assert asked.predict("pets", "photos").code == 2
    assert pd.read_csv("out.csv")["error"].notna().all()


def test_an_interrupted_command_goes_on(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        assert asked.predict("pets", *command).code == 130
    other = asked.predict("pets/2", *command)
    assert other.code == 2
    assert "--restart" in other.err
    done = asked.predict("pets/1", *command)
    assert done.code == 0
    assert "Wrote 60 predictions (32 of them by an interrupted command) to" in done.err
    assert pd.read_parquet("out.parquet")["image"].is_unique
    again = asked.predict("pets/2", *command, "--restart", "--no-probabilities")
    assert again.code == 0
    assert "probabilities" not in pd.read_parquet("out.parquet")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("photos", "--out", "out.txt"), "must end in .csv or .parquet"),
        (("photos", "--out", "out.csv", "--top-k", "0"), "--top-k is 0"),
        (("photos", "--top-k", "0"), "--top-k is 0"),
        (("none", "--out", "out.csv"), "There is no file or folder none"),
        (("empty", "--out", "out.csv"), "The folder empty holds no images"),
        (("--out", "out.csv"), "No images given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_is_wrong_is_one_sentence(
    asked: Asked, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    """The exit code is 2, and nothing is left behind."""
    write_photos(tmp_path / "photos", classes=1, images=1)
    (tmp_path / "empty").mkdir()
    done = asked.predict("pets", *arguments)
    assert done.code == 2
    assert words in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "photos"]
