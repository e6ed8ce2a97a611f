"""A disk that is full when the servers start, or fills up while they and a run are active."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import psutil
import pytest

from tests.conftest import write_photos
from tests.flows.services.local_servers import Servers, ended, mlflow_client, until
from tests.small_disks import small_disk

pytestmark = pytest.mark.slow


def _processes(folder: Path) -> list[psutil.Process]:
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if str(folder) in (each.info["cmdline"] or []) and each.status() != psutil.STATUS_ZOMBIE
    ]


def test_up_on_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    """Neither database fits: one sentence, and no process stays."""
    with small_disk(tmp_path / "disk", mebibytes=2) as folder:
        done = Servers(folder, {}).up()
        assert done.code == 1
        assert done.err.splitlines()[-1].startswith("Error: There is no space left")
        assert "Free some" in done.err
        assert "Traceback" not in done.err
        until(lambda: not _processes(folder), "the end of all processes")


def test_a_run_on_a_disk_that_fills_up_is_closed_when_there_is_space(tmp_path: Path) -> None:
    """The command reports the cause; with free space again both sides agree and the run resumes."""
    write_photos(tmp_path / "photos", images=8)
    with small_disk(tmp_path / "disk", mebibytes=60) as folder:
        servers = Servers(folder)
        try:
            assert servers.up().code == 0
            settings = ("--preset", "none", "--training.epochs", "300", "--model.depth", "1")
            run = servers.begin("run", str(tmp_path / "photos"), *settings)
            until(lambda: list(folder.glob(".patchline/runs/*/training/best*")), "the training")
            _fill(folder / "filler")
            done = ended(run)
            assert done.code == 1
            assert "There is no space left" in done.err.splitlines()[-1]
            (folder / "filler").unlink()
            store = mlflow_client(folder)
            [experiment] = [each for each in store.search_experiments() if each.name == "photos"]

            def status() -> str:
                [only] = store.search_runs([experiment.experiment_id])
                return str(only.info.status)

            until(lambda: status() in {"KILLED", "FAILED"}, "the run's end")
            assert ended(servers.begin("run", "--resume", "last")).code == 0
            assert status() == "FINISHED"
        finally:
            servers.down("--now")


def _fill(file: Path) -> None:
    """Write until nothing more fits."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    assert shutil.disk_usage(file.parent).free < 2**16
