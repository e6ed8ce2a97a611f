"""The command `patchline monitor` on small packages, in this process."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.reference_images import (
    REFERENCE_IMAGES_FILE,
    ReferenceImages,
    save_reference_images,
)
from patchline.pipeline.packaging.package_digests import write_digests
from patchline.pipeline.packaging.package_files import DIGESTED
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.traffic_recorder import TrafficRecorder
from tests.conftest import Finished, Run, draw_photo, patchline_here
from tests.flows.commands.photo_stores import entered_store
from tests.pipeline.registry.made_versions import CLASSES
from tests.pipeline.registry.serving.served import NAME, Registry

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


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Registry:
    """Return a registry whose champion has a reference of 200 images.

    So has version 2, of several labels; version 3 has none.
    """
    made = Registry(tmp_path_factory.mktemp("monitored"))
    with entered_store(made.folder, empty_store):
        for seed, thresholds in ((1, ()), (2, (0.5,) * len(CLASSES)), (3, ())):
            made.add(seed, "champion" if seed == 1 else None, thresholds)
    for seed in (1, 2):
        with_reference(made.folder / "packages" / str(seed) / "artifacts")
    return made


@pytest.fixture
def package(versions: Registry, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """Use that registry from the folder of the test; return the package of the champion."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{versions.folder / 'mlflow.db'}")
    return versions.package(1)


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


def answers(package: PackagedModel, seeds: range) -> np.ndarray:
    """Return the numbers of the classes that a package gives photos."""
    pixels = np.stack([np.asarray(package.pixels(photo(seed))) for seed in seeds])
    found: np.ndarray = package.probabilities(pixels).argmax(axis=1)
    return found


def write_table(file: Path | str, head: str, rows: list[str]) -> None:
    """Write a CSV file."""
    Path(file).write_text("\n".join([head, *rows]), encoding="utf-8")


def record(
    package: PackagedModel,
    version: str,
    images: Sequence[np.ndarray | bytes],
    *,
    with_images: bool = True,
) -> None:
    """Record what a server of a package answers, as that version, with the images if asked."""
    writer = TrafficRecorder(Path("traffic"), with_images=with_images)
    for image in images:
        row = package.probabilities(np.asarray(package.pixels(image))[None])[0]
        writer.record(NAME, version, [image], [(row, None)])
    writer.close()


def monitor(*arguments: str, model: str = NAME) -> Finished:
    """Run the command."""
    return patchline_here("monitor", model, *arguments, "--json", cwd=Path())


@pytest.mark.usefixtures("package")
def test_a_stream_is_checked_and_a_drift_has_exit_code_3() -> None:
    """New images alone are tested; without new ones, the last result comes again, and costs none.

    A test that is not possible is said, and the other one has the whole level then.
    """
    inbox = write_photos(Path("inbox"), range(60))
    (inbox / "text.png").write_text("no image")
    (inbox / "cut.png").write_bytes(png(photo(99))[:400])
    done = monitor("inbox", "--checks", "10")
    assert done.code == 0, done.err
    first = done.json
    assert first["notes"] == ["2 files left out: no image, or damaged"]
    assert (first["drift"], first["images"], first["check"], first["new"]) == (False, 60, 1, True)
    assert first["tests"]["outputs"]["level"] == pytest.approx(0.0025)
    assert first["unknown"] == {"features": WHY}
    assert first["accuracy"] is None
    assert "No drift found" in Path(first["page"]).read_text("utf-8")
    write_photos(inbox, range(100, 150), brightness=120)
    done = monitor("inbox")
    assert done.code == 3
    second = done.json
    assert (second["drift"], second["images"], second["check"]) == (True, 50, 2)
    assert second["spent"] == pytest.approx(0.01)
    page = Path(second["page"]).read_text("utf-8")
    assert "data:image/png" in page
    assert "not on this machine" in page  # the reference's images
    done = monitor("inbox")
    assert (done.code, done.json["new"], done.json["spent"]) == (3, False, second["spent"])


def test_labels_give_the_accuracy_whenever_they_come(package: PackagedModel) -> None:
    """`labels.csv` overrules the folder; what was checked before its label came counts, too."""
    inbox, classes = Path("inbox"), package.classes
    write_photos(inbox / classes[0], range(30))
    write_photos(inbox / "unsorted", range(100, 110))
    first = monitor("inbox").json["accuracy"]
    right = list(answers(package, range(30)) == 0)
    assert (first["now"]["n"], first["before"]["value"]) == (30, 1)
    assert first["now"]["value"] == pytest.approx(np.mean(right))
    late = [f"unsorted/{seed}.png,{classes[1]}" for seed in range(100, 110)]
    write_table(inbox / "labels.csv", "path,label", late)
    (inbox / "labels.edited-20261128-120354.csv").write_text("kept beside", encoding="utf-8")
    again = monitor("inbox").json
    right += list(answers(package, range(100, 110)) == 1)
    assert (again["new"], again["check"], again["accuracy"]["now"]["n"]) == (False, 1, 40)
    assert again["accuracy"]["now"]["value"] == pytest.approx(np.mean(right))
    write_photos(inbox / classes[0], range(200, 230))
    others = [f"{classes[0]}/{seed}.png,{classes[1]}" for seed in range(200, 230)]
    write_table(inbox / "labels.csv", "path,label", [*late, *others])
    done = monitor("inbox").json
    right += list(answers(package, range(200, 230)) == 1)
    assert (done["images"], done["accuracy"]["now"]["n"]) == (30, 70)
    assert done["notes"] == [f"30 labels taken from the names of folders ('{classes[0]}')"]
    assert done["accuracy"]["now"]["value"] == pytest.approx(np.mean(right))


def test_labels_of_classes_that_the_model_lacks_are_counted_as_wrong(
    package: PackagedModel,
) -> None:
    """Both figures are given; the table may be one that a spreadsheet has saved."""
    inbox, classes = Path("inbox"), package.classes
    write_photos(inbox / "@x" / classes[0], range(60))  # this name would be a formula

    def monitored(labels: list[str]) -> Any:
        rows = [f"'@x/{classes[0]}/{seed}.png;{label}" for seed, label in enumerate(labels)]
        write_table(inbox / "labels.csv", "path;label", rows)
        return monitor("inbox").json

    right = [classes[answer] for answer in answers(package, range(60))]
    done = monitored(["weed"] * 20 + right[20:])
    accuracy = done["accuracy"]
    assert (accuracy["now"]["n"], accuracy["now"]["value"]) == (60, pytest.approx(2 / 3))
    assert (accuracy["of_own_classes"]["n"], accuracy["of_own_classes"]["value"]) == (40, 1)
    assert accuracy["other_classes"] == {"weed": 20}
    assert "weed (20)" in Path(done["page"]).read_text("utf-8")
    for labels, words in (
        (["weed"] * 60, "no class of 60 labelled images, such as weed"),
        (["[weed"] * 59 + ["[1]"], "labels.csv cannot be read as a table"),
    ):
        done = monitored(labels)
        assert (done["accuracy"], words in done["accuracy_unknown"]) == (None, True)


def test_a_model_of_several_labels_is_monitored(package: PackagedModel) -> None:
    """Each label's share is compared; a prediction is right if all labels are.

    A table has a row for each label, or all of them in one.
    """
    classes, sets = package.classes, partial(monitor, model=f"{NAME}/2")
    inbox = write_photos(Path("inbox"), range(40))
    one = label_sets.encode_labels([classes[0]]).replace('"', '""')
    write_table(inbox / "labels.csv", "path,label", [f'{seed}.png,"{one}"' for seed in range(40)])
    done = sets("inbox")
    assert done.code == 0, done.err
    assert {each["label"] for each in done.json["labels"]} == set(classes)
    assert done.json["accuracy"]["now"]["n"] == 40
    write_photos(inbox, range(100, 140), brightness=120)
    assert sets("inbox").code == 3
    rows = [f"inbox/{seed}.png,{name}" for seed in range(40) for name in classes[:2]]
    write_table("seen.csv", "image,label", rows)
    assert sets("seen.csv").json["accuracy"]["now"]["n"] == 40


def test_recorded_traffic_is_a_stream(package: PackagedModel) -> None:
    """What the server has computed counts, once for each image, however often clients send it.

    The answers of another version are left out, and so are images that tested this one. Lines of an
    earlier Patchline have no digest, so copies are not known.
    """
    traffic = Path("traffic")
    images: list[np.ndarray | bytes] = [photo(seed, brightness=120) for seed in range(40)]
    record(package, "1", [*images[:-1], *[png(photo(39, brightness=120))] * 30])
    record(package, "7", images)
    record(package, "1", [png(photo(seed)) for seed in range(1000, 1005)])
    done = monitor("traffic")
    assert (done.code, done.json["images"]) == (3, 40), done.err
    assert done.json["notes"] == [
        f"40 images of {NAME}/7 left out: another version answered",
        "29 exact copies left out",
        f"5 images left out, because {NAME}/1 was validated or tested on them",
    ]
    assert "data:image/png" in Path(done.json["page"]).read_text("utf-8")
    before = set(traffic.glob("part-*"))
    more = [photo(seed, brightness=120) for seed in range(40, 65)]
    record(package, "1", [*images[:1] * 5, *more])
    [part] = set(traffic.glob("part-*")) - before
    part.write_text(re.sub('"digest":"[0-9a-f]+",', "", part.read_text("utf-8")), encoding="utf-8")
    done = monitor("traffic")
    assert (done.json["images"], done.json["independent_images"]) == (30, 26)


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


@pytest.mark.usefixtures("package")
def test_the_shots_of_a_burst_are_counted_once() -> None:
    """Five scenes are too few, however often each was taken, and spend nothing; thirty are enough.

    The tests and the shares take one image of each scene, and the page shows each scene once.
    """
    inbox = Path("inbox")
    inbox.mkdir()
    for name, picture in bursts(range(5), 20).items():
        (inbox / f"{name}.png").write_bytes(png(picture))
    done = monitor("inbox")
    assert (done.code, done.out) == (2, "")
    assert "Only 5 of 100 new images of" in done.err
    assert "near duplicates and groups are counted once" in done.err
    assert not list(Path(".patchline/monitoring").rglob("*.json"))
    for name, picture in bursts(range(5, 30), 4).items():
        (inbox / f"{name}.png").write_bytes(png(picture))
    done = monitor("inbox")
    told = done.json
    assert (told["images"], told["independent_images"], told["check"]) == (200, 30, 1)
    assert (told["reference_images"], told["independent_reference_images"]) == (200, 200)
    assert told["independence_unknown"] == []
    assert {each["now"]["n"] for each in told["labels"]} == {30}
    page = Path(told["page"]).read_text("utf-8")
    assert "30 of 200 new images and 200 of 200 reference images" in page
    shown = re.findall(r'class="path">(\d+)-\d+\.png', page)
    assert len(shown) == len(set(shown)) == 12


def test_damaged_recorded_traffic_is_named(package: PackagedModel) -> None:
    """File, line and remedy in one sentence; a line that a killed server has begun is no damage."""
    traffic = Path("traffic")
    record(package, "1", [photo(seed, brightness=120) for seed in range(40)], with_images=False)
    [part] = traffic.glob("part-*")
    content = part.read_bytes()
    for old, new, words in (
        (b'{"id"', b'{"id":"a\n{"id"', "line 1 is cut off"),
        (b'"probabilities":[', b'"probabilities":[7,', "line 1, probabilities.0: "),
        (b'"model"', b'"modell"', "line 1, model: field required"),
    ):
        part.write_bytes(content.replace(old, new, 1))
        done = monitor("traffic")
        assert done.code == 2, done.err
        assert f"{part.name} is damaged: {words}" in done.err
        assert "Restore the file from a backup" in done.err
        assert part.read_bytes() == content.replace(old, new, 1)
    marker = traffic / "patchline-traffic.json"
    marker.write_text('{"format": 2}', encoding="utf-8")
    part.write_bytes(content[:-30])
    done = monitor("traffic")
    assert (done.code, "Update Patchline" in done.err) == (2, True)
    with pytest.raises(ConfigError, match="has format 2"):
        TrafficRecorder(traffic, with_images=False)
    marker.write_text("", encoding="utf-8")  # a kill as the server started
    done = monitor("traffic")
    assert done.json["images"] == 39, done.err
    [unknown] = done.json["independence_unknown"]
    assert "no picture of them was recorded" in unknown
    said = patchline_here("monitor", NAME, "traffic", cwd=Path()).out
    assert "false alarms may be more frequent than stated" in said
    assert "accuracy     not known: " in said
    assert "Not known: whether 39 new images" in Path(done.json["page"]).read_text("utf-8")


@pytest.mark.usefixtures("package")
def test_what_cannot_be_told_is_an_error_and_spends_nothing() -> None:
    """Unknown is never reported as no drift."""
    inbox = write_photos(Path("inbox"), range(0))
    (inbox / "notes.png").write_bytes(b"no image")
    for images, version, sentence in (
        (0, "", "No image of"),
        (5, "", "Only 5 images of"),
        (5, "/3", "Whether images have drifted is not known"),
    ):
        write_photos(inbox, range(images))
        done = monitor("inbox", model=f"{NAME}{version}")
        assert (done.code, done.out, sentence in done.err) == (2, "", True)
    assert not list(Path(".patchline/monitoring").rglob("*.json"))


def test_darker_photos_are_a_drift_for_both_tests(finished_run: Run, tmp_path: Path) -> None:
    """The page shows them beside reference images, read from the training data."""
    for number in range(60):
        file = tmp_path / "inbox" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(png((draw_photo(number % 3, 1000 + number) * 0.2).astype(np.uint8)))
    env = {"MLFLOW_TRACKING_URI": finished_run.tracking_uri}
    arguments = ("monitor photos/1 inbox --checks 30 --json",)
    done = patchline_here(*arguments, cwd=tmp_path, env=env)
    assert done.code == 3, done.err
    assert set(done.json["tests"]) == {"outputs", "features"}
    assert all(each["p_value"] <= each["level"] for each in done.json["tests"].values())
    page = Path(done.json["page"]).read_text("utf-8")
    assert page.count("data:image/png") == 12 * 4
    assert "not on this machine" not in page


def test_a_table_names_images_and_labels_as_far_as_they_are_known(package: PackagedModel) -> None:
    """Images without a label are compared, too; what is not obvious is said, not left out."""
    write_photos(Path("inbox"), range(60))
    rows = [f"inbox/{seed}.png,{package.classes[0] if seed % 2 else ''},x" for seed in range(60)]
    write_table("seen.csv", "image,label,class", rows)
    done = monitor("seen.csv", "--data.label-column", "label").json
    assert (done["images"], done["accuracy"]["now"]["n"]) == (60, 30)
    write_table("seen.csv", "image,kind,colour", rows)
    assert "--data.label-column" in monitor("seen.csv").json["accuracy_unknown"]
