"""The commands of docs/how_to/close_the_loop.md, from images without labels to a new champion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_photo, patchline_here
from tests.patience import until
from tests.pipeline.registry.serving.served import serving, wait_for_version
from tests.plugins.tools.label.labelled import Page, labelling, page_here, rows_of
from tests.structure.pages import ROOT, blocks

CLASSES = ("across", "down", "rising")
PAGE = ROOT / "docs/how_to/close_the_loop.md"
STEPS = [line.split()[1:] for block in blocks(PAGE, "sh") for line in block.splitlines()]
ADA = "ada-00000001"
DARKER = 0.3
SHORT = (
    *("--preset", "none", "--training.epochs", "80", "--evaluation.corruptions", "0"),
    *("--evaluation.explanations=false", "--json"),
)
LABELLED, MORE = 40, 180
"""The paired test needs six images that only the new version gets right, and none that only the
champion does (p = 2 / 2^6). A third of the new labels is drawn at random and in the test set, 28%
of those are dark, and the champion is wrong about half of them."""


def write(folder: Path, number: int, brightness: float = 1.0) -> Path:
    """Write an image whose name does not tell its class, and return it."""
    folder.mkdir(exist_ok=True)
    pixels = draw_photo(number % len(CLASSES), number) * brightness
    file = folder / f"{number:04d}.png"
    Image.fromarray(pixels.astype(np.uint8)).save(file)
    return file


def label(page: Page, images: int) -> None:
    """Answer as a person does who knows the classes."""
    for _ in range(images):
        [image] = page.next(ADA)
        right = CLASSES[int(Path(image["name"]).stem) % len(CLASSES)]
        assert page.answer(ADA, [image["id"]], right).status == 200


@pytest.mark.slow
@pytest.mark.usefixtures("shared_prefect")
def test_an_inbox_becomes_a_model_that_learns_what_has_drifted(tmp_path: Path) -> None:
    """Label, train, serve, notice darker images, label those, train again; a test promotes."""
    first_labels, first_run, serve, monitor, more_labels, second_run, promote = STEPS[:7]
    [settings] = blocks(PAGE, "yaml")
    (tmp_path / "run.yaml").write_text(settings, encoding="utf-8")
    inbox = tmp_path / "inbox"
    for number in range(300):
        write(inbox, number)
    assert first_labels == ["label", "inbox", "--classes", ",".join(CLASSES)]
    with page_here(inbox, *CLASSES) as page:
        label(page, LABELLED)
    first = patchline_here(*first_run, *SHORT, cwd=tmp_path)
    assert first.code == 0, first.err
    assert "champion" in first.json["aliases"]
    assert serve[0] == "serve"
    with serving(tmp_path, *serve[2:], model=serve[1]) as server:
        for number in range(300, 400):
            image = write(inbox, number, DARKER)
            assert server.predict(image.read_bytes()).status == 200
        found = patchline_here(*monitor, "--json", cwd=tmp_path)
        assert found.code == 3, found.err
        assert found.json["drift"]
        assert more_labels[:2] == ["label", "inbox"]
        with labelling(inbox, *more_labels[2:]) as page:
            until(lambda: not page.progress()["order"].startswith("random"), "no image was ranked")
            label(page, MORE)
        rows = rows_of(inbox / "labels.csv")
        assert len(rows) == LABELLED + MORE
        chosen = [row for row in rows if row["source"] != "random"]
        dark = sum(int(Path(row["path"]).stem) >= 300 for row in chosen)
        assert dark > 0.4 * len(chosen), "of all images without a label, 28% are dark"
        second = patchline_here(*second_run, *SHORT, cwd=tmp_path)
        assert second.code == 0, second.err
        decided = patchline_here(*promote, "--json", cwd=tmp_path)
        assert decided.code == 0, decided.out
        gates = {gate["name"]: gate for gate in decided.json["gates"]}
        assert gates["better_than_champion"]["passed"]
        wait_for_version(server, decided.json["version"])
        right = [
            server.predict((inbox / f"{number:04d}.png").read_bytes()).json["label"]
            == CLASSES[number % len(CLASSES)]
            for number in range(300, 400)
        ]
        assert np.mean(right) > 0.7, "the champion before had about 40%"
