"""Faulty launchers, each for the check that finds it."""

from __future__ import annotations

import time
from typing import Any

from patchline.plugin_api import (
    LauncherPlugin,
    LocalLauncher,
    PluginConfig,
    Resources,
    RunningWorker,
    WorkerTask,
)
from tests.pipeline.plugin_system.contract.faults import Fault


class NoSettings(PluginConfig):
    """There is nothing to set."""


def _plugin(launcher: type[LocalLauncher]) -> LauncherPlugin[Any]:
    return LauncherPlugin("For the tests", "", NoSettings, lambda *_: launcher())


class Wrapped:
    """A worker of this machine, for faults."""

    def __init__(self, worker: RunningWorker, task: WorkerTask) -> None:
        self.worker, self.task = worker, task

    def poll(self) -> int | None:
        return self.worker.poll()

    def stop(self) -> None:
        self.worker.stop()


class NoSlots(LocalLauncher):
    """Has no place for any worker."""

    def slots(self, _resources: Resources) -> int:
        return 0


class SharesNothing(LocalLauncher):
    """Does not say whether its workers see the workspace."""

    shares_workspace = None  # type: ignore[assignment]  # the fault


class ForgetsResults(LocalLauncher):
    """Says that a worker has ended before its result is there."""

    def start(self, task: WorkerTask) -> Any:
        class Late(Wrapped):
            def poll(self) -> int | None:
                code = super().poll()
                (self.task.folder / "result.json").unlink(missing_ok=True)
                return code

        return Late(super().start(task), task)


class AlwaysSucceeds(LocalLauncher):
    """Takes every end for a success."""

    def start(self, task: WorkerTask) -> Any:
        class Fine(Wrapped):
            def poll(self) -> int | None:
                return None if super().poll() is None else 0

        return Fine(super().start(task), task)


class RepeatsLines(LocalLauncher):
    """Copies the first line again."""

    def start(self, task: WorkerTask) -> Any:
        class Twice(Wrapped):
            def poll(self) -> int | None:
                file = self.task.folder / "events.jsonl"
                if file.exists() and file.read_text().startswith("1\n2\n3\n"):
                    file.write_text("1\n1\n2\n3\n")
                return super().poll()

        return Twice(super().start(task), task)


class NeverStops(LocalLauncher):
    """Leaves its workers alone until it is closed."""

    def __init__(self) -> None:
        self.left: list[RunningWorker] = []

    def start(self, task: WorkerTask) -> Any:
        worker = super().start(task)
        self.left.append(worker)

        class Stubborn(Wrapped):
            def stop(self) -> None:
                time.sleep(0)

        return Stubborn(worker, task)

    def close(self) -> None:
        for worker in self.left:
            worker.stop()


class ClosesOnce(LocalLauncher):
    """Cannot be closed again."""

    def __init__(self) -> None:
        self.is_open = True

    def close(self) -> None:
        if not self.is_open:
            raise RuntimeError("it is closed")
        self.is_open = False


SOUND = _plugin(LocalLauncher)
FAULTS = [
    Fault("no slots", _plugin(NoSlots), "runs_a_worker", "at least 1"),
    Fault("shares nothing", _plugin(SharesNothing), "runs_a_worker", "'NoneType' object is not"),
    Fault("forgets results", _plugin(ForgetsResults), "runs_a_worker", "no result.json"),
    Fault("always succeeds", _plugin(AlwaysSucceeds), "runs_a_worker", "poll returns 0"),
    Fault(
        "repeats lines", _plugin(RepeatsLines), "streams_until_it_is_stopped", "there is ['1', '1'"
    ),
    Fault("never stops", _plugin(NeverStops), "streams_until_it_is_stopped", "still writes"),
    Fault("closes once", _plugin(ClosesOnce), "closes_twice", "it is closed"),
]
