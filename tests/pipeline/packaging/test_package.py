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

import pytest

import patchline
from patchline.pipeline.packaging.packaged_model import PackagedModel
from tests.conftest import Run

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
