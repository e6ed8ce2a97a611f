"""`patchline export`: which images are compared, what is said, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from patchline.pipeline.workspace.files.paths import artifact_path
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.flows.commands.photo_stores import class_photos, entered_store, manifest_of
from tests.made.servers import Command
from tests.patience import until
from tests.pipeline.registry.made_versions import make_version
from tests.pipeline.registry.serving.served import serving


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Path:
    """Return a folder with photos, of which 42 tested versions, and a few others."""
    folder = tmp_path_factory.mktemp("exported")
    with entered_store(folder, empty_store):
        photos = class_photos(folder, 20)
        manifest = manifest_of(photos, train=4, validation=2)
        class_photos(folder / "few", 2, side=40)
        for root in (photos, None, None):
            make_version("stripes", folder, manifest=manifest, root=root)
        client().set_registered_model_alias("stripes", "champion", "1")
    return folder


def test_without_images_nothing_is_exported(command: Command, tmp_path: Path) -> None:
    """The images of the second version are gone; the sentence says what to do, which then works."""
    out = tmp_path / "out"
    exported = ("export stripes/2 --to int8 --out", str(out))
    err = command.refusal(*exported)
    assert "The images that stripes/2 was tested on are gone" in err
    assert "--data" in err
    assert not out.exists()
    answer = command.json(*exported, "--data", "photos")
    assert answer["compared_on"].endswith("images of photos")
    assert answer["chosen"]["agreement"]["labels"]["n"] in (31, 32)  # a quarter calibrates


def test_too_few_images_are_refused_with_code_3(command: Command, tmp_path: Path) -> None:
    """Six images that agree are no evidence; nothing is written, and a written one stays.

    A person reads the figures of the other one, and where it is; the pages list the refusal.
    """
    exported = ("export stripes/1 --to onnx --out",)

    def listed() -> str:
        return str(client().get_model_version("stripes", "1").tags["patchline.export.onnx"])

    for more in ((), ("--json",)):
        given = (*exported, str(tmp_path / "few"), "--data", "few/photos", *more)
        code, out, err = command(*given)
        assert (code, "too few to tell" in (out if more else err)) == (3, True)
        assert not (tmp_path / "few").exists()
        assert listed().startswith("refused: same label on 100.0% of ")
    assert json.loads(out)["folder"] is None
    out = command.out(*exported, tmp_path / "all")
    for words in ("same label       100.0% of 42 (95% interval", "accuracy", "batch of 32"):
        assert words in out
    assert f"written: {tmp_path / 'all'}" in out
    assert (tmp_path / "all" / "model.onnx").exists()
    assert command(*given)[0] == 3
    assert listed().startswith("same label on 100.0% of 42 images")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("stripes/1", "--to"),
        ("stripes/1 --to int4", "int8"),
        ("stripes/9 --to onnx", "no version 9"),
        ("stripes/1 --to torch --data.label-column a", "with --data"),
    ],
)
def test_a_wrong_command_is_explained(command: Command, arguments: str, sentence: str) -> None:
    """With code 2, and what would be right."""
    assert sentence in command.refusal(f"export {arguments}")


def test_an_export_is_compared_listed_and_served_by_name(
    command: Command, store: Path, tmp_path: Path
) -> None:
    """The answer has every figure, as the folder does; training images calibrate int8.

    The MLflow UI has the figures on the version and on its run; the server finds the files. A new
    version without the export is rejected, with the reason; the present one answers on.
    """
    served = ("serve stripes/1 --form int8 --port 0",)
    err = command.refusal(*served)
    assert "Version 1 of 'stripes' has no export as int8" in err
    assert "`patchline export stripes/1 --to int8`" in err
    out = tmp_path / "new" / "int8"
    exported = ("export stripes/1 --to int8 --out", out)
    answer = command.json(*exported)
    chosen = answer["chosen"]
    assert (answer["folder"], answer["compared_on"]) == (str(out), "42 test images of its run")
    assert chosen["agreement"]["labels"]["n"] == 42
    assert {batch["batch_size"] for batch in chosen["latency"]} == {1, 8, 32}
    [static] = [each for each in answer["tried"] if each["details"]["method"] == "static"]
    assert static["details"]["calibration"] == "12 training images of its run"
    assert any("cannot show that the label is the same" in note for note in answer["notes"])
    assert json.loads((out / "export.json").read_text())["chosen"] == chosen
    assert "exists and is not an empty folder" in command.refusal(*exported)
    registered = client().get_model_version("stripes", "1")
    run = client().get_run(str(registered.run_id))
    for tags in (registered.tags, run.data.tags):
        assert "same label on 100.0% of 42 images" in tags["patchline.export.int8"]
    for text in (registered.description, run.data.tags["mlflow.note.content"]):
        assert str(text).count("### Exports") == 1
        assert "| `int8` | 100.0% of 42 (" in str(text)
    with serving(store, "--form", "int8", model="stripes") as server:
        assert server.ready["form"] == server.ask("GET", "/status").json["form"] == "int8"
        photo = next((store / "photos").rglob("*.png"))
        assert server.predict(photo.read_bytes()).status == 200
        assert "Checked on this processor" in server.log.read_text()
        client().set_registered_model_alias("stripes", "champion", "3")
        until(lambda: server.ask("GET", "/status").json["rejected"], "it was not rejected")
        status = server.ask("GET", "/status").json
        assert status["rejected"] == {"version": "3", "reason": "it has no export as int8"}
        assert status["version"] == "1"
    artifacts = artifact_path(run.info.artifact_uri)
    assert artifacts is not None
    shutil.rmtree(artifacts / "exports")
    assert "are gone. Write it again with" in command.refusal(*served)
