"""`patchline explain` and `patchline.explain`: from a registered version to a page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import patchline
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.pipeline.registry.package_download import package_folder
from patchline.plugin_api import ImageSpec
from tests.conftest import draw_photo
from tests.flows.conftest import Command
from tests.pipeline.registry.made_versions import CLASSES, SIDE, make_version

IMAGE = "photos/up/bird.png"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with a photo and a registered ViT with random weights."""
    folder = tmp_path_factory.mktemp("explained")
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        package = package_folder(make_version("stripes", folder)) / "artifacts"
        image = ImageSpec(
            channels=3, height=SIDE, width=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
        )
        choice = ModelChoice.model_validate({"name": "vit", "depth": 2})
        torch.manual_seed(0)
        model = build_model(choice, image, len(CLASSES))
        description = ModelDescription(model=choice, plugins=(), classes=CLASSES, image=image)
        save_model(package, model, description)
        for name in ("up/bird.png", "elsewhere/fish.png"):
            (folder / "photos" / name).parent.mkdir(parents=True)
            Image.fromarray(draw_photo(2, 0)).save(folder / "photos" / name)
    return folder


@pytest.fixture
def command(store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command in that folder."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    return run_here


def test_the_answer_and_the_page_are_told(command: Command) -> None:
    """The JSON object has the promised keys; the folder's name is the true label."""
    code, out, err = command("explain", "stripes@champion", IMAGE, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer.keys() >= {"model", "image", "label", "probability", "page"}
    assert answer["model"] == "stripes/1"
    assert answer["label"] in CLASSES
    assert answer["images"][0]["true_label"] == "up"
    page = Path(answer["page"]).read_text(encoding="utf-8")
    assert Path(answer["page"]) == Path("explain-bird.html")
    assert "How stripes/1 sees bird.png" in page


def test_two_images_are_compared_on_one_page(command: Command, tmp_path: Path) -> None:
    """Labels belong to the images in their order; a folder that is no class gives none."""
    out_file = tmp_path / "both.html"
    images = (IMAGE, "photos/elsewhere/fish.png")
    code, out, err = command(
        "explain", "stripes", *images, "--label", "down", "--no-occlusion", "--out", str(out_file)
    )
    assert code == 0, err
    assert "true label: down" in out.splitlines()[0]
    assert "true label" not in out.splitlines()[1]
    assert "Covering the parts one by one was left out" in out_file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stripes"], "takes one image, or two to compare"),
        (["stripes", IMAGE, IMAGE, IMAGE], "and not 3"),
        (["stripes", IMAGE, "--label", "left"], "left is not a class of the model"),
        (["stripes", IMAGE, "--label", "up", "--label", "up"], "--label is given 2 times"),
        (["stripes", "nowhere.png"], "nowhere.png: cannot be read"),
        (["stripes", IMAGE, "--out", "photos"], "photos is a folder"),
        (["stripe", IMAGE], "Did you mean 'stripes'?"),
        (["stripes@shampion", IMAGE], "Did you mean 'champion'"),
    ],
)
def test_wrong_input_is_answered_in_a_sentence(
    command: Command, arguments: list[str], said: str
) -> None:
    """The exit code is 2, and the sentence names the value."""
    code, _, err = command("explain", *arguments)
    assert code == 2
    assert said in " ".join(err.split())


def test_python_returns_the_answer_and_shows_the_page(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A notebook shows the page in a frame whose script cannot reach the notebook."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    found = patchline.explain("stripes", IMAGE, out=tmp_path / "page.html", occlusion=False)
    assert found.label in CLASSES
    assert found.probability is not None
    assert 1 / 3 < found.probability <= 1
    assert found.true_label == "up"
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert "How stripes/1 sees bird.png" in shown
