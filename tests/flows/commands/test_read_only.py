"""A workspace that may not be written can be read, and keeps every byte."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from patchline.pipeline.workspace.relocation import following
from tests.conftest import Finished, Run, contents, write_photos
from tests.patience import patient

_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
_INSPECT = ("data", "inspect", "few", "--out", "PAGE", "--json")
_COMMANDS = (
    ("models", "--json"),
    ("predict", "photos/1", "PHOTO", "--json"),
    ("clean", "--json"),
    ("clean", "--yes"),
    ("promote", "photos"),
    ("run", "photos"),
    _INSPECT,
    ("data", "inspect", "photos"),
)
_SCRIPT = """
import contextlib, io, json, sys
import patchline
from patchline.flows.command_line import run_command_line
for arguments in json.loads(sys.argv[1]):
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        code = run_command_line(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
for call in (patchline.promote, patchline.evaluate, patchline.run, patchline.rehearse):
    try:
        call("photos", *(["photos"] if call is patchline.evaluate else []))
    except patchline.RunError as error:
        print(json.dumps([1, call.__name__, str(error)]))
print(json.dumps([len(patchline.models()), "", ""]))
"""


Answers = dict[tuple[str, ...], Finished]


@pytest.fixture(scope="module")
def answers(finished_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Run commands in a workspace that is mounted read-only; none changes a byte of it."""
    folder = tmp_path_factory.mktemp("disk") / "read only?"
    shutil.copytree(finished_run.folder, folder)
    write_photos(folder / "few", classes=2, images=4, side=16)
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
    before = contents(folder)
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False,
        timeout=patient(300),
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert len(lines) == len(_COMMANDS) + 5, done.stderr
    for _, name, sentence in map(json.loads, lines[-5:-1]):  # the same holds for Python
        assert f"may not be written, and `patchline.{name}()` writes to it" in sentence
    assert json.loads(lines[-1])[0] == 1
    assert contents(folder) == before
    done_each = [Finished(*json.loads(line)) for line in lines[: len(_COMMANDS)]]
    each = dict(zip(_COMMANDS, done_each, strict=True))
    inspected = each[_INSPECT]
    assert (page / "inspection.html").is_file(), inspected.err  # it goes where the user says
    return each


def test_models_are_listed_and_used(answers: Answers) -> None:
    """`models` and `predict` answer, and `clean` lists what may go; data is inspected elsewhere."""
    listed, predicted, clean, *_, inspected, refused = (answers[command] for command in _COMMANDS)
    assert [model["name"] for model in listed.json["models"]] == ["photos"]
    assert "is read-only: this command records nothing in it" in listed.err
    assert predicted.json["predictions"][0]["label"] in {"across", "down", "rising"}
    assert [done.code for done in (listed, predicted, clean, inspected, refused)] == [0, 0, 0, 0, 2]
    assert clean.json["removed"] is False
    assert "Set --out to a folder that you may write to" in refused.err


@pytest.mark.parametrize("command", [("clean", "--yes"), ("promote", "photos"), ("run", "photos")])
def test_a_command_that_writes_is_refused_in_one_sentence(
    answers: Answers, command: tuple[str, ...]
) -> None:
    """It names the command and the remedy, before any work."""
    refused = answers[command]
    named = "clean --yes" if command[0] == "clean" else command[0]
    assert refused.code == 1
    assert f"may not be written, and `patchline {named}` writes to it" in refused.err
    assert "Traceback" not in refused.err
    assert refused.err.count("Error:") == 1
