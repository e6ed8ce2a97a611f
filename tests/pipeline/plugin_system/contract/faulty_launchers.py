"""Faulty launchers, each with its check and a part of what the check says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from patchline.plugin_api import (
    LauncherPlugin,
    LocalLauncher,
    PluginConfig,
    Resources,
    RunningWorker,
    WorkerTask,
)


class NoSlots(LocalLauncher):
    def slots(self, _resources: Resources) -> int:
        return 0


class SharesNothing(LocalLauncher):
    shares_workspace = None  # type: ignore[assignment]  # the fault


class Changed(LocalLauncher):
    """Changes what its workers answer and leave behind; they stop when it is closed."""

    def __init__(self, change: Callable[[WorkerTask, int | None], int | None]) -> None:
        self.change, self.left = change, list[RunningWorker]()

    def start(self, task: WorkerTask) -> Any:
        worker, change = super().start(task), self.change
        self.left.append(worker)

        class Wrapped:
            def poll(self) -> int | None:
                return change(task, worker.poll())

            def stop(self) -> None:
                time.sleep(0)

        return Wrapped()

    def close(self) -> None:
        for worker in self.left:
            worker.stop()


class ClosesOnce(LocalLauncher):
    is_open = True

    def close(self) -> None:
        if not self.is_open:
            raise RuntimeError("it is closed")
        self.is_open = False


def _without_result(task: WorkerTask, code: int | None) -> int | None:
    (task.folder / "result.json").unlink(missing_ok=True)
    return code


def _repeated_line(task: WorkerTask, code: int | None) -> int | None:
    file = task.folder / "events.jsonl"
    if file.exists() and file.read_text().startswith("1\n2\n3\n"):
        file.write_text("1\n1\n2\n3\n")
    return code


def _plugin(launcher: Callable[[], LocalLauncher]) -> Any:
    return LauncherPlugin("For the tests", "", PluginConfig, lambda *_: launcher())


def _changed(change: Callable[[WorkerTask, int | None], int | None]) -> Any:
    return _plugin(lambda: Changed(change))


_RUNS, _STREAMS = "runs_a_worker", "streams_until_it_is_stopped"
FAULTS = {
    "no slots": (_plugin(NoSlots), _RUNS, "at least 1"),
    "shares nothing": (_plugin(SharesNothing), _RUNS, "'NoneType' object is not"),
    "forgets results": (_changed(_without_result), _RUNS, "no result.json"),
    "always succeeds": (_changed(lambda _, code: code and 0), _RUNS, "poll returns 0"),
    "repeats lines": (_changed(_repeated_line), _STREAMS, "there is ['1', '1'"),
    "never stops": (_changed(lambda _, code: code), _STREAMS, "still writes"),
    "closes once": (_plugin(ClosesOnce), "closes_twice", "it is closed"),
}
