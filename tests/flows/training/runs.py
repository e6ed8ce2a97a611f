"""Runs of tests: commands that are interrupted, what is left of them, and runs of tiny models."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from PIL import Image

from tests.conftest import PATCHLINE, draw_photo, patchline_here
from tests.patience import patient, until

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SECONDS = patient(300.0)
TINY = (
    "--preset none --training.epochs 2 --data.image-size 16 --model.embed-dim 16 --model.depth 1 "
    "--model.num-heads 2 --evaluation.corruptions 0 --evaluation.explanations=false"
)
SHAPES = f"--data.source shapes --data.options.images 200 {TINY}"


class Begun:
    """A `patchline` command in a process of its own, which Ctrl-C reaches."""

    def __init__(self, folder: Path, arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.said_in = folder / f"said-{time.monotonic_ns()}.txt"
        with self.said_in.open("wb") as stream:
            self.process = subprocess.Popen(
                [str(PATCHLINE), *arguments.split()],
                cwd=folder,
                env={**os.environ, **(env or {})},
                stdout=stream,
                stderr=stream,
                start_new_session=True,
                # A shell lets what it starts in the background ignore SIGINT.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads yet
            )

    def said(self) -> str:
        """Return what it has printed."""
        return self.said_in.read_text("utf-8", errors="replace")

    def wait_until(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so, which has to be before it ends."""

        def is_so() -> bool:
            assert self.process.poll() is None, self.said()
            return bool(condition())

        until(is_so, self.said, seconds=300, pause=0.005)

    def family(self) -> list[psutil.Process]:
        """Return its process and what it has started."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send it a signal, see that no process is left, and return the exit code."""
        family = self.family() if self.process.poll() is None else []
        self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        _, alive = psutil.wait_procs(family, timeout=patient(60))
        assert not alive, [each.cmdline() for each in alive]
        return code


def has_metrics(folder: Path) -> bool:
    """Return whether the fit of a run in a folder has validated once."""
    files = folder.glob(".patchline/runs/*/training/events.jsonl")
    return any('"metrics"' in file.read_text(encoding="utf-8") for file in files)


def store_of(folder: Path) -> MlflowClient:
    """Return a client of the MLflow store in a folder."""
    from mlflow import MlflowClient

    return MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")


def only_run(store: MlflowClient) -> Run:
    """Return the only run of a store."""
    [run] = store.search_runs([each.experiment_id for each in store.search_experiments()])
    return run


def ran(
    folder: Path, arguments: str, env: dict[str, str] | None = None
) -> tuple[dict[str, Any], str]:
    """Run to the end, and return the JSON and what was said."""
    done = patchline_here("run", *arguments.split(), "--json", cwd=folder, env=env)
    assert done.code == 0, done.err
    return done.json, done.err


def refused(folder: Path, arguments: str) -> str:
    """Return the sentence with which a run is refused."""
    done = patchline_here("run", *arguments.split(), cwd=folder)
    assert done.code == 2, done.err
    return done.err


def write_unlabelled(folder: Path) -> None:
    """Write a folder of images without labels."""
    folder.mkdir()
    for number in range(30):
        image = Image.fromarray(draw_photo(number % 3, 60 + number))
        image.save(folder / f"{number}.png")
