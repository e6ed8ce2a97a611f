"""Continue in a workspace that was created by an older commit.

    python -m benchmarks.upgrade [COMMIT] [--folder FOLDER]

The code of the older commit is taken out of the repository's history and run beside this one, with
the same packages. In a fresh folder it trains a champion, keeps a schedule and a watch, and leaves
a run whose process was killed. Then this code takes over: it must list, resume, predict, promote,
fire the schedule and see new images in the watched folder. Ends with code 1 if something is lost.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measured_runs import machine
from pipeline.workspace import WORKSPACE

_REPOSITORY = Path(__file__).resolve().parents[1]
_OLD_COMMIT = "a56fb4b"
_WAIT_SECONDS = 900.0
_CHECKPOINT = "last.safetensors"
_SETTINGS = """\
name: nightly
data: {path: photos, source: image_folder, image_size: 32}
model: {name: vit, embed_dim: 32, depth: 2, num_heads: 2}
training: {epochs: 2}
"""


class Workspace:
    """A folder in which two versions of the code work, one after the other."""

    def __init__(self, folder: Path, old_code: Path) -> None:
        self.folder = folder
        self._old_code = old_code
        self.lost: list[str] = []

    def old(self, *arguments: str) -> str:
        """Run a command of the older code and return what it prints."""
        return self._command(self._old_code, arguments)

    def new(self, *arguments: str) -> str:
        """Run a command of this code and return what it prints."""
        return self._command(_REPOSITORY, arguments)

    def start_old(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of the older code in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "flows.command_line", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self._old_code)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def check(self, what: str, look: Callable[[], object]) -> None:
        """Say whether something holds, and remember it if not."""
        try:
            holds, words = bool(look()), ""
        except subprocess.CalledProcessError as error:
            holds, words = False, f": {error.stderr.strip()[-300:]}"
        except (KeyError, IndexError, ValueError) as error:
            holds, words = False, f": {error!r}"
        print(f"{'ok  ' if holds else 'LOST'}  {what}{words}", flush=True)
        if not holds:
            self.lost.append(what)

    def versions(self, name: str) -> list[dict[str, Any]]:
        """Return the versions of a registered model, as this code lists them."""
        found = json.loads(self.new("models", name, "--json"))
        versions: list[dict[str, Any]] = found["models"][0]["versions"]
        return versions

    def _command(self, code: Path, arguments: tuple[str, ...]) -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "flows.command_line", *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(code)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout


def _old_code(commit: str, target: Path) -> Path:
    archive = subprocess.run(
        ["git", "archive", commit], cwd=_REPOSITORY, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
        opened.extractall(target, filter="data")
    return target


def _write_photos(folder: Path, images: int) -> None:
    from tests.conftest import write_photos

    write_photos(folder, images=images)


def _leave(workspace: Workspace) -> None:
    """Do with the older code what a user has done before the upgrade."""
    folder = workspace.folder
    _write_photos(folder / "photos", 20)
    _write_photos(folder / "inbox", 20)
    (folder / "run.yaml").write_text(_SETTINGS, encoding="utf-8")
    settings = ["--model.embed-dim", "32", "--model.depth", "2", "--model.num-heads", "2"]
    workspace.old("run", "photos", *settings, "--training.epochs", "2")
    command = workspace.start_old("run", "photos", *settings, "--training.epochs", "5000")
    try:
        _until(lambda: _trainings_under_way(folder), "the training never wrote a checkpoint")
        time.sleep(3)
    finally:
        os.killpg(command.pid, signal.SIGKILL)
        command.wait()
    workspace.old("up")
    workspace.old("schedule", "create", "nightly", "--cron", "0 2 * * *", "--config", "run.yaml")
    workspace.old("data", "watch", "inbox", "--config", "run.yaml", "--name", "inbox-watch")
    workspace.old("down")


def _until(look: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise SystemExit(otherwise)
        time.sleep(2)


def _happens(look: Callable[[], object]) -> bool:
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        if look():
            return True
        time.sleep(5)
    return False


def _number_of(workspace: Workspace, name: str) -> int:
    """Return how many versions a model has; none if it is not registered."""
    try:
        return len(workspace.versions(name))
    except (subprocess.CalledProcessError, IndexError):
        return 0


def _take_over(workspace: Workspace) -> None:
    folder, photo = workspace.folder, "photos/down/000.png"
    workspace.check(
        "the champion is known",
        lambda: workspace.versions("photos")[0]["aliases"] == ["challenger", "champion"],
    )
    workspace.check("it predicts", lambda: "down" in workspace.new("predict", "photos", photo))
    workspace.check("the killed run is resumed", lambda: _resume(workspace))
    workspace.new("up")
    try:
        workspace.check(
            "the schedule and the watch are listed",
            lambda: (
                {
                    each["name"]
                    for each in json.loads(workspace.new("schedule", "list", "--json"))["schedules"]
                }
                == {"nightly", "inbox-watch"}
            ),
        )
        known = _number_of(workspace, "nightly")
        workspace.new("schedule", "run-now", "nightly")
        workspace.check(
            "the schedule's run registers a version",
            lambda: _happens(lambda: _number_of(workspace, "nightly") > known),
        )
        before = _number_of(workspace, "nightly")
        _write_photos(folder / "inbox", 30)
        workspace.check(
            "the watch trains on new images",
            lambda: _happens(lambda: _number_of(workspace, "nightly") > before),
        )
    finally:
        workspace.new("down")


def _trainings_under_way(folder: Path) -> list[Path]:
    """Return the folders of training runs that have written a checkpoint and no result."""
    checkpoints = folder.glob(f"{WORKSPACE}/runs/*/training/{_CHECKPOINT}")
    return [file.parent for file in checkpoints if not (file.parent / "result.json").exists()]


def _killed_run(folder: Path) -> str:
    """Return the id of the run whose training was killed."""
    [training] = _trainings_under_way(folder)
    return str(json.loads((training / "job.json").read_text(encoding="utf-8"))["run_id"])


def _resume(workspace: Workspace) -> bool:
    """Resume the killed run for a while: what counts is that it is accepted and trains on."""
    run_id = _killed_run(workspace.folder)
    resumed = subprocess.Popen(
        [sys.executable, "-P", "-m", "flows.command_line", "run", "--resume", run_id],
        cwd=workspace.folder,
        env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = []
    for line in resumed.stderr or ():
        said.append(line)
        if "Training steps" in line or "images/s" in line:
            resumed.send_signal(signal.SIGTERM)  # a background job ignores SIGINT
            resumed.wait()
            return True
    resumed.wait()
    print("".join(said[-5:]), flush=True)
    return False


def main() -> int:
    """Return 0 if nothing is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit", nargs="?", default=_OLD_COMMIT)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="patchline-upgrade-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{machine()}; from {given.commit}, in {folder}", flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-old-") as old:
        workspace = Workspace(folder, _old_code(given.commit, Path(old)))
        _leave(workspace)
        _take_over(workspace)
    print(f"{len(workspace.lost)} lost")
    return 1 if workspace.lost else 0


if __name__ == "__main__":
    sys.exit(main())
