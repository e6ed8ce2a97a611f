"""A workspace that may not be written can be read, and keeps every byte."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from patchline.pipeline.relocation import following
from tests.conftest import Finished, Run
from tests.patience import patient

_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
_COMMANDS = (
    ("models", "--json"),
    ("predict", "photos/1", "PHOTO", "--json"),
    ("clean", "--json"),
    ("clean", "--yes"),
    ("promote", "photos"),
    ("run", "photos"),
    ("data", "inspect", "photos", "--out", "PAGE", "--json"),
    ("data", "inspect", "photos"),
)
_SCRIPT = """
import contextlib, io, json, sys
from patchline.flows.command_line import run_command_line
for arguments in json.loads(sys.argv[1]):
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = run_command_line(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Read(NamedTuple):
    """What commands have answered in a workspace that may not be written."""

    answers: dict[tuple[str, ...], Finished]
    before: dict[str, bytes]
    after: dict[str, bytes]
    page: Path


@pytest.fixture(scope="module")
def read(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Run commands in a workspace that is mounted read-only."""
    folder = tmp_path_factory.mktemp("disk") / "read only?"
    shutil.copytree(finished_run.folder, folder)
    with contextlib.chdir(folder):
        following.follow()
    page = tmp_path_factory.mktemp("elsewhere") / "page"
    photo = next((folder / "photos" / "down").iterdir())
    given = {"PHOTO": str(photo), "PAGE": str(page)}
    asked = [[given.get(word, word) for word in command] for command in _COMMANDS]
    words = [sys.executable, "-P", "-c", _SCRIPT, json.dumps(asked)]
    if os.getuid() == 0:  # permissions do not bind root
        mounted = ["unshare", "--mount", "sh", "-c", _MOUNT, str(folder)]
        if subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted read-only here")
        words = [*mounted, *words]
    else:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
    before = _everything(folder)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=patient(300),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(_COMMANDS), done.stderr
    answers = [Finished(*json.loads(line)) for line in lines]
    return Read(dict(zip(_COMMANDS, answers, strict=True)), before, _everything(folder), page)


def _everything(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_models_are_listed_and_used(read: Read) -> None:
    """`models` and `predict` answer, from the workspace's own files."""
    listed, predicted = (read.answers[command] for command in _COMMANDS[:2])
    assert listed.code == 0, listed.err
    assert [model["name"] for model in listed.json["models"]] == ["photos"]
    assert "is read-only: this command records nothing in it" in listed.err
    assert predicted.code == 0, predicted.err
    assert predicted.json["predictions"][0]["label"] in {"across", "down", "rising"}


def test_no_command_changes_a_byte(read: Read) -> None:
    """Neither those that answer nor those that are refused."""
    assert read.after == read.before


def test_clean_lists_what_may_go_and_only_its_removal_is_refused(read: Read) -> None:
    """Without --yes the command only reads."""
    listed = read.answers["clean", "--json"]
    assert listed.code == 0, listed.err
    assert listed.json["removed"] is False
    assert {each["kind"] for each in listed.json["items"]} == {"checkpoint"}
    assert any(name.endswith("last.safetensors") for name in read.after)


@pytest.mark.parametrize("command", [("clean", "--yes"), ("promote", "photos"), ("run", "photos")])
def test_a_command_that_writes_is_refused_in_one_sentence(
    read: Read, command: tuple[str, ...]
) -> None:
    """It names the command and the remedy, before any work."""
    refused = read.answers[command]
    named = "clean --yes" if command[0] == "clean" else command[0]
    assert refused.code == 1
    assert f"may not be written, and `patchline {named}` writes to it" in refused.err
    assert "Traceback" not in refused.err
    assert refused.err.count("Error:") == 1


def test_data_is_inspected_into_another_folder(read: Read) -> None:
    """The page goes where the user says; without a place for it, one sentence says so."""
    inspected, refused = (read.answers[command] for command in _COMMANDS[-2:])
    assert inspected.code == 0, inspected.err
    assert Path(inspected.json["page"]).is_file()
    assert Path(inspected.json["page"]).parent == read.page
    assert refused.code == 2
    assert "Set --out to a folder that you may write to" in refused.err
