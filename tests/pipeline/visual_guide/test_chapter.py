"""The chapter of the documentation is made of the model's own pictures and numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.visual_guide.chapter import OVERVIEW, PICTURES, write_chapter
from patchline.pipeline.visual_guide.explaining import ImageToExplain, subject_of
from patchline.pipeline.visual_guide.story import Subject
from tests.pipeline.visual_guide.made_guides import make_model

CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "visual_guide.md"
_MODEL = {
    "name": "vit", "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_dim": 32,
    "patch_embedding": {"name": "linear", "patch_size": 4},
}  # fmt: skip


@pytest.fixture(scope="module")
def subject() -> Subject:
    """Return a random image in a small random model with a class token."""
    model, description = make_model(_MODEL)
    pixels = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    return subject_of(model, description, ImageToExplain("image 0", pixels, pixels, "rose"))


def test_every_step_of_the_chapter_is_filled_in(subject: Subject, tmp_path: Path) -> None:
    """All pictures that the page shows are there, and the shapes are those of this model."""
    page = tmp_path / "visual_guide.md"
    shutil.copy(CHAPTER, page)
    write_chapter(subject, page)
    text = page.read_text(encoding="utf-8")
    assert "image 0" in text
    times = text.replace(" \N{MULTIPLICATION SIGN} ", " x ")
    assert "Shapes: patches **16 x 4 x 4 x 3** (n x p x p x C)." in times
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) > 25
    for name in shown:
        assert min(Image.open(tmp_path / name).size) >= 16
    assert len(list((tmp_path / PICTURES).iterdir())) == len(shown)
    before = text
    write_chapter(subject, page)
    again = page.read_text(encoding="utf-8")
    assert re.sub(r"\(\d\.\d s\)", "", again) == re.sub(r"\(\d\.\d s\)", "", before)


def test_its_own_pictures_are_there() -> None:
    """The chapter in the repository is filled in, with its overview."""
    text = CHAPTER.read_text(encoding="utf-8")
    assert "-->\n<!-- end -->" not in text
    assert (CHAPTER.parent / PICTURES / OVERVIEW).is_file()


def test_a_step_without_a_marker_is_noticed(subject: Subject, tmp_path: Path) -> None:
    """A chapter that lacks a step of the guide is an error, and stays as it is."""
    page = tmp_path / "page.md"
    page.write_text("<!-- step: example -->\n<!-- end -->\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has markers for"):
        write_chapter(subject, page)
    assert page.read_text(encoding="utf-8") == "<!-- step: example -->\n<!-- end -->\n"
