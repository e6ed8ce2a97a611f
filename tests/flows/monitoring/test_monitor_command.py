"""The command `patchline monitor` on small packages, in this process."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.labels import label_sets
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    load_reference_images,
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
        (folder / f"{seed}.png").write_bytes(png(photo(seed, brightness)))
    return folder


def png(pixels: np.ndarray) -> bytes:
    """Return an image as a file."""
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


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
        sha256=tuple(hashlib.sha256(png(photo(seed))).hexdigest() for seed in range(1000, 1200)),
        paths=tuple(f"{seed}.png" for seed in range(1000, 1200)),
        why_no_features=WHY,
        units_M=np.arange(200),
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


def test_labels_give_the_accuracy_whenever_they_come(registry: Registry) -> None:
    """`labels.csv` overrules the folder; what was checked before its label came counts, too."""
    folder, inbox = registry.folder, registry.folder / "inbox"
    classes = registry.package(1).classes

    def right(seeds: range, label: int) -> list[bool]:
        pixels = np.stack([np.asarray(registry.package(1).pixels(photo(seed))) for seed in seeds])
        return list(registry.package(1).probabilities(pixels).argmax(axis=1) == label)

    write_photos(inbox / classes[0], range(30))
    write_photos(inbox / "unsorted", range(100, 110))
    first = monitor(folder, "inbox").json["accuracy"]
    assert first["now"]["n"] == 30
    assert first["now"]["value"] == pytest.approx(np.mean(right(range(30), 0)))
    assert first["before"]["value"] == 1
    late = [f"unsorted/{seed}.png,{classes[1]}" for seed in range(100, 110)]
    (inbox / "labels.csv").write_text("\n".join(["path,label", *late]), encoding="utf-8")
    (inbox / "labels.edited-20261128-120354.csv").write_text("kept beside", encoding="utf-8")
    again = monitor(folder, "inbox").json
    both = [*right(range(30), 0), *right(range(100, 110), 1)]
    assert (again["new"], again["check"], again["accuracy"]["now"]["n"]) == (False, 1, 40)
    assert again["accuracy"]["now"]["value"] == pytest.approx(np.mean(both))
    [file] = (folder / ".patchline" / "monitoring").rglob("000001.json")
    kept = {
        key: each for key, each in json.loads(file.read_bytes()).items() if key != "predictions"
    }
    file.write_text(json.dumps(kept), encoding="utf-8")  # as an earlier Patchline wrote it
    assert monitor(folder, "inbox").json["accuracy"] == again["accuracy"]
    write_photos(inbox / classes[0], range(200, 230))
    others = [f"{classes[0]}/{seed}.png,{classes[1]}" for seed in range(200, 230)]
    (inbox / "labels.csv").write_text("\n".join(["path,label", *late, *others]), encoding="utf-8")
    done = monitor(folder, "inbox").json
    assert (done["images"], done["accuracy"]["now"]["n"]) == (30, 70)
    assert done["notes"] == [f"30 labels taken from the names of folders ('{classes[0]}')"]
    expected = np.mean([*both, *right(range(200, 230), 1)])
    assert done["accuracy"]["now"]["value"] == pytest.approx(expected)


def test_labels_of_classes_that_the_model_lacks_are_counted_as_wrong(registry: Registry) -> None:
    """Both figures are given; the table may be one that a spreadsheet has saved."""
    folder, inbox = registry.folder, registry.folder / "inbox"
    classes = registry.package(1).classes
    write_photos(inbox / "@x" / classes[0], range(60))  # this name would be a formula
    pixels = np.stack([np.asarray(registry.package(1).pixels(photo(seed))) for seed in range(60)])
    answers = registry.package(1).probabilities(pixels).argmax(axis=1)

    def write_labels(labels: list[str]) -> None:
        rows = [f"'@x/{classes[0]}/{seed}.png;{label}" for seed, label in enumerate(labels)]
        (inbox / "labels.csv").write_text("\n".join(["path;label", *rows]), encoding="utf-8")

    write_labels(["weed"] * 20 + [classes[k] for k in answers[20:]])
    done = monitor(folder, "inbox")
    accuracy = done.json["accuracy"]
    assert (accuracy["now"]["n"], accuracy["now"]["value"]) == (60, pytest.approx(2 / 3))
    assert (accuracy["of_own_classes"]["n"], accuracy["of_own_classes"]["value"]) == (40, 1)
    assert accuracy["other_classes"] == {"weed": 20}
    said = patchline_here("monitor", NAME, "inbox", cwd=folder).out
    assert "100.0% of the 40 of classes that the model has; it lacks weed (20)" in said
    assert "weed (20)" in Path(done.json["page"]).read_text("utf-8")
    write_labels(["weed"] * 60)
    done = monitor(folder, "inbox")
    assert done.json["accuracy"] is None
    assert "no class of 60 labelled images, such as weed" in done.json["accuracy_unknown"]
    write_labels(["[weed"] * 59 + ["[1]"])
    done = monitor(folder, "inbox")
    assert done.json["accuracy"] is None
    assert "labels.csv cannot be read as a table" in done.json["accuracy_unknown"]


def test_the_images_that_a_version_was_tested_on_are_no_arrivals(registry: Registry) -> None:
    """They are in the reference already, and their accuracy is the test's, whatever arrives."""
    inbox = write_photos(registry.folder / "inbox", range(60))
    write_photos(inbox / registry.package(1).classes[0], range(1000, 1030))
    done = monitor(registry.folder, "inbox").json
    assert (done["images"], done["accuracy"]) == (60, None)
    assert done["notes"] == [
        f"30 images left out, because {NAME}/1 was validated or tested on them"
    ]


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


def test_a_table_names_images_and_labels_as_far_as_they_are_known(registry: Registry) -> None:
    """Images without a label are compared, too; what is not obvious is said, not left out."""
    folder, classes = registry.folder, registry.package(1).classes
    write_photos(folder / "inbox", range(60))
    rows = [f"inbox/{seed}.png,{classes[0] if seed % 2 else ''},x" for seed in range(60)]
    table = folder / "seen.csv"
    table.write_text("\n".join(["image,label,class", *rows]), encoding="utf-8")
    done = monitor(folder, "seen.csv", "--data.label-column", "label").json
    assert (done["images"], done["accuracy"]["now"]["n"]) == (60, 30)
    table.write_text("\n".join(["image,kind,colour", *rows]), encoding="utf-8")
    done = monitor(folder, "seen.csv")
    assert done.code in (0, 3), done.err
    assert "--data.label-column" in done.json["accuracy_unknown"]
    registry.add(2, thresholds=(0.5,) * len(classes))
    with_reference(folder / "packages" / "2" / "artifacts")
    rows = [f"inbox/{seed}.png,{name}" for seed in range(60) for name in classes[:2]]
    table.write_text("\n".join(["image,label", *rows]), encoding="utf-8")
    done = monitor(folder, "seen.csv")
    assert done.code in (0, 3), done.err
    assert done.json["accuracy"]["now"]["n"] == 60


def test_labels_from_the_names_of_folders_are_said(registry: Registry) -> None:
    """A folder of a day may have the name of a class by chance."""
    inbox = registry.folder / "inbox"
    name = registry.package(1).classes[0]
    write_photos(inbox / "2026" / name, range(60))
    done = monitor(registry.folder, "inbox").json
    assert done["notes"] == [f"60 labels taken from the names of folders ('{name}')"]
    assert done["accuracy"]["now"]["n"] == 60


def _quoted(labels: list[str]) -> str:
    return label_sets.encoded(labels).replace('"', '""')


def test_recorded_traffic_is_a_stream(registry: Registry) -> None:
    """What the server has computed counts, once for each image, however often clients send it.

    The answers of another version are left out, and so are images that tested this one. Lines of an
    earlier Patchline have no digest, so copies are not known.
    """
    folder, package = registry.folder, registry.package(1)
    traffic = folder / "traffic"

    def record(version: str, images: list[np.ndarray | bytes]) -> None:
        writer = TrafficRecorder(traffic, with_images=True, most_bytes=1 << 30)
        for image in images:
            row = package.probabilities(np.asarray(package.pixels(image))[None])[0]
            writer.record(NAME, version, [image], [(row, None)])
        writer.close()

    images: list[np.ndarray | bytes] = [photo(seed, brightness=120) for seed in range(40)]
    record("1", [*images[:-1], *[png(photo(39, brightness=120))] * 30])
    record("7", images)
    record("1", [png(photo(seed)) for seed in range(1000, 1005)])
    done = monitor(folder, "traffic")
    assert (done.code, done.json["images"]) == (3, 40), done.err
    assert done.json["notes"] == [
        f"40 images of {NAME}/7 left out: another version answered",
        "29 exact copies left out",
        f"5 images left out, because {NAME}/1 was validated or tested on them",
    ]
    assert "data:image/png" in Path(done.json["page"]).read_text("utf-8")
    record("1", images[:20])
    assert not monitor(folder, "traffic").json["new"]
    before = set(traffic.glob("part-*"))
    record("1", [images[0]] * 5 + [photo(seed, brightness=120) for seed in range(40, 65)])
    [part] = set(traffic.glob("part-*")) - before
    part.write_text(re.sub('"digest":"[0-9a-f]+",', "", part.read_text("utf-8")), encoding="utf-8")
    done = monitor(folder, "traffic")
    assert (done.json["images"], done.json["independent_images"]) == (30, 26)
    assert "whether copies of each other are among 30 images is not known" in str(done.json)


def bursts(scenes: range, shots: int) -> dict[str, np.ndarray]:
    """Return images of some scenes, each taken several times with the noise of a camera."""
    taken = {}
    for scene in scenes:
        generator = np.random.default_rng(scene)
        blocks = generator.uniform(0, 70, (4, 4, 3))
        picture = np.kron(blocks, np.ones((6, 6, 1)))
        for shot in range(shots):
            noisy = picture + generator.normal(0, 3, picture.shape)
            taken[f"{scene}-{shot}"] = np.clip(noisy, 0, 255).astype(np.uint8)
    return taken


def test_the_shots_of_a_burst_are_counted_once(registry: Registry) -> None:
    """Five scenes are too few, however often each was taken, and spend nothing; thirty are enough.

    The tests and the shares take one image of each scene, and the page shows each scene once.
    """
    folder, inbox = registry.folder, registry.folder / "inbox"
    inbox.mkdir()
    for name, picture in bursts(range(5), 20).items():
        (inbox / f"{name}.png").write_bytes(png(picture))
    done = monitor(folder, "inbox")
    assert (done.code, done.out) == (2, "")
    assert "Only 5 of 100 new images of" in done.err
    assert "near duplicates and groups are counted once" in done.err
    assert not list((folder / ".patchline" / "monitoring").rglob("*.json"))
    for name, picture in bursts(range(5, 30), 4).items():
        (inbox / f"{name}.png").write_bytes(png(picture))
    done = monitor(folder, "inbox")
    told = done.json
    assert (told["images"], told["independent_images"], told["check"]) == (200, 30, 1)
    assert (told["reference_images"], told["independent_reference_images"]) == (200, 200)
    assert told["independence_unknown"] == []
    assert {each["now"]["n"] for each in told["labels"]} == {30}
    page = Path(told["page"]).read_text("utf-8")
    assert "30 of 200 new images and 200 of 200 reference images" in page
    shown = re.findall(r'class="path">(\d+)-\d+\.png', page)
    assert len(shown) == len(set(shown)) == 12


def test_what_is_not_known_about_bursts_is_said(registry: Registry) -> None:
    """Traffic without pictures, and a reference of an earlier Patchline, leave the rate open."""
    folder, package = registry.folder, registry.package(1)
    file = folder / "packages" / "1" / "artifacts" / REFERENCE_IMAGES_FILE
    reference = load_reference_images(file)
    assert reference is not None
    save_reference_images(replace(reference, units_M=None), file)
    write_digests(file.parent, DIGESTED)
    writer = TrafficRecorder(folder / "traffic", with_images=False, most_bytes=1 << 30)
    for picture in bursts(range(4), 10).values():
        row = package.probabilities(np.asarray(package.pixels(picture))[None])[0]
        writer.record(NAME, "1", [picture], [(row, None)])
    writer.close()
    done = monitor(folder, "traffic")
    assert (done.json["images"], done.json["independent_images"]) == (40, 40)
    [pictures, earlier] = done.json["independence_unknown"]
    assert "no picture of them was recorded" in pictures
    assert "an earlier Patchline made the package" in earlier
    said = patchline_here("monitor", NAME, "traffic", cwd=folder).out
    assert said.count("false alarms may be more frequent than stated") == 2
    assert "Not known: whether 40 new images" in Path(done.json["page"]).read_text("utf-8")


def test_damaged_recorded_traffic_is_named(registry: Registry) -> None:
    """File, line and remedy in one sentence; a line that a killed server has begun is no damage."""
    folder, package = registry.folder, registry.package(1)
    traffic = folder / "traffic"
    writer = TrafficRecorder(traffic, with_images=False, most_bytes=1 << 30)
    for seed in range(40):
        image = photo(seed, brightness=120)
        row = package.probabilities(np.asarray(package.pixels(image))[None])[0]
        writer.record(NAME, "1", [image], [(row, None)])
    writer.close()
    [part] = traffic.glob("part-*")
    content = part.read_bytes()
    for old, new, words in (
        (b'"digest"', b'"dig\xffest"', "line 1 is not UTF-8"),
        (b'{"id"', b'[]\n{"id"', "line 1 is not a JSON object"),
        (b'{"id"', b'{"id":"a\n{"id"', "line 1 is cut off"),
        (b'"probabilities":[', b'"probabilities":["a",', "line 1, probabilities.0: "),
        (b'"probabilities":[', b'"probabilities":[7,', "line 1, probabilities.0: "),
        (b'"features":null', b'"features":"AAA"', "line 1, features: "),
        (b'"model"', b'"modell"', "line 1, model: field required"),
    ):
        part.write_bytes(content.replace(old, new, 1))
        done = monitor(folder, "traffic")
        assert done.code == 2, done.err
        assert f"{part.name} is damaged: {words}" in done.err
        assert "Restore the file from a backup" in done.err
        assert part.read_bytes() == content.replace(old, new, 1)
    marker = traffic / "patchline-traffic.json"
    marker.write_text('{"format": 2}', encoding="utf-8")
    part.write_bytes(content[:-30])
    done = monitor(folder, "traffic")
    assert (done.code, "Update Patchline" in done.err) == (2, True)
    with pytest.raises(ConfigError, match="has format 2"):
        TrafficRecorder(traffic, with_images=False, most_bytes=1 << 30)
    marker.write_text("", encoding="utf-8")  # a kill as the server started
    done = monitor(folder, "traffic")
    assert done.json["images"] == 39, done.err


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
