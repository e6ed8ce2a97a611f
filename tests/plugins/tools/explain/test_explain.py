"""`patchline explain` and `patchline.explain`: from a registered version to a page."""

from __future__ import annotations

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
from tests.conftest import draw_photo
from tests.flows.commands.photo_stores import entered_store
from tests.made.servers import Command
from tests.pipeline.registry.made_versions import CLASSES, make_version

IMAGE = "photos/up/bird.png"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with a photo and a registered ViT with random weights."""
    folder = tmp_path_factory.mktemp("explained")
    with entered_store(folder, empty_store):
        package = package_folder(make_version("stripes", folder)) / "artifacts"
        made = ModelDescription.model_validate_json((package / "model.json").read_bytes())
        choice = ModelChoice.model_validate({"name": "vit", "depth": 2})
        torch.manual_seed(0)
        model = build_model(choice, made.image, len(CLASSES))
        save_model(package, model, made.model_copy(update={"model": choice}))
        for name in ("up/bird.png", "elsewhere/fish.png"):
            (folder / "photos" / name).parent.mkdir(parents=True)
            Image.fromarray(draw_photo(2, 0)).save(folder / "photos" / name)
    return folder


def test_the_answer_and_the_page_are_told(command: Command) -> None:
    """The JSON object has the promised keys; the folder's name is the true label."""
    answer = command.json("explain stripes@champion", IMAGE)
    assert (answer["model"], answer["label"] in CLASSES) == ("stripes/1", True)
    assert (answer["image"], answer["images"][0]["true_label"]) == (IMAGE, "up")
    assert 1 / 3 < answer["probability"] <= 1
    assert answer["page"] == "explain-bird.html"
    assert "How stripes/1 sees bird.png" in Path("explain-bird.html").read_text(encoding="utf-8")


def test_two_images_are_compared_on_one_page(command: Command, tmp_path: Path) -> None:
    """Labels belong to the images in their order; a folder that is no class gives none."""
    images = (IMAGE, "photos/elsewhere/fish.png", "--label", "down")
    page = tmp_path / "both.html"
    out = command.out("explain stripes", *images, "--no-occlusion", "--out", page)
    assert "true label: down" in out.splitlines()[0]
    assert "true label" not in out.splitlines()[1]
    assert "Covering the parts one by one was left out" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stripes"], "takes one image, or two to compare"),
        (["stripes", IMAGE, "--label", "left"], "left is not a class of the model"),
        (["stripes", IMAGE, "--label", "up", "--label", "up"], "--label is given 2 times"),
        (["stripes", "nowhere.png"], "nowhere.png: cannot be read"),
        (["stripes", IMAGE, "--out", "photos"], "photos is a folder"),
    ],
)
def test_wrong_input_is_answered_in_a_sentence(
    command: Command, arguments: list[str], said: str
) -> None:
    """The exit code is 2, and the sentence names the value."""
    assert said in " ".join(command.refusal("explain", *arguments).split())


@pytest.mark.usefixtures("command")
def test_python_returns_the_answer_and_shows_the_page(tmp_path: Path) -> None:
    """A notebook shows the page in a frame whose script cannot reach the notebook."""
    found = patchline.explain("stripes", IMAGE, out=tmp_path / "page.html", occlusion=False)
    assert (found.label in CLASSES, found.true_label) == (True, "up")
    shown = found._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" srcdoc="')
    assert "How stripes/1 sees bird.png" in shown
