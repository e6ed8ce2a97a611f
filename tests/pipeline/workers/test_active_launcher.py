"""Workers are started by the launcher of the enclosing block, and by this machine without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.config import PluginChoice, RunConfig
from patchline.pipeline.run_memory import stage_keys
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workers.launcher import Resources, WorkerTask
from patchline.pipeline.workers.local_launcher import LocalLauncher, LocalWorker
from patchline.pipeline.workers.worker_process import run_worker
from tests.pipeline.workers.echo_worker import Answer, Question

MODULE = "tests.pipeline.workers.echo_worker"


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

    with active_launcher.using("same", lambda: made):
        with active_launcher.using("same", lambda: second) as inner:
            assert inner is made
        assert made.told == []
        with active_launcher.using("another", lambda: second):
            assert active_launcher.current() is second
        with pytest.raises(ValueError, match="no cluster"), active_launcher.using("broken", fail):
            pass
        assert active_launcher.current() is made
    assert (made.told, second.told) == (["closed"], ["closed"])
    assert isinstance(active_launcher.current(), LocalLauncher)


def test_a_worker_is_run_by_the_launcher_of_the_block(tmp_path: Path) -> None:
    """It gets the module, the absolute folder and what the worker needs, and is closed."""
    made, needs = Recording(), Resources(gpus=2, processes=2)
    with active_launcher.using("recording", lambda: made):
        answer = run_worker(
            MODULE, tmp_path / "job", Question(words="a"), Answer, lambda _: None, needs
        )
    assert answer.words == "a"
    assert made.told == [WorkerTask(MODULE, tmp_path / "job", needs), "closed"]
    assert not isinstance(active_launcher.current(), Recording)


def test_where_a_run_computes_is_no_part_of_a_key() -> None:
    """A result that one launcher has computed is used again with another."""
    config = RunConfig()
    elsewhere = config.model_copy(update={"launcher": PluginChoice(name="ray")})
    assert config.flat() != elsewhere.flat()
    assert stage_keys.all_settings(config) == stage_keys.all_settings(elsewhere)
    assert len(stage_keys.all_settings(config)) == len(config.flat()) - 1
