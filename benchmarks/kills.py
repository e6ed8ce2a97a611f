"""Kill one process after another while Patchline trains, and check what is left.

    python -m benchmarks.kills 60 [--folder FOLDER] [--only KIND]

In a fresh folder, with `patchline up`, each turn starts a short training, kills one process of one
kind with SIGKILL at a random moment, and waits at most a minute until all conditions hold: nothing
is RUNNING without a process, Prefect and MLflow agree, nothing is half registered, nothing is lost
that was reported as done, no process is orphaned, no lock is held. With a folder that was used
before, the benchmark continues there.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks import kill_checks, kill_targets
from benchmarks.measured_runs import PATCHLINE, machine
from pipeline import local_login, local_services, quiet_libraries
from pipeline.tracking import tracked_run
from pipeline.tracking.tracking_store import client

_SETTINGS = """\
name: kills
data: {path: photos, image_size: 32, workers: 2}
model: {name: vit, embed_dim: 32, depth: 2, num_heads: 2}
training: {epochs: 3}
"""
_SCHEDULE = "kills"
_MINUTE = 60.0
_APPEAR_SECONDS = 240.0
_BEGIN_SECONDS = 45.0
"""A run that is no longer there after this time has ended."""
_END_SECONDS = 240.0
_TRIES = 4
_SOONER = 0.6
"""Factor by which the next kill is earlier if the run had ended before."""
_MISSED = "missed"


@dataclass
class Kill:
    """One turn and its outcome."""

    number: int
    kind: str
    stage: str = ""
    """The stage of the run when the process was killed."""
    after_seconds: float = 0.0
    """From the start of the run to the kill."""
    settled_seconds: float = 0.0
    """From the kill, or from the `patchline up` after a supervisor's, until all conditions held."""
    outcome: str = ""
    """Of the run: its state in Prefect and its status in MLflow."""
    violations: list[str] = field(default_factory=list)


class Harness:
    """A folder with servers, a schedule, and the runs that were done in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "kills.jsonl"
        self.done: list[str] = []
        self._deployment: Any = None

    def prepare(self) -> None:
        """Write images and settings, start the servers and create the schedule."""
        if not (self.folder / "photos").exists():
            from tests.conftest import write_photos

            write_photos(self.folder / "photos")
            (self.folder / "run.yaml").write_text(_SETTINGS, encoding="utf-8")
        self.up()
        self._patchline(
            "schedule", "create", _SCHEDULE, "--interval", "1d", "--config", "run.yaml"
        )  # fmt: skip
        self.connect()

    def up(self) -> None:
        """Start the servers unless they are running."""
        self._patchline("up", "--max-concurrent-runs", "2")
        self.connect()

    def connect(self) -> None:
        """Configure Prefect's and MLflow's clients in this process to use the servers."""
        services = local_services.running(self.folder)
        if services is None:
            raise SystemExit("the servers are not running after `patchline up`")
        os.environ["PREFECT_API_URL"] = services.prefect_api_url
        os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_url
        secret = local_login.ensure_secret(self.folder)
        os.environ.update(local_login.prefect_variables(secret))
        os.environ.update(local_login.mlflow_variables(secret))

    def turn(self, number: int, kind: str) -> Kill:
        """Start a run, kill a process, wait until all conditions hold, and return the outcome."""
        chance = random.Random(number)  # noqa: S311 - when to kill is no secret
        for attempt in range(_TRIES):
            kill = Kill(number, kind)
            seed = number * _TRIES + attempt
            if self._killed(kill, seed, chance.random() * _SOONER**attempt):
                break
        else:
            return Kill(number, kind, outcome=_MISSED, violations=["the process never appeared"])
        if kind == "supervisor":
            self._after_supervisor(kill)
        killed_at = time.monotonic()
        kill.violations = self._settle()
        kill.settled_seconds = round(time.monotonic() - killed_at, 1)
        self._wait_for_quiet(kill)
        kill.outcome = self._newest()
        return kill

    def check_next_run(self) -> list[str]:
        """Run a training run to its end; return what is wrong with it."""
        self._start(seed=10_000 + len(self.done))
        before = len(self.done)
        if not kill_targets.wait_for(self._quiet_with_new_run, _END_SECONDS):
            return ["the next run did not end"]
        self._note_done()
        return [] if len(self.done) > before else ["the next run did not finish"]

    def close(self) -> list[str]:
        """Stop the servers; return what is left."""
        self._patchline("down", "--now")
        left = kill_targets.all_of(self.folder)
        return [f"process {each.pid} is left after `patchline down`" for each in left]

    def _killed(self, kill: Kill, seed: int, fraction: float) -> bool:
        """Start a run and kill a process of it; return whether the process existed by then."""
        began = time.monotonic()
        command = self._command(seed) if kill.kind == "command" else None
        if command is None:
            self._start(seed)

        def target() -> psutil.Process | None:
            return kill_targets.find(kill.kind, self.folder, command)

        def appeared_or_over() -> bool:
            late = time.monotonic() - began > _BEGIN_SECONDS
            return target() is not None or (late and self._quiet())

        kill_targets.wait_for(appeared_or_over, _APPEAR_SECONDS)
        time.sleep(fraction * kill_targets.latest(kill.kind))
        process = target()
        if process is None or not process.is_running():
            self._wait_for_quiet(kill)
            return False
        kill.stage = kill_targets.stage(self.folder)
        process.kill()
        kill.after_seconds = round(time.monotonic() - began, 1)
        return True

    def _command(self, seed: int) -> psutil.Process:
        started = subprocess.Popen(
            [str(PATCHLINE), "run", "--config", "run.yaml", "--seed", str(seed)],
            cwd=self.folder,
            env=_finding_by_itself(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return psutil.Process(started.pid)

    def _start(self, seed: int) -> None:
        """Start a run of the schedule, as `schedule run-now` does, with another seed."""
        from flows.schedules import deployments

        before = Path.cwd()
        os.chdir(self.folder)
        try:
            [deployment] = deployments.deployments("schedule")
            config = {**deployment.parameters["config"], "seed": seed}
            deployments.start(deployment.id, parameters={"config": config})
        finally:
            os.chdir(before)

    def _after_supervisor(self, kill: Kill) -> None:
        """Wait until everything has ended with the supervisor, then start the servers again."""
        gone = kill_targets.wait_for(lambda: not kill_targets.all_of(self.folder), _MINUTE)
        if not gone:
            left = kill_targets.all_of(self.folder)
            kill.violations += [f"process {each.pid} outlived the supervisor" for each in left]
        self.up()

    def _settle(self) -> list[str]:
        """Wait until all conditions hold; return what does not hold after a minute."""
        deadline = time.monotonic() + _MINUTE
        while found := kill_checks.violations(self.folder, self.done):
            if time.monotonic() > deadline:
                return found
            time.sleep(1)
        return []

    def _wait_for_quiet(self, kill: Kill) -> None:
        if not kill_targets.wait_for(self._quiet, _END_SECONDS):
            kill.violations.append("a run did not end within four minutes")
        kill.violations += self._settle()
        self._note_done()

    def _quiet(self) -> bool:
        """Return whether no run is active or about to start."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterExpectedStartTime
        from prefect.client.schemas.sorting import FlowRunSort

        soon = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)
        due = FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(before_=soon))
        try:
            with get_client(sync_client=True) as prefect:
                newest = FlowRunSort.EXPECTED_START_TIME_DESC
                found = prefect.read_flow_runs(flow_run_filter=due, limit=20, sort=newest)
        except Exception:  # noqa: BLE001 - the server is restarting
            return False
        if any(_resumes_itself(each) for each in found):
            return False
        return all(each.state.is_final() for each in found if each.state is not None)

    def _quiet_with_new_run(self) -> bool:
        return self._quiet() and bool(self._unknown_finished())

    def _unknown_finished(self) -> list[str]:
        runs = kill_checks.runs_of(client())
        return [
            each.info.run_id
            for each in runs
            if each.info.status == "FINISHED" and each.info.run_id not in self.done
        ]

    def _note_done(self) -> None:
        self.done += self._unknown_finished()

    def _newest(self) -> str:
        """Return how the newest run ended, in MLflow and in Prefect."""
        from prefect.client.orchestration import get_client

        runs = kill_checks.runs_of(client())
        with get_client(sync_client=True) as prefect:
            flow_runs = kill_checks.flow_runs_of(prefect)
        if not flow_runs:
            return "no run"
        newest = max(flow_runs, key=lambda each: str(each.created))
        mine = [each for each in runs if _flow_run_of(each) == str(newest.id)]
        return f"{newest.state_name} / {mine[0].info.status if mine else 'no run'}"

    def _patchline(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(PATCHLINE), *arguments],
            cwd=self.folder,
            env=_finding_by_itself(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"patchline {' '.join(arguments)}: {done.stderr}")


def _finding_by_itself() -> dict[str, str]:
    """Return an environment in which a command must find the servers as a user's command does."""
    login = (local_login.PREFECT_VARIABLE, *local_login.MLFLOW_VARIABLES)
    named = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", *login)
    return {name: value for name, value in os.environ.items() if name not in named}


def _resumes_itself(flow_run: Any) -> bool:
    """Return whether it is an interrupted run of the schedule, which resumes by itself."""
    names = {"Crashed", "Resuming", "Server unavailable"}
    return flow_run.deployment_id is not None and flow_run.state_name in names


def _flow_run_of(run: Any) -> str:
    return str(run.data.tags.get(tracked_run.FLOW_RUN_TAG, ""))


def main() -> int:
    """Kill, print the table, and return how many kills violated a condition."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", type=int, nargs="?", default=60)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", choices=kill_targets.KINDS)
    given = parser.parse_args()
    quiet_libraries.apply()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="patchline-kills-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    harness = Harness(folder)
    kills = _earlier(harness.log)
    print(f"{machine()}\nfolder {folder}, {len(kills)} kills before\n", flush=True)
    harness.prepare()
    for number in range(len(kills), given.kills):
        kind = given.only or kill_targets.KINDS[number % len(kill_targets.KINDS)]
        kill = harness.turn(number, kind)
        if kind == kill_targets.KINDS[-1]:
            kill.violations += harness.check_next_run()
        kills.append(kill)
        with harness.log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(asdict(kill)) + "\n")
        print(_row(kill), flush=True)
    left = harness.close()
    return _verdict(kills, left)


def _earlier(log: Path) -> list[Kill]:
    if not log.exists():
        return []
    return [Kill(**json.loads(line)) for line in log.read_text(encoding="utf-8").splitlines()]


def _row(kill: Kill) -> str:
    words = "; ".join(kill.violations) or "ok"
    return (
        f"{kill.number:>3}  {kill.kind:<15} {kill.stage:<16} {kill.after_seconds:>5.1f} s  "
        f"settled {kill.settled_seconds:>5.1f} s  {kill.outcome:<24} {words}"
    )


def _verdict(kills: list[Kill], left: list[str]) -> int:
    wrong = [kill for kill in kills if kill.violations]
    slowest = max((kill.settled_seconds for kill in kills), default=0.0)
    print(f"\n{len(kills)} kills, {len(wrong)} with violations, slowest settled {slowest} s")
    for sentence in left:
        print(sentence)
    return 1 if wrong or left else 0


if __name__ == "__main__":
    sys.exit(main())
