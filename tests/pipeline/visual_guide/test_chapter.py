"""The chapter of the documentation is made of the model's own pictures and numbers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from patchline.pipeline.visual_guide.chapter import PICTURES, write_chapter
from patchline.pipeline.visual_guide.explaining import ImageToExplain, subject_of
from tests.pipeline.visual_guide.made_guides import make_model

CHAPTER = Path(__file__).resolve().parents[3] / "docs" / "visual_guide.md"


def test_every_step_of_the_chapter_is_filled_in(tmp_path: Path) -> None:
    """All pictures that the page shows are there, and the shapes are those of this model."""
    embedding = {"name": "linear", "patch_size": 4}
    model, description = make_model({"name": "vit", "depth": 2, "patch_embedding": embedding})
    pixels = np.random.default_rng(3).integers(0, 256, (16, 16, 3), np.uint8)
    image = ImageToExplain("image 0", pixels, pixels, "rose")
    page = tmp_path / "visual_guide.md"
    shutil.copy(CHAPTER, page)
    write_chapter(subject_of(model, description, image), page)
    text = page.read_text(encoding="utf-8")
    assert "image 0" in text
    times = text.replace(" \N{MULTIPLICATION SIGN} ", " x ")
    assert "Shapes: patches **16 x 4 x 4 x 3** (n x p x p x C)." in times
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) > 25
    for name in shown:
        assert min(Image.open(tmp_path / name).size) >= 16
    assert len(list((tmp_path / PICTURES).iterdir())) == len(shown)
