"""A workspace that may not be written can be read, and keeps every byte."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import PATCHLINE, Finished, Run
from tests.patience import patient

_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
Command = Callable[..., Finished]


@pytest.fixture(scope="module")
def copied(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a workspace with a model, which no command has seen yet."""
    folder = tmp_path_factory.mktemp("snapshot") / "read only?"
    shutil.copytree(finished_run.folder, folder)
    return folder


@pytest.fixture
def reading(copied: Path) -> Command:
    """Return a function that runs a command in the copy, mounted read-only."""

    def run(*arguments: str | Path) -> Finished:
        words = [str(PATCHLINE), *map(str, arguments)]
        if os.getuid() == 0:  # permissions do not bind root
            words = ["unshare", "--mount", "sh", "-c", _MOUNT, str(copied), *words]
        environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
        done = subprocess.run(
            words, cwd=copied, env=environment, capture_output=True, text=True, check=False,
            timeout=patient(200),
        )  # fmt: skip
        return Finished(done.returncode, done.stdout, done.stderr)

    if os.getuid() == 0:
        probe = ["unshare", "--mount", "sh", "-c", _MOUNT, str(copied), "true"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted read-only here")
    else:
        subprocess.run(["chmod", "-R", "a-w", str(copied)], check=True)
    return run


def _everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_models_are_listed_and_used(reading: Command, copied: Path) -> None:
    """`models` and `predict` answer, from the copy's own files, and change nothing."""
    before = _everything(copied)
    listed = reading("models", "--json")
    assert listed.code == 0, listed.err
    [model] = listed.json["models"]
    assert "is read-only: this command records nothing in it" in listed.err
    image = next((copied / "photos" / "down").iterdir())
    predicted = reading("predict", f"{model['name']}/1", image, "--json")
    assert predicted.code == 0, predicted.err
    assert predicted.json["predictions"][0]["label"] in {"across", "down", "rising"}
    assert _everything(copied) == before


def test_clean_lists_what_may_go_and_only_its_removal_is_refused(
    reading: Command, copied: Path
) -> None:
    """Without --yes the command only reads."""
    listed = reading("clean", "--json")
    assert listed.code == 0, listed.err
    assert listed.json["removed"] is False
    assert {each["kind"] for each in listed.json["items"]} == {"checkpoint"}
    refused = reading("clean", "--yes")
    assert refused.code == 1
    assert "may not be written, and `patchline clean --yes` writes to it" in refused.err
    assert list(copied.rglob("last.safetensors"))


def test_a_command_that_writes_is_refused_in_one_sentence(reading: Command) -> None:
    """It names the command and the remedy, before any work."""
    for words in (("promote", "photos"), ("run", "photos")):
        refused = reading(*words)
        assert refused.code == 1
        assert f"may not be written, and `patchline {words[0]}` writes to it" in refused.err
        assert "Traceback" not in refused.err
        assert refused.err.count("Error:") == 1


def test_data_is_inspected_into_another_folder(reading: Command, tmp_path: Path) -> None:
    """The page goes where the user says; without a place for it, one sentence says so."""
    inspected = reading("data", "inspect", "photos", "--out", tmp_path / "page", "--json")
    assert inspected.code == 0, inspected.err
    assert Path(inspected.json["page"]).is_file()
    refused = reading("data", "inspect", "photos")
    assert refused.code == 2
    assert "Set --out to a folder that you may write to" in refused.err
