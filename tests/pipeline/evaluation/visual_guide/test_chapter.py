"""The chapter of the documentation is made of the model's own pictures and numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.visual_guide_chapter import PICTURES, write_chapter
from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.visual_guide.explaining import ImageToExplain, subject_of
from patchline.pipeline.evaluation.visual_guide.steps import steps_of
from patchline.plugins.models.vit import VitConfig
from tests.pipeline.evaluation.visual_guide.made_guides import make_model
from tests.structure.pages import blocks

CHAPTER = Path(__file__).resolve().parents[4] / "docs" / "visual_guide.md"


def test_its_command_trains_the_model_that_it_explains() -> None:
    """The ViT of the paper: a class token, learned positions, a head of one linear layer."""
    [command] = [block for block in blocks(CHAPTER, "text") if block.startswith("patchline run")]
    assert "--preset none" in command
    names = {
        word.removeprefix("--model.") for word in command.split() if word.startswith("--model")
    }
    assert names.isdisjoint({"name", "pooling", "positions", "head"})
    plain = VitConfig()
    assert (plain.pooling, plain.positions, plain.head) == ("class_token", "learned", "linear")
    assert RunConfig().model.name == "vit"


def test_every_step_of_the_chapter_is_filled_in(tmp_path: Path) -> None:
    """All pictures that the page shows are there, and the shapes are those of this model."""
    embedding = {"name": "linear", "patch_size": 4}
    model, description = make_model({"name": "vit", "depth": 2, "patch_embedding": embedding})
    pixels = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    image = ImageToExplain("image 0", pixels, pixels, "rose")
    page = tmp_path / "visual_guide.md"
    shutil.copy(CHAPTER, page)
    subject = subject_of(model, description, image)
    write_chapter(subject, page)
    text = page.read_text(encoding="utf-8")
    assert "image 0" in text
    titles = re.findall(r"^## \d+\. (.+)$", text, re.MULTILINE)
    for title, step in zip(titles, steps_of(subject), strict=True):
        assert step.title.startswith(title)
    times = text.replace(" \N{MULTIPLICATION SIGN} ", " x ")
    assert "Shapes: patches **16 x 4 x 4 x 3** (n x p x p x C)." in times
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) > 25
    for name in shown:
        assert min(Image.open(tmp_path / name).size) >= 16
    assert len(list((tmp_path / PICTURES).iterdir())) == len(shown)
