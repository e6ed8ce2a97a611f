"""Whole runs of tiny models in the test's own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from tests.conftest import draw_photo, patchline_here

TINY = (
    "--preset none --training.epochs 2 --data.image-size 16 --model.embed-dim 16 --model.depth 1 "
    "--model.num-heads 2 --evaluation.corruptions 0 --evaluation.explanations=false"
)
SHAPES = f"--data.source shapes --data.options.images 200 {TINY}"


def ran(
    folder: Path, arguments: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """Run to the end, and return the JSON and what was said."""
    done = patchline_here("run", *arguments.split(), "--json", cwd=folder, env=env)
    assert done.code == 0, done.err
    return done.json, done.err


def refused(folder: Path, arguments: str) -> str:
    """Return the sentence with which a run is refused."""
    done = patchline_here("run", *arguments.split(), cwd=folder)
    assert done.code == 2, done.err
    return done.err


def write_unlabelled(folder: Path, images: int = 30) -> None:
    """Write a folder of images without labels."""
    folder.mkdir()
    for number in range(images):
        image = Image.fromarray(draw_photo(number % 3, 60 + number))
        image.save(folder / f"{number}.png")
