"""`patchline export`: which images are compared, what is said, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.files.path_uris import artifact_path
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.tracking.tracking_store import client
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import write_photos
from tests.flows.conftest import Command
from tests.patience import until
from tests.pipeline.registry.made_versions import CLASSES, make_version
from tests.pipeline.serving.served import serving

IMAGES = 20
"""Of each of three classes: 4 are trained on, 2 validated on, 14 tested on."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with photos, and versions whose images are there, gone or unknown."""
    folder = tmp_path_factory.mktemp("exported")
    shutil.copy(empty_store, folder / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
        photos = write_photos(folder / "drawn", images=IMAGES)
        (folder / "photos").mkdir()
        for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
            (photos / old).rename(folder / "photos" / new)
        manifest = _manifest(folder / "photos")
        make_version("stripes", folder, manifest=manifest, root=folder / "photos")
        make_version("stripes", folder, manifest=manifest)
    return folder


def _manifest(photos: Path) -> pd.DataFrame:
    listed = [
        ListedImage(path=file.relative_to(photos).as_posix(), label=file.parent.name)
        for file in sorted(photos.rglob("*.png"))
    ]
    manifest = manifests.scan(ImageListing(name="photos", root=photos, images=listed))
    number = manifest["path"].str.extract(r"(\d+)\.png")[0].astype(int)
    manifest["split"] = ["train" if n < 4 else "validation" if n < 6 else "test" for n in number]
    return manifest


@pytest.fixture
def command(store: Path, monkeypatch: pytest.MonkeyPatch, run_here: Command) -> Command:
    """Return a function that runs a command in that folder."""
    monkeypatch.chdir(store)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store / 'mlflow.db'}")
    return run_here


def test_the_test_images_of_the_run_are_compared(command: Command, tmp_path: Path) -> None:
    """The answer has every figure, as the folder does; training images calibrate int8."""
    out = tmp_path / "new" / "int8"
    code, printed, err = command("export", "stripes/1", "--to", "int8", "--out", str(out), "--json")
    assert code == 0, err
    answer = json.loads(printed)
    assert answer["folder"] == str(out)
    assert answer["compared_on"] == "42 test images of its run"
    assert answer["chosen"]["agreement"]["labels"]["n"] == 42
    assert {batch["batch_size"] for batch in answer["chosen"]["latency"]} == {1, 8, 32}
    [static] = [each for each in answer["tried"] if each["details"]["method"] == "static"]
    assert static["details"]["calibration"] == "12 training images of its run"
    assert any("cannot show that the label is the same" in note for note in answer["notes"])
    assert json.loads((out / "export.json").read_text())["chosen"] == answer["chosen"]
    code, _, err = command("export", "stripes/1", "--to", "int8", "--out", str(out))
    assert code == 2
    assert "exists and is not an empty folder" in err


def test_a_person_reads_the_figures(
    command: Command, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agreement with its interval, differences, accuracies, sizes and latencies; then the place."""
    monkeypatch.chdir(store)
    code, out, err = command("export", "stripes/1", "--to", "onnx")
    assert code == 0, err
    assert "same label       100.0% of 42 (95% interval" in out
    assert "accuracy" in out
    assert "batch of 32" in out
    assert "written: stripes-1-onnx" in out
    assert (store / "stripes-1-onnx" / "model.onnx").exists()


def test_without_images_nothing_is_exported(command: Command, tmp_path: Path) -> None:
    """The images of the second version are gone; the sentence says what to do, which then works."""
    out = tmp_path / "out"
    code, _, err = command("export", "stripes/2", "--to", "onnx", "--out", str(out))
    assert code == 2
    assert "The images that stripes/2 was tested on are gone" in err
    assert "--data" in err
    assert not out.exists()
    code, printed, err = command(
        "export", "stripes/2", "--to", "int8", "--out", str(out), "--data", "photos", "--json"
    )
    assert code == 0, err
    answer = json.loads(printed)
    assert answer["compared_on"].endswith("images of photos")
    assert answer["chosen"]["agreement"]["labels"]["n"] in (31, 32)  # a quarter calibrates


def test_too_few_images_are_refused_with_code_3(command: Command, tmp_path: Path) -> None:
    """Six images that agree are no evidence; nothing is written."""
    drawn, few = write_photos(tmp_path / "drawn", images=2, side=40), tmp_path / "few"
    few.mkdir()
    for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
        (drawn / old).rename(few / new)
    out = tmp_path / "out"
    arguments = ("export", "stripes/1", "--to", "onnx", "--out", str(out), "--data", str(few))
    code, printed, err = command(*arguments)
    assert code == 3
    assert "too few to tell" in err
    assert "refused" in printed
    assert not out.exists()
    code, printed, _ = command(*arguments, "--json")
    assert code == 3
    assert json.loads(printed)["folder"] is None
    assert "too few to tell" in json.loads(printed)["refusal"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("export", "stripes/1"), "--to"),
        (("export", "stripes/1", "--to", "int4"), "int8"),
        (("export", "stripes/9", "--to", "onnx"), "no version 9"),
        (("export", "stripes/1", "--to", "torch", "--data.label-column", "a"), "with --data"),
    ],
)
def test_a_wrong_command_is_explained(
    command: Command, arguments: tuple[str, ...], sentence: str
) -> None:
    """With code 2, and what would be right."""
    code, _, err = command(*arguments)
    assert code == 2
    assert sentence in err


def test_an_export_is_listed_and_served_by_name(
    command: Command, store: Path, tmp_path: Path
) -> None:
    """The MLflow UI has the figures on the version and on its run; the server finds the files."""
    photos = store / "photos"
    version = make_version("listed", tmp_path, manifest=_manifest(photos), root=photos).version
    served = ("serve", f"listed/{version}", "--form", "int8", "--port", "0")
    code, _, err = command(*served)
    assert code == 2
    assert f"Version {version} of 'listed' has no export as int8" in err
    assert f"`patchline export listed/{version} --to int8`" in err
    for form in ("int8", "onnx"):
        out = str(tmp_path / form)
        code, _, err = command("export", f"listed/{version}", "--to", form, "--out", out)
        assert code == 0, err
    registered = client().get_model_version("listed", version)
    run = client().get_run(str(registered.run_id))
    for tags in (registered.tags, run.data.tags):
        assert "same label on 100.0% of 42 images" in tags["patchline.export.int8"]
        assert "times as fast" in tags["patchline.export.onnx"]
    for text in (registered.description, run.data.tags["mlflow.note.content"]):
        assert text is not None
        assert text.count("### Exports") == 1
        assert "| `int8` | 100.0% of 42 (" in text
        assert "batch of 1, ms | batch of 8, ms | batch of 32, ms" in text
    with serving(store, "--form", "int8", model=f"listed/{version}") as server:
        assert server.ready["form"] == server.ask("GET", "/status").json["form"] == "int8"
        photo = next(photos.rglob("*.png"))
        answer = server.predict(photo.read_bytes()).json
        written = PackagedModel(tmp_path / "int8" / "model.onnx", tmp_path / "int8" / "model.json")
        [expected] = written.answers([photo])
        assert answer["probability"] == pytest.approx(expected["probability"], abs=1e-4)
        assert "Checked on this processor" in server.log.read_text()
    artifacts = artifact_path(run.info.artifact_uri)
    assert artifacts is not None
    [kept] = (artifacts / "exports").glob("int8-*")  # with whatever its digests name
    assert {file.name for file in kept.iterdir()} == {
        file.name for file in (tmp_path / "int8").iterdir()
    }
    shutil.rmtree(artifacts / "exports")
    code, _, err = command(*served)
    assert code == 2
    assert "are gone. Write it again with" in err


def test_a_refused_export_is_listed_but_replaces_none(
    command: Command, store: Path, tmp_path: Path
) -> None:
    """The pages say that it was refused, and keep one that was written before."""
    photos = store / "photos"
    version = make_version("listed", tmp_path, manifest=_manifest(photos), root=photos).version
    drawn, few = write_photos(tmp_path / "drawn", images=2, side=40), tmp_path / "few"
    few.mkdir()
    for old, new in zip(("across", "down", "rising"), CLASSES, strict=True):
        (drawn / old).rename(few / new)

    def exported(*more: str) -> str:
        out = tmp_path / f"out-{len(more)}"
        command("export", f"listed/{version}", "--to", "onnx", "--out", str(out), *more)
        return str(client().get_model_version("listed", version).tags["patchline.export.onnx"])

    assert exported("--data", str(few)).startswith("refused: same label on 100.0% of ")
    assert exported().startswith("same label on 100.0% of 42 images")
    assert exported("--data", str(few)).startswith("same label on 100.0% of 42 images")


def test_a_server_of_exports_waits_for_that_of_a_new_version(
    command: Command, store: Path, tmp_path: Path
) -> None:
    """A version without the export is rejected, with the reason; the present one answers on."""
    photos = store / "photos"
    manifest = _manifest(photos)
    first = make_version("waiting", tmp_path / "1", manifest=manifest, root=photos).version
    command("export", f"waiting/{first}", "--to", "onnx", "--out", str(tmp_path / "onnx"))
    client().set_registered_model_alias("waiting", "champion", first)
    with serving(store, "--form", "onnx", model="waiting") as server:
        second = make_version("waiting", tmp_path / "2", manifest=manifest, root=photos).version
        client().set_registered_model_alias("waiting", "champion", second)
        until(lambda: server.ask("GET", "/status").json["rejected"], "it was not rejected")
        status = server.ask("GET", "/status").json
        assert status["rejected"] == {"version": second, "reason": "it has no export as onnx"}
        assert status["version"] == first
