"""The package of a real run stands alone: no torch, no Patchline, no pickle, no path of ours."""

from __future__ import annotations

import json
import os
import pickletools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import patchline
from patchline.pipeline import config_files
from patchline.pipeline.errors import ModelReferenceError, PackagingError
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.packaging.agreement import largest_difference
from patchline.pipeline.packaging.calibrated_onnx import FeatureModel, export_onnx
from patchline.pipeline.packaging.model_card import CardFacts, CardLabel, model_card
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.registry.package_download import open_package
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.plugin_api import DataTraits
from tests.conftest import Run
from tests.pipeline.conftest import (
    CLASSES,
    LABEL_CALIBRATION,
    LABEL_THRESHOLDS,
    Exported,
    image_spec,
    random_pixels,
    vit_choice,
)
from tests.pipeline.ruled_package import photograph

FOREIGN = ("torch", "torchvision", "patchline", "albumentations", "prefect")

ASK = """
import base64, importlib.util, json, sys
from pathlib import Path

package, image, *blocked = sys.argv[1:]


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


sys.meta_path.insert(0, Absent())
import mlflow.pyfunc
import numpy
import pandas
from PIL import Image

model = mlflow.pyfunc.load_model(package)
data = Path(image).read_bytes()
forms = [data, base64.b64encode(data).decode(), image, numpy.asarray(Image.open(image))]
answers = [model.predict(pandas.DataFrame({"image": [form]}))[0] for form in forms]
answers += model.predict(pandas.DataFrame({"image": forms}), params={"top_k": 2})
print(json.dumps({"answers": answers, "modules": sorted(sys.modules)}))
"""


@pytest.fixture
def package(finished_run: Run, tmp_path: Path) -> Path:
    """Return a copy of the registered package that knows no path of the run."""
    [registered] = finished_run.folder.glob("mlruns/*/models/*/artifacts")
    copied = Path(shutil.copytree(registered, tmp_path / "package"))
    description = copied / "MLmodel"
    description.write_text(description.read_text().replace(str(finished_run.folder), "/nowhere"))
    return copied


def _ask(python: Path, package: Path, image: str, blocked: tuple[str, ...]) -> dict[str, Any]:
    """Load the package with MLflow in a process of its own and ask it in every form."""
    passed_on = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [str(python), "-c", ASK, str(package), image, *blocked],
        cwd=package.parent,
        env={**passed_on, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _check_answers(answers: list[dict[str, Any]], package: Path, image: str) -> None:
    artifacts = package / "artifacts"
    ours = PackagedModel(artifacts / "model.onnx", artifacts / "model.json")
    [expected] = ours.answers([Path(image)])
    assert len(answers) == 8
    for answer in answers:
        assert answer["error"] is None
        assert answer["label"] == expected["label"]
        assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-6)
    assert [len(answer["top_k"]) for answer in answers] == [3] * 4 + [2] * 4


def test_the_package_holds_no_path_of_the_machine(package: Path, finished_run: Run) -> None:
    """Server and description name no folder of the run, of Python or of Patchline."""
    library = Path(patchline.__file__).resolve().parent.parent
    places = {str(finished_run.folder), sys.prefix, str(library), str(Path.home()) + "/"}
    files = (
        "model_server.py",
        "requirements.txt",
        "artifacts/model.json",
        "artifacts/model_card.md",
    )
    for name in files:
        text = (package / name).read_text()
        assert [place for place in places if place in text] == [], name


def test_the_package_holds_no_pickle(package: Path) -> None:
    """No file of the package can be read as a pickle."""
    files = [file for file in package.rglob("*") if file.is_file()]
    expected = {"model.onnx", "model.json", "model.safetensors", "model_card.md"}
    assert expected <= {file.name for file in files}
    for file in files:
        data = file.read_bytes()
        assert b"data.pkl" not in data, file.name
        with pytest.raises(ValueError, match=r"."):
            list(pickletools.genops(data))


def test_the_requirements_are_exact(package: Path) -> None:
    """Everything that the server imports is required in the version that it was checked with."""
    lines = (package / "requirements.txt").read_text().split()
    names = {line.partition("==")[0] for line in lines}
    assert names == {"mlflow", "numpy", "onnxruntime", "opencv-python-headless", "pillow"}
    assert all(line.partition("==")[2] for line in lines)


def test_the_package_answers_where_torch_and_patchline_are_absent(
    package: Path, finished_run: Run
) -> None:
    """MLflow loads it without pickle, torch or Patchline, and every form gets one answer."""
    image = str(finished_run.summary["example_image"])
    found = _ask(Path(sys.executable), package, image, blocked=FOREIGN)
    roots = {name.partition(".")[0] for name in found["modules"]}
    assert roots.isdisjoint(FOREIGN)
    _check_answers(found["answers"], package, image)


def test_the_package_says_everything_about_itself(package: Path, finished_run: Run) -> None:
    """Classes, temperature, fingerprint and run stand in it; the card tells them in words."""
    description = json.loads((package / "artifacts/model.json").read_text())
    assert description["classes"] == ["across", "down", "rising"]
    assert description["temperature"] == description["calibration"]["temperature"] > 0
    assert description["data_fingerprint"] == finished_run.summary["data_fingerprint"]
    assert description["run_id"] == finished_run.summary["run_id"]
    card = (package / "artifacts/model_card.md").read_text()
    said = "temperature", "Limitations", "images differ from the reported ones by at most"
    for words in (*description["classes"], description["data_fingerprint"], *said):
        assert words in card


@pytest.fixture(scope="module")
def sets(exported_sets: Exported) -> PackagedModel:
    return PackagedModel(exported_sets.onnx_file, exported_sets.description_file, threads=1)


def test_the_network_computes_a_calibrated_sigmoid_for_each_label(
    sets: PackagedModel, exported_sets: Exported
) -> None:
    """A probability is the sigmoid of the scaled and shifted logit, for batches of any size."""
    pixels = random_pixels(7)
    model = exported_sets.model
    with torch.inference_mode():
        logits = model.model(normalize(torch.from_numpy(pixels), model.image)).numpy()
    expected = LABEL_CALIBRATION.probabilities(logits)
    for count in (1, 2, 7):
        found = sets.probabilities(pixels[:count])
        np.testing.assert_allclose(found, expected[:count], atol=1e-5)
    assert not np.allclose(expected.sum(axis=1), 1, atol=0.1)


def test_labels_are_those_at_or_above_their_thresholds(sets: PackagedModel) -> None:
    """An answer names the chosen labels, the most probable first, and ranks all with thresholds."""
    thresholds = dict(zip(CLASSES, LABEL_THRESHOLDS.values, strict=True))
    sizes = set()
    for answer in sets.answers([photograph(seed) for seed in range(12)], top_k=len(CLASSES)):
        ranked = answer["top_k"]
        assert {each["label"]: each["threshold"] for each in ranked} == thresholds
        shares = [each["probability"] for each in ranked]
        assert shares == sorted(shares, reverse=True)
        chosen = [each for each in ranked if each["probability"] >= each["threshold"]]
        assert [each["label"] for each in answer["labels"]] == [each["label"] for each in chosen]
        first = chosen[0] if chosen else {"label": None, "probability": None}
        assert answer["label"] == first["label"]
        assert answer["probability"] == first["probability"]
        assert answer["set"] is None
        assert answer["coverage"] is None
        assert answer["set_unknown"].startswith("prediction sets are for models with one label")
        sizes.add(len(chosen))
    assert len(sizes) > 1


def test_an_image_may_have_no_label(exported_sets: Exported, tmp_path: Path) -> None:
    """Below all thresholds an answer has no label, which is not an error.

    Missing thresholds are not taken for 0.5.
    """
    package = _with_thresholds(exported_sets, tmp_path, [1.0] * len(CLASSES))
    [answer] = package.answers([photograph(0)], top_k=2)
    assert (answer["label"], answer["probability"], answer["labels"]) == (None, None, [])
    assert len(answer["top_k"]) == 2
    assert answer["error"] is None
    [broken] = package.answers([b"no image"])
    assert broken["labels"] == []
    assert broken["error"]
    for values in ([], [0.5]):
        with pytest.raises(ValueError, match="threshold for each label"):
            _with_thresholds(exported_sets, tmp_path, values)


def _with_thresholds(exported: Exported, folder: Path, values: list[float]) -> PackagedModel:
    description = json.loads(exported.description_file.read_text("utf-8"))
    description["thresholds"]["values"] = values
    shutil.copy(exported.onnx_file, folder / "model.onnx")
    (folder / "model.json").write_text(json.dumps(description), "utf-8")
    return PackagedModel(folder / "model.onnx", folder / "model.json", threads=1)


def test_the_card_lists_labels_with_thresholds_and_average_precision() -> None:
    """It says what was measured for each label, and that few images gave some the threshold 0.5."""
    labels = tuple(CardLabel(images=7, average_precision=None) for _ in CLASSES)
    facts = CardFacts(name="shapes", labels=labels)
    description = ModelDescription(
        model=vit_choice(), plugins=(), classes=CLASSES, image=image_spec(3),
        task="multi_label", label_calibration=LABEL_CALIBRATION, thresholds=LABEL_THRESHOLDS,
    )  # fmt: skip
    card = model_card(description, facts, parameters=10, check="equal")
    assert "which of 6 labels an image has" in card
    assert "| 1 | down | 0.300 | not known | | 7 |" in card
    assert "0.5 for dotted" in card
    assert "do not sum to 1" in card
    assert "dotted is not calibrated" in card


IMAGE = image_spec(3)


def test_an_encoder_answers_with_features(tmp_path: Path) -> None:
    """The input of the untrained head, equal to torch's; opened as a classifier it is refused."""
    model_settings = {"embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 32}
    traits = DataTraits(3, 16, 16, 0, mirror_symmetric=True)
    choice = resolve_settings(config_files.validate_config({"model": model_settings}), traits).model
    model: Any = build_model(choice, IMAGE, 0).eval()
    description = ModelDescription(model=choice, plugins=(), classes=(), image=IMAGE)
    folder = tmp_path / "artifacts"
    folder.mkdir()
    save_model(folder, model, description)
    whole = FeatureModel(model, IMAGE).eval()
    export_onnx(whole, folder / "model.onnx")
    images = np.random.default_rng(0).integers(0, 256, (12, 16, 16, 3), np.uint8)
    assert largest_difference(whole, folder / "model.onnx", images, np.arange(12)) < 1e-4
    other = FeatureModel(build_model(choice, IMAGE, 0), IMAGE).eval()
    with pytest.raises(PackagingError, match=r"for test image number \d+ of 12, but .* in torch"):
        largest_difference(other, folder / "model.onnx", images, np.arange(12))

    package = PackagedModel(folder / "model.onnx", folder / "model.json")
    answers = package.answers([images[0], b"no image"])
    with torch.no_grad():
        tokens = model.encode(normalize(torch.from_numpy(images[:1]), IMAGE))
    assert np.allclose(answers[0]["features"], tokens[0, 0], atol=1e-4)
    assert answers[0]["error"] is None
    assert set(answers[1]) == {"features", "error"}
    assert answers[1]["features"] is None
    assert answers[1]["error"]

    card = model_card(description, CardFacts(name="moths-encoder"), parameters=1, check="equal")
    assert "--model.init moths-encoder/VERSION" in card
    assert "classif" in card
    assert "## Classes" not in card
    with pytest.raises(ModelReferenceError, match="moths-encoder' version 2 is an encoder without"):
        open_package(ModelReference("moths-encoder", "2", "models:/m-1"), tmp_path)
