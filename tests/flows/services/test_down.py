"""`patchline down`: what it waits for, finds, ends and leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from patchline.flows.services import service_processes, stopping
from patchline.pipeline import local_services
from patchline.pipeline.workspace.files import file_locks
from tests.flows.services.local_servers import Servers, ended, nap, recorded_services
from tests.made.servers import Command
from tests.patience import patient


def test_down_waits_for_a_run_and_may_be_interrupted(servers: Servers) -> None:
    """It names the run; Ctrl-C only ends the waiting: run and servers keep running."""
    with nap(servers.folder) as run:
        down = servers.begin("down")
        assert down.stderr
        line = ""
        while "Waiting for" not in line:
            line = down.stderr.readline()
            assert line, "down ended"
        assert f"a nap (process {run.pid}" in line
        assert "--now" in line
        down.send_signal(signal.SIGINT)
        assert ended(down).code == 130
        assert run.poll() is None
    assert local_services.answers(f"{servers.state.mlflow_url}/health")


def test_down_now_ends_runs_and_servers(servers: Servers) -> None:
    """It ends the run by SIGTERM, then the servers: no process, lock, state or secret is left.

    The file with the state was truncated before. What the servers were opened with opens nothing of
    the next ones.
    """
    before = local_services.secret(servers.folder)
    with nap(servers.folder) as run:
        local_services.state_file(servers.folder).write_text('{"folder": "/tm', encoding="utf-8")
        done = servers.down("--now")
        assert done.code == 0, done.err
        assert done.json["stopped"] is True
        assert done.json["stopped_runs"] == 1
        assert run.wait(patient(60)) == -signal.SIGTERM
    servers.assert_gone()
    assert local_services.secret(servers.folder) is None
    assert not local_services.login_file(servers.folder).exists()
    again = servers.down()
    assert again.code == 0
    assert again.json["stopped"] is False
    assert local_services.ensure_secret(servers.folder) != before
    local_services.secret_file(servers.folder).unlink()


def test_down_removes_what_a_supervisor_could_not(tmp_path: Path, run_here: Command) -> None:
    """One that was killed, or whose folder was moved, leaves its secret; `down` makes it useless.

    The logs stay.
    """
    services = recorded_services(tmp_path)
    state = local_services.state_file(tmp_path)
    local_services.restore_login(services, "a secret")
    (state.parent / "lifeline-1-2").touch()
    logs = local_services.logs_folder(tmp_path)
    logs.mkdir()
    (logs / "mlflow.log").write_text("a line\n", encoding="utf-8")
    assert run_here("down")[0] == 0
    left = {each.name for each in state.parent.rglob("*") if each.suffix != ".lock"}
    assert left == {"logs", "mlflow.log"}


def test_down_leaves_servers_alone_whose_processes_cannot_be_seen(
    tmp_path: Path, run_here: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of another container: their supervisor's lock is held, and none of ours is it.

    The process that has its id here is another one.
    """
    monkeypatch.setattr(stopping, "_CHECK_SECONDS", 0.3)
    recorded_services(tmp_path)
    state = local_services.state_file(tmp_path)
    with file_locks.hold_lock(local_services.supervisor_lock(tmp_path)):
        code, out, err = run_here("down")
        assert (code, out) == (1, ""), err
        assert "run in another container or on another machine" in err
        assert state.exists()
    assert run_here("down")[0] == 0
    assert not state.exists()


def test_services_of_a_moved_folder_are_found_where_it_is_now(tmp_path: Path) -> None:
    """`patchline down` ends them there; in a copy of the folder it finds none."""
    folder, moved, copy = (tmp_path / name for name in ("first", "moved", "copy"))
    folder.mkdir()
    copy.mkdir()
    sleeping = [sys.executable, "-c", "import time; time.sleep(300)"]
    command = [*sleeping, *service_processes.command("supervisor", folder)[2:]]
    process = subprocess.Popen(command, cwd=folder)
    try:
        folder.rename(moved)
        assert [each.pid for each in service_processes.members(moved)] == [process.pid]
        assert not service_processes.members(copy)
        service_processes.clear(moved, 0.0)
        process.wait(timeout=patient(30))
    finally:
        process.kill()
        process.wait()
