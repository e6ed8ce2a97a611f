"""A stage that somebody adds, in one file and with one entry in a line, is like any other."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import PREFECT_DATABASE, Finished
from tests.patience import patient

STAGE = '''"""Taste the model."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class TasteInputs:
    evaluated: Evaluated
    run: TrackedRun


class Verdict(FrozenModel):
    words: str
    file: Path


class Taste(Stage[TasteInputs, Verdict]):
    name, task, reads, leaves = "taste", "Taste the model", TasteInputs, Verdict
    code = ("taste",)
    rehearsal = "Tasting a crumb"

    def title(self, context, inputs):
        return "Tasting the model"

    def task_run(self, context, inputs):
        return f"Taste {context.config.name}"

    def key(self, context, inputs):
        return {"accuracy": str(inputs.evaluated.report.accuracy.value)}

    def folder(self, context, inputs, result):
        return inputs.run.folder / "tasting"

    def compute(self, context, inputs):
        poison = Path("poison")
        if poison.exists():
            poison.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        file = self.folder(context, inputs, None) / "verdict.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(WORDS)
        return Verdict(words=WORDS, file=file)

    def tags(self, context, inputs, result):
        return {"verdict": result.words}


WORDS = "good"
TASTE = Taste()
'''
ENTRY = """
import sys

from patchline.flows.command_line import main
from patchline.pipeline.stages import lines
from taste import TASTE

stages = lines.CLASSIFIER.stages
after = 1 + stages.index(lines.EVALUATE)
lines.CLASSIFIER = lines.Line((*stages[:after], TASTE, *stages[after:]))
main()
"""


def run(folder: Path, *arguments: str) -> Finished:
    """Run `patchline run` with the additional stage."""
    database = {PREFECT_DATABASE: f"sqlite+aiosqlite:///{folder / 'prefect.db'}"}
    done = subprocess.run(
        [sys.executable, "entry.py", "run", *arguments],
        cwd=folder,
        env={**os.environ, **database},
        capture_output=True,
        text=True,
        timeout=patient(300.0),
        check=False,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


@pytest.mark.slow
def test_an_added_stage_is_a_task_reused_rehearsed_and_resumed(
    photos: Path, tmp_path: Path
) -> None:
    """Everything that the engine does for a stage, it does for one that it has never heard of."""
    (tmp_path / "taste.py").write_text(STAGE)
    (tmp_path / "entry.py").write_text(ENTRY)
    flags = f"{photos} --preset none --training.epochs 1 --training.threads 1".split()
    rehearsed = run(tmp_path, *flags, "--rehearse")
    assert rehearsed.code == 0, rehearsed.err
    assert "Tasting a crumb" in rehearsed.err

    (tmp_path / "poison").touch()
    killed = run(tmp_path, *flags)
    assert killed.code == -9, killed.err
    assert "Tasting the model" in killed.err

    (tmp_path / "taste.py").write_text(STAGE.replace('"good"', '"very good"'))
    resumed = run(tmp_path, "--resume", "last", "--json")
    assert resumed.code == 0, resumed.err
    assert "the code has changed since it started" in resumed.err
    assert "done before the interruption" in resumed.err
    first = resumed.json
    [folder] = (tmp_path / ".patchline/runs").iterdir()
    assert (folder / "tasting/verdict.txt").read_text() == "very good"

    again = run(tmp_path, *flags, "--json")
    assert again.json["reused"]["taste"] == first["run_id"]
    with closing(sqlite3.connect(tmp_path / "prefect.db")) as prefect:
        states = dict(prefect.execute("SELECT name, state_name FROM task_run ORDER BY rowid"))
    assert states["Taste photos"] == "Cached"
