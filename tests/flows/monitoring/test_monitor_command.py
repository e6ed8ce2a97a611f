"""The command `patchline monitor` on small packages, in this process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.labels import label_sets
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    save_reference_images,
)
from patchline.pipeline.packaging.package_digests import write_digests
from patchline.pipeline.packaging.package_files import DIGESTED
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.serving.traffic_recorder import TrafficRecorder
from tests.conftest import Finished, patchline_here
from tests.pipeline.serving.served import NAME, Registry, made_registry

WHY = "its head takes no features"


def photo(seed: int, brightness: int = 0) -> np.ndarray:
    """Return a small image whose colour depends on the seed."""
    generator = np.random.default_rng(seed)
    colour = generator.integers(20, 80, 3) + brightness
    noise = generator.integers(0, 8, (24, 24, 3))
    return (colour + noise).astype(np.uint8)


def write_photos(folder: Path, seeds: range, brightness: int = 0) -> Path:
    """Write images, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        Image.fromarray(photo(seed, brightness)).save(folder / f"{seed}.png")
    return folder


@pytest.fixture
def registry(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Return a registry whose champion has a reference of 200 images."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    made = made_registry(tmp_path, empty_store)
    made.add(1)
    with_reference(made.folder / "packages" / "1" / "artifacts")
    return made


def with_reference(artifacts: Path) -> None:
    """Add a reference to a package, without features: its network has no such output."""
    package = PackagedModel(artifacts / "model.onnx", artifacts / "model.json")
    pixels = np.stack([np.asarray(package.pixels(photo(seed))) for seed in range(1000, 1200)])
    probabilities = package.probabilities(pixels)
    truth = probabilities >= 0.5 if package.is_multi_label else probabilities.argmax(axis=1)
    reference = ReferenceImages(
        probabilities_MK=probabilities,
        features_MD=np.zeros((200, 0)),
        labels=truth.astype(np.uint8) if package.is_multi_label else truth,
        is_test_M=np.arange(200) % 2 == 0,
        sha256=tuple(f"{seed:064x}" for seed in range(200)),
        paths=tuple(f"{seed}.png" for seed in range(200)),
        why_no_features=WHY,
    )
    save_reference_images(reference, artifacts / REFERENCE_IMAGES_FILE)
    write_digests(artifacts, DIGESTED)


def monitor(folder: Path, *arguments: str) -> Finished:
    """Run the command."""
    return patchline_here("monitor", NAME, *arguments, "--json", cwd=folder)


def test_a_stream_is_checked_and_a_drift_has_exit_code_3(registry: Registry) -> None:
    """New images alone are tested; without new ones, the last result comes again, and costs none.

    A test that is not possible is said, and the other one has the whole level then.
    """
    folder = registry.folder
    write_photos(folder / "inbox", range(60))
    (folder / "inbox" / "empty").mkdir()
    (folder / "inbox" / "text.png").write_text("no image")
    whole = cv2.imencode(".jpg", np.zeros((64, 64, 3), np.uint8))[1].tobytes()
    (folder / "inbox" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    done = monitor(folder, "inbox", "--checks", "10")
    assert done.code == 0, done.err
    first = done.json
    assert first["notes"] == ["2 files left out: no image, or damaged"]
    assert (first["drift"], first["images"], first["check"], first["new"]) == (False, 60, 1, True)
    assert first["tests"]["outputs"]["level"] == pytest.approx(0.0025)
    assert first["unknown"] == {"features": WHY}
    assert first["accuracy"] is None
    assert "No drift found" in Path(first["page"]).read_text("utf-8")
    write_photos(folder / "inbox", range(100, 150), brightness=120)
    done = monitor(folder, "inbox")
    assert done.code == 3
    second = done.json
    assert (second["drift"], second["images"], second["check"]) == (True, 50, 2)
    assert second["spent"] == pytest.approx(0.01)
    page = Path(second["page"]).read_text("utf-8")
    assert "data:image/png" in page
    assert "not on this machine" in page  # the reference's images
    done = monitor(folder, "inbox")
    assert (done.code, done.json["new"], done.json["spent"]) == (3, False, second["spent"])


def test_labels_from_folders_and_from_a_table_give_the_accuracy(registry: Registry) -> None:
    """`labels.csv` overrules the folder; a name that is no class is no label."""
    folder, inbox = registry.folder, registry.folder / "inbox"
    package = registry.package(1)
    classes = package.classes
    write_photos(inbox / classes[0], range(30))
    write_photos(inbox / "unsorted", range(100, 110))
    pixels = np.stack([np.asarray(package.pixels(photo(seed))) for seed in range(30)])
    right = package.probabilities(pixels).argmax(axis=1) == 0
    done = monitor(folder, "inbox")
    assert done.json["accuracy"]["now"]["n"] == 30
    assert done.json["accuracy"]["now"]["value"] == pytest.approx(right.mean())
    assert done.json["accuracy"]["before"]["value"] == 1
    write_photos(inbox / classes[0], range(200, 230))
    others = [f"{classes[0]}/{seed}.png,{classes[1]}" for seed in range(200, 230)]
    (inbox / "labels.csv").write_text("\n".join(["path,label", *others]), encoding="utf-8")
    pixels = np.stack([np.asarray(package.pixels(photo(seed))) for seed in range(200, 230)])
    right = package.probabilities(pixels).argmax(axis=1) == 1
    value = monitor(folder, "inbox").json["accuracy"]["now"]["value"]
    assert value == pytest.approx(right.mean())


def test_a_model_of_several_labels_is_monitored(registry: Registry) -> None:
    """Each label's share is compared; a prediction is right if all labels are."""
    folder = registry.folder
    classes = registry.package(1).classes
    registry.add(2, thresholds=(0.5,) * len(classes))
    with_reference(folder / "packages" / "2" / "artifacts")
    inbox = write_photos(folder / "inbox", range(40))
    answers = [f'{seed}.png,"{_quoted([classes[0]])}"' for seed in range(40)]
    (inbox / "labels.csv").write_text("\n".join(["path,label", *answers]), encoding="utf-8")
    done = monitor(folder, "inbox")
    assert done.code == 0, done.err
    assert {each["label"] for each in done.json["labels"]} == set(classes)
    assert done.json["accuracy"]["now"]["n"] == 40
    write_photos(inbox, range(100, 140), brightness=120)
    assert monitor(folder, "inbox").code == 3


def _quoted(labels: list[str]) -> str:
    return label_sets.encoded(labels).replace('"', '""')


def test_recorded_traffic_is_a_stream(registry: Registry) -> None:
    """What the server has computed counts; the answers of another version are left out."""
    folder, package = registry.folder, registry.package(1)
    writer = TrafficRecorder(folder / "traffic", with_images=True, most_bytes=1 << 30)
    for seed in range(40):
        pixels = photo(seed, brightness=120)
        row = package.probabilities(np.asarray(package.pixels(pixels))[None])[0]
        writer.record(NAME, "1", [pixels], [(row, None)])
        writer.record(NAME, "7", [pixels], [(row, None)])
    writer.close()
    done = monitor(folder, "traffic")
    assert (done.code, done.json["images"]) == (3, 40), done.err
    assert done.json["notes"] == [f"40 images of {NAME}/7 left out: another version answered"]
    assert "data:image/png" in Path(done.json["page"]).read_text("utf-8")


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        ("few", "Only 5 images of"),
        ("empty", "No image of"),
        ("no reference", "Whether images have drifted is not known"),
    ],
)
def test_what_cannot_be_told_is_an_error_and_spends_nothing(
    registry: Registry, prepare: str, sentence: str
) -> None:
    """Unknown is never reported as no drift."""
    folder = registry.folder
    write_photos(folder / "inbox", range(0 if prepare == "empty" else 5))
    if prepare == "empty":
        (folder / "inbox" / "notes.png").write_bytes(b"no image")
    if prepare == "no reference":
        registry.add(3)
    done = monitor(folder, "inbox")
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert not list((folder / ".patchline" / "monitoring").rglob("*.json"))


def test_a_copied_image_counts_once(registry: Registry) -> None:
    """Copies of one image would count as evidence of their own."""
    inbox = write_photos(registry.folder / "inbox", range(25))
    for copy in range(30):
        shutil.copy(inbox / "0.png", inbox / f"copy-{copy}.png")
    done = monitor(registry.folder, "inbox")
    assert done.json["images"] == 25
    assert json.dumps(done.json["notes"]).count("30 exact copies left out") == 1
