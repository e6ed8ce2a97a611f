"""Fill in the chapter of the documentation that follows one digit through a small trained model.

    python -m benchmarks.visual_guide_chapter PACKAGE IMAGE

The prose of `docs/visual_guide.md` is written by hand. What stands between its markers, and the
pictures, come from the model: PACKAGE is the package folder of a run on the digits, IMAGE a digit.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Canvas
from PIL import Image

from patchline.pipeline.evaluation.visual_guide.explaining import read_image, subject_of
from patchline.pipeline.evaluation.visual_guide.pictures import Picture
from patchline.pipeline.evaluation.visual_guide.steps import steps_of
from patchline.pipeline.evaluation.visual_guide.story import Step, Subject
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.workspace_folder import make_folder

PAGE, PICTURES = Path("docs/visual_guide.md"), Path("images/visual_guide")
"""The chapter, and the folder of its pictures beside it."""
OVERVIEW = "overview.png"
_MARKED = re.compile(r"(<!-- step: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_SIDE = 224
_ROW, _LEAST, _MOST = 18, 24, 260
_HEAT_SHARE = 0.65
_WHITE = (255, 255, 255)


def main() -> None:
    """Fill in the chapter in this folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path)
    parser.add_argument("image", type=Path)
    arguments = parser.parse_args()
    model, description = load_model(arguments.package)
    image = read_image(arguments.image, description, None)
    write_chapter(subject_of(model, description, image), PAGE)


def write_chapter(subject: Subject, page: Path) -> None:
    """Replace what stands between the markers of a page, and write the pictures beside it.

    Args:
        subject: an image and a model.
        page: has a marker for each step; it is written last.

    Raises:
        ValueError: if a step has no marker, or a marker no step.
    """
    steps = {step.key: step for step in steps_of(subject)}
    text = page.read_text(encoding="utf-8")
    marked = [key for _, key, _ in _MARKED.findall(text)]
    if marked != list(steps):
        raise ValueError(f"{page} has markers for {marked}, but the steps are {list(steps)}")
    folder = page.parent / PICTURES
    make_folder(folder)
    write_overview(subject, steps, folder / OVERVIEW)

    def filled(match: re.Match[str]) -> str:
        step = steps[match[2]]
        for number, figure in enumerate(step.figures, 1):
            if isinstance(figure, Picture):
                draw(figure, subject).save(folder / f"{step.key}-{number}.png", optimize=True)
        values = {"step": step, "folder": PICTURES.as_posix()}
        lines = render_markdown("visual_guide_chapter.md.j2", __package__, **values)
        return f"{match[1]}\n{lines.strip()}\n\n{match[3]}"

    write_text(page, _MARKED.sub(filled, text))


def draw(figure: Picture, subject: Subject) -> Image.Image:
    """Return a picture as the page shows it, with enlarged values."""
    image = Image.open(io.BytesIO(base64.b64decode(figure.uri.partition(",")[2])))
    if figure.display in ("overlay", "signed"):
        return _on_photo(image, subject, signed=figure.display == "signed")
    shown = image.convert("RGBA")
    if figure.display in ("strip", "matrix"):
        rows = figure.height * (_ROW if figure.height <= 12 else 5)  # noqa: PLR2004 - as the page
        size = figure.shown_width, min(max(rows, _LEAST), _MOST)
    else:
        factor = max(1, round(max(_SIDE, min(figure.shown_width, 2 * _SIDE)) / shown.width))
        size = shown.width * factor, shown.height * factor
    enlarged = shown.resize(size, Image.Resampling.NEAREST)
    flat = Image.new("RGB", enlarged.size, _WHITE)
    flat.paste(enlarged, mask=enlarged)
    return flat


def _on_photo(image: Image.Image, subject: Subject, *, signed: bool) -> Image.Image:
    pixels = subject.traced.pixels
    photo = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    photo = photo.resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
    shown = image.resize((_SIDE, _SIDE), Image.Resampling.NEAREST)
    if signed:
        light = Image.blend(photo, Image.new("RGB", photo.size, _WHITE), 0.5)
        light.paste(shown, mask=shown)
        return light
    return Image.blend(photo, shown.convert("RGB"), _HEAT_SHARE)


def write_overview(subject: Subject, steps: dict[str, Step], file: Path) -> None:
    """Draw five of the pictures in a row."""
    shown = (
        ("image", 0, "the image"),
        ("patches", 0, "its patches"),
        ("softmax", 0, "where a head looks"),
        ("reach", 1, "all blocks together"),
        ("attribution", 1, "what the answer needs"),
    )
    canvas = Canvas(figsize=(10, 2.5), dpi=100, layout="constrained")
    for axes, (key, number, words) in zip(canvas.subplots(1, len(shown)), shown, strict=True):
        figure = steps[key].figures[number]
        if isinstance(figure, Picture):
            axes.imshow(np.asarray(draw(figure, subject)), interpolation="nearest")
        axes.set_title(words, fontsize=11)
        axes.set_axis_off()
    canvas.savefig(file)


if __name__ == "__main__":
    main()
