"""From an inbox without labels to a retrained model, each step a command that people type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_photo, patchline
from tests.pipeline.labelling.labelled import labelling, rows_of
from tests.pipeline.serving.served import Serving, serving, wait_for_version

CLASSES = ("across", "down", "rising")
ADA = "ada-00000001"
DARKER = 0.12
TRAINING = (
    *("--name", "stripes", "--preset", "none", "--training.epochs", "80"),
    *("--data.validation-fraction", "0.15", "--data.test-fraction", "0.35"),
    *("--promotion.min-images", "15", "--json"),
)


def write(folder: Path, number: int, brightness: float = 1.0) -> Path:
    """Write an image whose name does not tell its class, and return it."""
    folder.mkdir(exist_ok=True)
    pixels = draw_photo(number % len(CLASSES), number) * brightness
    file = folder / f"{number:04d}.png"
    Image.fromarray(pixels.astype(np.uint8)).save(file)
    return file


def label(inbox: Path, images: int, *arguments: str) -> None:
    """Answer as a person does who knows the classes."""
    with labelling(inbox, *arguments) as page:
        for _ in range(images):
            [image] = page.next(ADA)
            right = CLASSES[int(Path(image["name"]).stem) % len(CLASSES)]
            assert page.answer(ADA, [image["id"]], right).status == 200


def send(server: Serving, images: list[Path]) -> None:
    """Have images predicted."""
    for image in images:
        assert server.predict(image.read_bytes()).status == 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_inbox_becomes_a_model_that_learns_what_has_drifted(tmp_path: Path) -> None:
    """Label, train, serve, notice darker images, label some, train again; a paired test decides.

    So few test images seldom prove that the new version is better, and the champion then stays.
    """
    inbox = tmp_path / "inbox"
    for number in range(300):
        write(inbox, number)
    label(inbox, 40, "--classes", ",".join(CLASSES))
    first = patchline("run", "inbox/labels.csv", *TRAINING, cwd=tmp_path)
    assert first.code == 0, first.err
    assert "champion" in first.json["aliases"]
    with serving(tmp_path, "--record", "traffic", model="stripes@champion") as server:
        send(server, [write(inbox, number, DARKER) for number in range(300, 400)])
        found = patchline("monitor", "stripes@champion", "traffic", "--json", cwd=tmp_path)
        assert found.code == 3, found.err
        assert found.json["drift"]
        label(inbox, 20, "--model", "stripes@champion")
        assert len(rows_of(inbox / "labels.csv")) == 60
        start = ("--model.init", "stripes@champion")
        second = patchline("run", "inbox/labels.csv", *TRAINING, *start, cwd=tmp_path)
        assert second.code == 0, second.err
        decided = patchline("promote", "stripes", "--json", cwd=tmp_path)
        gates = {gate["name"]: gate for gate in decided.json["gates"]}
        assert "not used for training" in gates["better_than_champion"]["sentence"]
        assert decided.code == (0 if gates["better_than_champion"]["passed"] else 3)
        wait_for_version(server, decided.json["version"] if decided.code == 0 else "1")
