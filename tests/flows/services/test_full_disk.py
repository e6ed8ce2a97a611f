"""A disk that is full when the servers start, or fills up while they and a run are active."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from patchline.flows.services import service_processes
from patchline.pipeline.tracking.tracking_store import client
from tests.conftest import write_photos
from tests.flows.services.local_servers import Servers, ended, serving
from tests.flows.training.begun_runs import only_run
from tests.patience import until
from tests.small_disks import small_disk


@pytest.mark.slow
def test_a_full_disk_ends_a_start_and_a_run_and_both_work_when_there_is_space(
    tmp_path: Path,
) -> None:
    """Each is one sentence, and no process stays; with free space again the run resumes."""
    write_photos(tmp_path / "photos", images=8)
    with small_disk(tmp_path / "disk", mebibytes=60) as folder:
        _fill(folder / "filler")
        _assert_full(ended(Servers(folder).begin_up()).err)
        until(lambda: not service_processes.members(folder), "the end of all processes")
        (folder / "filler").unlink()
        with serving(folder) as servers:
            settings = ("--preset", "none", "--training.epochs", "300", "--model.depth", "1")
            run = servers.begin("run", str(tmp_path / "photos"), *settings)
            until(lambda: list(folder.glob(".patchline/runs/*/training/best*")), "the training")
            _fill(folder / "filler")
            _assert_full(ended(run).err)
            (folder / "filler").unlink()
            with contextlib.chdir(folder):
                store = client()
            until(lambda: only_run(store).info.status in {"KILLED", "FAILED"}, "the run's end")
            assert ended(servers.begin("run", "--resume", "last")).code == 0
            assert only_run(store).info.status == "FINISHED"


def _assert_full(said: str) -> None:
    assert "There is no space left" in said.splitlines()[-1]
    assert "Traceback" not in said


def _fill(file: Path) -> None:
    """Write until nothing more fits."""
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(4096))
    assert shutil.disk_usage(file.parent).free < 2**16
