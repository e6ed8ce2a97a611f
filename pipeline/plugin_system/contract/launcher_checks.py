"""Conformance checks of a launcher: it runs a worker, streams what it writes, and stops it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchline.pipeline.plugin_system.contract.checks import Check, CheckedPlugin, checks, require
from patchline.pipeline.waiting import wait_until
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.plugin_api import LauncherContext, Resources, RunningWorker, WorkerTask

_MODULE = "patchline.pipeline.plugin_system.contract.checked_worker"
_RESOURCES = Resources(cpus=1)
_LONGEST_SECONDS = 120.0
_POLL_SECONDS = 0.05
_STAYS_AWAY_SECONDS = 0.4
_LINES = 5
_CODES = {"done": 0, "fail": 7}
"""The exit code of the checked worker, by its job."""


def table(subject: CheckedPlugin) -> list[Check]:
    """Return the checks of a launcher, with a small worker that does what its job says."""
    return checks(subject, runs_a_worker, streams_until_it_is_stopped, closes_twice)


def runs_a_worker(subject: CheckedPlugin) -> None:
    """A worker runs to its end; its exit code is returned once its result is in its folder."""
    for job, expected in _CODES.items():
        with _start_worker(subject, job) as (folder, worker):
            ended = wait_until(
                lambda: worker.poll() is not None,
                _POLL_SECONDS,
                _LONGEST_SECONDS,
            )
            require(ended, "The worker has not ended after two minutes.")
            code = worker.poll()
            require(code == expected, f"The worker exits with {expected}; poll returns {code}.")
            result = folder / "result.json"
            require(code or result.is_file(), "poll returned 0, but there is no result.json yet.")


def streams_until_it_is_stopped(subject: CheckedPlugin) -> None:
    """Lines of events.jsonl appear once each while the worker runs, and none when it is stopped."""
    with _start_worker(subject, "beat") as (folder, worker):
        file = folder / "events.jsonl"

        def has_lines() -> bool:
            code = worker.poll()
            require(code is None, f"The worker ended with {code}, but it was told to wait.")
            return file.exists() and file.read_bytes().count(b"\n") >= _LINES

        appear = wait_until(has_lines, _POLL_SECONDS, _LONGEST_SECONDS)
        require(appear, "What the worker writes does not appear.")
        lines = file.read_text(encoding="utf-8").split("\n")[:-1]
        require(
            lines == [str(number + 1) for number in range(len(lines))],
            f"The worker writes 1, 2, 3 and so on to events.jsonl; there is {lines}.",
        )
        worker.stop()
        beats = file.read_bytes()
        time.sleep(_STAYS_AWAY_SECONDS)
        require(beats == file.read_bytes(), "A worker still writes after stop has returned.")


def closes_twice(subject: CheckedPlugin) -> None:
    """Building it starts nothing; a launcher that is closed may be closed again."""
    launcher = subject.plugin.build(subject.settings, LauncherContext(subject.folder))
    launcher.close()
    launcher.close()


@contextmanager
def _start_worker(subject: CheckedPlugin, job: str) -> Iterator[tuple[Path, RunningWorker]]:
    """Start a worker; it is stopped with its launcher, a second time if the check has done it."""
    launcher = subject.plugin.build(subject.settings, LauncherContext(subject.folder))
    try:
        slots = launcher.slots(_RESOURCES)
        require(slots >= 1, f"slots returns {slots}. Return at least 1.")
        shares = launcher.shares_workspace()
        require(isinstance(shares, bool), f"shares_workspace returns {shares!r}. Return a bool.")
        folder = subject.folder / f"{job}-{uuid.uuid4().hex}"
        make_folder(folder)
        (folder / "job.json").write_text(f'"{job}"', encoding="utf-8")
        worker = launcher.start(WorkerTask(_MODULE, folder, _RESOURCES))
        try:
            yield folder, worker
        finally:
            worker.stop()
    finally:
        launcher.close()
