"""Workers are started by the launcher of the enclosing block, and by this machine without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Resources, WorkerTask
from patchline.pipeline.workers.worker_start import LocalLauncher, LocalWorker
from patchline.pipeline.workspace.run_memory import stage_keys
from tests.pipeline.workers.echo_worker import ECHO, Question


class Recording(LocalLauncher):
    """A launcher of this machine that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def start(self, task: WorkerTask) -> LocalWorker:
        self.told.append(task)
        return super().start(task)

    def close(self) -> None:
        self.told.append("closed")


def test_a_launcher_is_that_of_the_block() -> None:
    """A run inside a command shares its launcher, which the outer block closes.

    One that fails to build leaves the one before.
    """
    made, second = Recording(), Recording()

    def fail() -> LocalLauncher:
        raise ValueError("no cluster")

    with worker_start.use_launcher("same", lambda: made):
        with worker_start.use_launcher("same", lambda: second) as inner:
            assert inner is made
        assert made.told == []
        with worker_start.use_launcher("another", lambda: second):
            assert worker_start.current_launcher() is second
        with (
            pytest.raises(ValueError, match="no cluster"),
            worker_start.use_launcher("broken", fail),
        ):
            pass
        assert worker_start.current_launcher() is made
    assert (made.told, second.told) == (["closed"], ["closed"])
    assert isinstance(worker_start.current_launcher(), LocalLauncher)


def test_a_worker_is_run_by_the_launcher_of_the_block(tmp_path: Path) -> None:
    """It gets the module, the absolute folder and what the worker needs, and is closed."""
    made, needs = Recording(), Resources(gpus=2, processes=2)
    with worker_start.use_launcher("recording", lambda: made):
        answer = ECHO.run(tmp_path / "job", Question(words="a"), resources=needs)
    assert answer.words == "a"
    assert made.told == [WorkerTask(ECHO.module, tmp_path / "job", needs), "closed"]
    assert not isinstance(worker_start.current_launcher(), Recording)


def test_where_a_run_computes_is_no_part_of_a_key() -> None:
    """A result that one launcher has computed is used again with another."""
    config = RunConfig()
    elsewhere = config.model_copy(update={"launcher": PluginChoice(name="ray")})
    assert config.flat() != elsewhere.flat()
    assert stage_keys.all_settings(config) == stage_keys.all_settings(elsewhere)
    assert len(stage_keys.all_settings(config)) == len(config.flat()) - 1
