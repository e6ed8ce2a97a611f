"""What a user gets wrong is answered in one sentence, with nothing half-made left behind."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image

from patchline.pipeline.data.store.earlier_stores import DRAFT_FILE
from tests.conftest import Finished, patchline, patchline_here, write_photos
from tests.small_disks import small_disk as mounted

Command = Callable[..., Finished]


@pytest.fixture
def ended(run_here: Callable[..., tuple[int, str, str]], prefect_server: str) -> Command:
    """Return a function that runs a command in this process, and returns how it ended.

    It uses the module's server, which spares each run the start of its own.
    """
    del prefect_server
    return lambda *arguments: Finished(*run_here(*arguments))


def _refused(done: Finished, *words: str, code: int = 2) -> None:
    """Check for exit code, a single sentence with the words, and no trace."""
    assert done.code == code, done.err
    [sentence] = [line for line in done.err.splitlines() if line.startswith("Error: ")]
    for word in words:
        assert word in sentence
    assert sentence.endswith((".", "?"))
    assert "Traceback" not in done.err
    assert not done.out


def _nothing_left(folder: Path, *, images_were_read: bool = False) -> None:
    """Check that no run, no model and no store was made.

    Args:
        folder: of the command.
        images_were_read: so that the workspace may hold what is known about them.
    """
    assert images_were_read or not (folder / ".patchline").exists()
    assert not (folder / "mlflow.db").exists()
    assert not (folder / "mlruns").exists()
    assert not list(folder.glob(".patchline/runs/*"))
    begun = [f for f in folder.rglob("*") if f.name.endswith(".part") or "building" in f.name]
    assert not [each for each in begun if not (each / DRAFT_FILE).exists()]
    stores = folder.glob(".patchline/prepared/*")
    assert not [each for each in stores if not each.name.startswith(".")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "no/such/folder"], ["no/such/folder", "Check the path"]),
        (["run", "--training.epochz", "3"], ["--training.epochz", "--training.epochs"]),
        (["run", "--training.epochs", "0"], ["training.epochs", "0", "from 1 to 100000"]),
        (["run", "--training.epochs", "many"], ["training.epochs", "many", "whole number"]),
        (["run", "--training.time-limit", "5 min"], ["training.time_limit", "5 min", "20m"]),
        (["run", "--model.size", "huge"], ["model.size", "huge", "'h'"]),
        (["run", "--model.name", "vti"], ["vti", "Did you mean 'vit'"]),
        (["down", "now", "please"], ["Unexpected argument 'now please'", "--help"]),
        (["run", "--training.refit", "false"], ["Write --training.refit=false."]),
        (["run", "x", "--rehearse", "no"], ["Write --rehearse=no."]),
        (
            ["run", "x", "--evaluation.explanations", "false"],
            ["Write --evaluation.explanations=false."],
        ),
        (["run", "--model.patch-embedding.name", "konv"], ["konv", "conv"]),
        (["run", "--model.patch-embedding.patch-sise", "4"], ["patch-sise", "patch-size"]),
        (["run", "--data.source", "digit"], ["digit", "digits"]),
        (["run", "--augmentation.name", "heavy"], ["heavy", "light"]),
        (["run", "--preset", "quik"], ["quik", "quick"]),
        (["run", "--config", "none.yaml"], ["none.yaml", "does not exist"]),
        (["run", "--name", "my model!"], ["my model!", "letters"]),
        (["run", "--data.options.sise", "3"], ["--data.options.sise"]),
        (["run", "--plugin", "none.py"], ["none.py", "does not exist"]),
        (["rum"], ["rum", "run"]),
        (["plugins", "show", "vitt"], ["vitt"]),
        (["models", "roses"], ["roses", "No models are registered yet."]),
        (["predict", "roses", "a.png"], ["a.png", "Check the path"]),
        (["predict", "roses@", "."], ["roses@", "NAME@ALIAS"]),
        (["data", "inspect", "none"], ["none", "Check the path"]),
        (["data", "watch", "none", "--quiet-seconds", "-1"], ["--quiet-seconds is -1"]),
        (["predict"], ["MODEL"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_line_is_answered_at_once(
    ended: Command, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    """The value, the rule and the remedy stand in one sentence; exit code 2."""
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    _refused(ended(*arguments), *words)
    _nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("training:\n  epochz: 3\n", ["training.epochz", "training.epochs"]),
        ("training: {epochs: 3\n", ["line", "not YAML"]),
        ("- 1\n", ["holds no settings"]),
        ("model: {name: vit, depht: 3}\n", ["model.depht", "model.depth"]),
        ("optimizer: {learning_rate: -1}\n", ["optimizer.learning_rate", "-1", "greater than 0"]),
        ("model: 3\n", ["model", "3", "group of settings"]),
    ],
)
def test_a_wrong_config_file_names_the_setting(
    ended: Command, tmp_path: Path, text: str, words: list[str]
) -> None:
    """A misspelt key is answered with the nearest one, a bad value with the rule."""
    (tmp_path / "run.yaml").write_text(text, encoding="utf-8")
    _refused(ended("run", "--config", "run.yaml"), *words)
    _nothing_left(tmp_path)


def test_a_process_of_its_own_answers_the_same(tmp_path: Path) -> None:
    """The exit code, the one sentence on standard error, and nothing on standard output."""
    done = patchline("run", "no/such/folder", cwd=tmp_path)
    _refused(done, "no/such/folder", "Check the path")
    _nothing_left(tmp_path)


@pytest.mark.usefixtures("prefect_server")
def test_an_empty_folder_and_one_class_only_are_refused(ended: Command, tmp_path: Path) -> None:
    """A folder without classes, and one with a single class, are answered at once."""
    (tmp_path / "empty").mkdir()
    _refused(ended("run", "empty"), "empty", "class folder")
    write_photos(tmp_path / "single", classes=1)
    _refused(ended("run", "single"), "only one class", "across", "two folders")
    _nothing_left(tmp_path)


@pytest.mark.usefixtures("prefect_server")
def test_a_class_without_a_readable_image_is_named(ended: Command, tmp_path: Path) -> None:
    """A class whose files are all damaged stops the run with its name and a file's reason."""
    write_photos(tmp_path / "photos", images=6)
    (tmp_path / "photos" / "broken").mkdir()
    (tmp_path / "photos" / "broken" / "a.jpg").write_bytes(b"\xff\xd8\xff\xe0 cut off")
    _refused(ended("run", "photos"), "'broken'", "broken/a.jpg")
    _nothing_left(tmp_path, images_were_read=True)


@pytest.mark.usefixtures("prefect_server")
def test_fewer_images_than_splits_are_refused(ended: Command, tmp_path: Path) -> None:
    """A class with two images cannot be trained, chosen and tested on."""
    write_photos(tmp_path / "photos", images=6)
    (tmp_path / "photos" / "rare").mkdir()
    for number in range(2):
        Image.new("RGB", (32, 32), (number, 0, 0)).save(tmp_path / f"photos/rare/{number}.png")
    _refused(ended("run", "photos"), "'rare'", "2 usable images", "3 splits")
    _nothing_left(tmp_path, images_were_read=True)


@pytest.mark.usefixtures("prefect_server")
def test_a_patch_size_that_does_not_divide_the_image_is_refused(
    ended: Command, tmp_path: Path
) -> None:
    """The sentence names the patch size, the image and the sizes that fit."""
    write_photos(tmp_path / "photos", images=6)
    done = ended("run", "photos", "--preset=none", "--model.patch-embedding.patch-size", "5")
    _refused(done, "patch_size 5", "32x32", "4, 8, 16")
    _nothing_left(tmp_path, images_were_read=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB."""
    with mounted(tmp_path / "disk", mebibytes=1) as place:
        yield place


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_sentence(
    tmp_path: Path, small_disk: Path, prefect_server: str
) -> None:
    """A store that does not fit is an error at run time, and leaves no part of itself."""
    write_photos(tmp_path / "photos", images=50, side=64)
    server = {"PREFECT_API_URL": prefect_server}
    done = patchline("run", tmp_path / "photos", cwd=small_disk, env=server)
    _refused(done, "no space left", "Free some", code=1)
    assert not list(small_disk.glob(".patchline/prepared/[!.]*"))
    assert not list(small_disk.glob(".patchline/prepared/.building*"))


@pytest.mark.usefixtures("prefect_server")
def test_a_read_only_disk_ends_the_run_with_a_sentence(tmp_path: Path, small_disk: Path) -> None:
    """A folder that may not be written is named."""
    write_photos(tmp_path / "photos", images=6)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = patchline_here("run", tmp_path / "photos", "--preset=none", cwd=small_disk)
    _refused(done, str(small_disk), "may not be written", code=1)
