"""Conformance checks of a launcher: it runs a worker, streams what it writes, and stops it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from patchline.pipeline.files.workspace_folder import make_folder
from patchline.pipeline.plugin_system.contract.checks import Rule, require
from patchline.plugin_api import (
    Launcher,
    LauncherContext,
    LauncherPlugin,
    PluginConfig,
    Resources,
    RunningWorker,
    WorkerTask,
)

_MODULE = "patchline.pipeline.plugin_system.contract.checked_worker"
_RESOURCES = Resources(cpus=1)
_LONGEST_SECONDS = 120.0
_POLL_SECONDS = 0.05
_STAYS_AWAY_SECONDS = 0.4
_KILLED = 7
"""The exit code of the checked worker that is told to fail."""


class LauncherChecks:
    """Conformance checks of a launcher, with a small worker that does what its job says."""

    def __init__(self, plugin: LauncherPlugin[Any], settings: PluginConfig) -> None:
        self.plugin, self.settings = plugin, settings
        self._workspace = Path(tempfile.mkdtemp()).resolve()
        weakref.finalize(self, shutil.rmtree, self._workspace, ignore_errors=True)

    def rules(self) -> list[Rule]:
        """Return the checks in the order in which they run."""
        return [
            ("builds_without_starting", self.builds_without_starting),
            ("runs_a_worker", self.runs_a_worker),
            ("returns_the_exit_code", self.returns_the_exit_code),
            ("streams_what_is_written", self.streams_what_is_written),
            ("stops_a_worker", self.stops_a_worker),
            ("closes_twice", self.closes_twice),
        ]

    def refuse_settings(self) -> None:
        """Accept all settings."""

    def builds_without_starting(self) -> None:
        """Building and closing it needs no cluster, and it has a place for at least one worker."""
        launcher = self.plugin.build(self.settings, LauncherContext(self._workspace))
        launcher.close()

    def runs_a_worker(self) -> None:
        """A worker runs to its end, and its result is in its folder when the exit code is."""
        with self._launcher() as launcher:
            slots = launcher.slots(_RESOURCES)
            require(slots >= 1, f"slots returns {slots}. Return at least 1.")
            folder, worker = self._started(launcher, "result", "done")
            with _stopped(worker):
                code = _waited(worker)
            require(code == 0, f"The exit code of a worker that succeeds is {code}, not 0.")
            result = folder / "result.json"
            require(result.is_file(), "poll returned 0, but there is no result.json yet.")

    def returns_the_exit_code(self) -> None:
        """The exit code is that of the worker."""
        with self._launcher() as launcher:
            _, worker = self._started(launcher, "code", "fail")
            with _stopped(worker):
                code = _waited(worker)
            require(code == _KILLED, f"The worker exited with {_KILLED}, but poll returns {code}.")

    def streams_what_is_written(self) -> None:
        """Lines of events.jsonl appear while the worker runs, each once."""
        with self._launcher() as launcher:
            folder, worker = self._started(launcher, "stream", "wait")
            with _stopped(worker):
                lines = _lines_of(folder, worker)
            require(
                lines == ["1", "2", "3"],
                f"The worker wrote 1, 2, 3 to events.jsonl and waits; there is {lines}.",
            )

    def stops_a_worker(self) -> None:
        """A stopped worker writes nothing more; stopping it again does nothing."""
        with self._launcher() as launcher:
            folder, worker = self._started(launcher, "stop", "beat")
            with _stopped(worker):
                _lines_of(folder, worker)
            beats = (folder / "events.jsonl").read_bytes()
            time.sleep(_STAYS_AWAY_SECONDS)
            later = (folder / "events.jsonl").read_bytes()
            require(beats == later, "A worker still writes after stop has returned.")
            worker.stop()

    def closes_twice(self) -> None:
        """A launcher that is closed may be closed again."""
        launcher = self.plugin.build(self.settings, LauncherContext(self._workspace))
        launcher.close()
        launcher.close()

    @contextmanager
    def _launcher(self) -> Iterator[Launcher]:
        launcher = self.plugin.build(self.settings, LauncherContext(self._workspace))
        try:
            yield launcher
        finally:
            launcher.close()

    def _started(self, launcher: Launcher, name: str, what: str) -> tuple[Path, RunningWorker]:
        folder = self._workspace / f"{name}-{os.getpid()}-{time.monotonic_ns()}"
        make_folder(folder)
        (folder / "job.json").write_text(f'"{what}"', encoding="utf-8")
        return folder, launcher.start(WorkerTask(_MODULE, folder, _RESOURCES))


@contextmanager
def _stopped(worker: RunningWorker) -> Iterator[None]:
    try:
        yield
    finally:
        worker.stop()


def _waited(worker: RunningWorker) -> int:
    until = time.monotonic() + _LONGEST_SECONDS
    while (code := worker.poll()) is None:
        require(time.monotonic() < until, "The worker has not ended after two minutes.")
        time.sleep(_POLL_SECONDS)
    return code


def _lines_of(folder: Path, worker: RunningWorker) -> list[str]:
    """Return the lines that appear within the time limit; at least three are waited for."""
    until, file = time.monotonic() + _LONGEST_SECONDS, folder / "events.jsonl"
    while True:
        code = worker.poll()
        require(code is None, f"The worker ended with {code}, but it was told to wait.")
        lines = file.read_text(encoding="utf-8").split() if file.exists() else []
        if len(lines) >= 3:  # noqa: PLR2004 - the worker writes three
            return lines
        require(time.monotonic() < until, "What the worker writes does not appear.")
        time.sleep(_POLL_SECONDS)
