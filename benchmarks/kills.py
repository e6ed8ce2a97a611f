"""Kill one process after another while Patchline trains, and check what is left.

    python -m benchmarks.kills 60 [--folder FOLDER] [--only KIND]
    python -m benchmarks.kills 12 --runs teacher|last_blocks|processes

In a fresh folder, with `patchline up`, each turn starts a short training, kills one process of one
kind with SIGKILL at a random moment, and waits at most a minute until all conditions hold: nothing
is RUNNING without a process, Prefect and MLflow agree, nothing is half registered, nothing is lost
that was reported as done, no process is orphaned, no lock is held. With a folder that was used
before, the benchmark continues there.

`--runs` chooses what the runs do: learn from a teacher, train the last blocks of an earlier version
from its tokens, or train in two processes. Teacher and version are of a run before the first kill;
predictions, features and tokens are deleted before each run, so that each computes them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks.measured_runs import PATCHLINE, machine
from patchline.flows.services import service_processes
from patchline.pipeline import local_services, quiet_libraries
from patchline.pipeline.registry import aliases
from patchline.pipeline.registry.registered_models import FINGERPRINT_TAG
from patchline.pipeline.workers.worker_start import LOG_FILE
from patchline.pipeline.workspace.files.file_locks import Liveness, is_held
from patchline.pipeline.workspace.files.workspace_folder import FEATURES, PREDICTIONS, WORKSPACE
from patchline.pipeline.workspace.run_memory import live_runs
from patchline.pipeline.workspace.tracking import liveness, tracked_run
from patchline.pipeline.workspace.tracking.tracking_store import client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import RegisteredModel
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


SERVICES = {
    "runner": "runner",
    "keeper": "keeper",
    "Prefect server": "prefect_server",
    "MLflow server": "mlflow_server",
    "supervisor": "supervisor",
}
WORKERS = {
    "training": "patchline.pipeline.training",
    "evaluation": "patchline.pipeline.evaluation",
    "packaging": "patchline.pipeline.packaging",
    "distillation": "patchline.pipeline.training.distillation",
    "rank": "patchline.pipeline.training.processes.rank",
}
KINDS = (
    "command", "flow", "training", "data worker", "evaluation", "packaging", "prepared worker",
    *SERVICES,
)  # fmt: skip
KINDS_OF = {
    "plain": KINDS,
    "teacher": ("command", "flow", "distillation", "training"),
    "last_blocks": ("command", "flow", "training"),
    "processes": ("command", "flow", "training", "rank"),
}
"""What is killed, by what the runs do."""
LATEST_SECONDS = {
    "training": 3.0, "distillation": 3.0, "rank": 6.0, "data worker": 2.0, "evaluation": 0.2,
    "packaging": 2.0, "prepared worker": 5.0,
}  # fmt: skip
"""Maximum time from a worker's start to the kill, by kind."""
_LONGEST_DELAY = 16.0


def latest_kill(kind: str) -> float:
    """Return the maximum time from a process's start to the kill, in seconds."""
    return LATEST_SECONDS.get(kind, _LONGEST_DELAY)


def find_process(kind: str, folder: Path, command: psutil.Process | None) -> psutil.Process | None:
    """Return the process of a kind that is running in a folder.

    Args:
        kind: one of `KINDS_OF`.
        folder: the working directory.
        command: the `patchline run` that was started, if one was.
    """
    if kind == "command":
        return command if command and _has_begun(command, folder) else None
    if kind in SERVICES:
        found = service_processes.members(folder, SERVICES[kind])
        return found[0] if found else None
    runs = service_processes.members(folder, service_processes.FLOW_RUN)
    if kind == "flow":
        return runs[0] if runs else None
    for run in runs:
        for child in _descendants(run):
            if _is(kind, child):
                return child
    return None


def stage_of_run(folder: Path) -> str:
    """Return the current stage_of_run of the folder's run."""
    for run in [*service_processes.members(folder, service_processes.FLOW_RUN), *_direct(folder)]:
        words = [" ".join(_words(child)) for child in _descendants(run) if has_work(child)]
        for name, module in WORKERS.items():
            if any(f"-m {module} " in word for word in words):
                return name
    alive = [record for record in live_runs.records(folder / WORKSPACE) if record.is_alive]
    return "between workers" if alive else "before or after"


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return every process whose working directory or command line names a folder."""
    found = []
    me = psutil.Process()
    mine = {me.pid, *(parent.pid for parent in me.parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid in mine or process.status() == psutil.STATUS_ZOMBIE:
                continue
            where = Path(process.cwd())
            if where == folder or folder in where.parents or _has_named(process, folder):
                found.append(process)
    return found


def rightful_processes(folder: Path) -> set[int]:
    """Return the processes that are not orphans: the servers, and what active runs have started."""
    roots = service_processes.members(folder)
    for record in live_runs.records(folder / WORKSPACE):
        with contextlib.suppress(psutil.Error):
            if record.is_alive:
                roots.append(psutil.Process(record.pid))
    return {each.pid for root in roots for each in (root, *_descendants(root))}


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def _direct(folder: Path) -> Iterator[psutil.Process]:
    for record in live_runs.records(folder / WORKSPACE):
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(record.pid)


def _has_begun(command: psutil.Process, folder: Path) -> bool:
    """Return whether the flow of a command has begun; before that there is nothing to close."""
    pids = {record.pid for record in live_runs.records(folder / WORKSPACE)}
    return command.pid in pids


def _is(kind: str, process: psutil.Process) -> bool:
    words = _words(process)
    if kind == "data worker":
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            helps = any("resource_tracker" in word for word in _words(process))
            return not helps and parent is not None and WORKERS["training"] in _words(parent)
        return False
    if kind == "prepared worker":
        return any(module in words for module in WORKERS.values()) and not has_work(process)
    return WORKERS[kind] in words and "-m" in words and has_work(process)


def has_work(worker: psutil.Process) -> bool:
    """Return whether a worker has a job; a worker that waits for one has no log yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{worker.pid}/fd/1").readlink().name == LOG_FILE
    return False


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return process.children(recursive=True)
    return []


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def _has_named(process: psutil.Process, folder: Path) -> bool:
    return any(word == str(folder) or word.startswith(f"{folder}/") for word in _words(process))


_FITTING = {
    "FINISHED": {"Completed"},
    "FAILED": {"Failed", "Server unavailable"},
    "KILLED": {"Crashed", "Cancelled"},
    "RUNNING": {"Running", "Cancelling"},
}
_OPEN = ("RUNNING", "PENDING", "CANCELLING")
_ARTIFACTS = {"model.onnx", "model.safetensors", "model.json"}
_PERMANENT = ("supervisor.lock", "lifeline", "line")


def violations(folder: Path, done: list[str]) -> list[str]:
    """Return what is wrong in a folder.

    Args:
        folder: the working directory, with the servers up and connected.
        done: MLflow runs that were seen finished.
    """
    try:
        return [
            *_prefect_and_mlflow(folder),
            *_half_registered(),
            *_find_lost(done),
            *_orphans(folder),
            *_find_held_locks(folder),
        ]
    except Exception as error:  # noqa: BLE001 - a server that has not restarted yet counts, too
        return [f"could not look: {type(error).__name__}: {str(error)[:200]}"]


def runs_of(store: MlflowClient) -> list[Run]:
    """Return all MLflow runs."""
    experiments = [each.experiment_id for each in store.search_experiments()]
    return list(store.search_runs(experiments, max_results=1000))


def flow_runs_of(prefect: SyncPrefectClient) -> list[FlowRun]:
    """Return all flow runs that are not scheduled for the future."""
    found: list[FlowRun] = []
    while page := prefect.read_flow_runs(limit=200, offset=len(found)):
        found += page
    return [each for each in found if each.state_type and each.state_type.value != "SCHEDULED"]


def _prefect_and_mlflow(folder: Path) -> Iterator[str]:
    from prefect.client.orchestration import get_client

    records = {each.flow_run_id: each for each in live_runs.records(folder / WORKSPACE)}
    alive = {each for each, record in records.items() if record.is_alive}
    for dead in set(records) - alive:
        yield f"the record of flow run {dead} is that of a dead process"
    with get_client(sync_client=True) as prefect:
        states = {str(each.id): each for each in flow_runs_of(prefect)}
    for flow_run_id, flow_run in states.items():
        is_open = flow_run.state_type and flow_run.state_type.value in _OPEN
        if is_open and flow_run_id not in alive and not _process_of(flow_run_id):
            yield f"flow run {flow_run.name} is {flow_run.state_name}, and nothing carries it out"
    for run in runs_of(client()):
        owned = liveness.of_run(run) is Liveness.ALIVE
        if run.info.status == "RUNNING" and not owned:
            yield f"MLflow's run {run.info.run_id} is RUNNING without an owner"
        flow_run_id = run.data.tags.get(tracked_run.FLOW_RUN_TAG, "")
        state = states[flow_run_id].state_name if flow_run_id in states else None
        if flow_run_id not in alive and state not in _FITTING[run.info.status]:
            yield f"run {run.info.run_id} is {run.info.status} in MLflow and {state} in Prefect"


def _half_registered() -> Iterator[str]:
    store = client()
    over = {each.info.run_id for each in runs_of(store) if each.info.status != "RUNNING"}
    experiments = [each.experiment_id for each in store.search_experiments()]
    for model in store.search_logged_models(experiments, max_results=500):
        if str(model.status) == "PENDING" and model.source_run_id in over:
            yield f"the model {model.model_id} is PENDING, but its run is over"
    for registered in store.search_registered_models():
        yield from _half_versions(store, registered, over)


def _half_versions(
    store: MlflowClient, registered: RegisteredModel, over: set[str]
) -> Iterator[str]:
    versions = store.search_model_versions(f"name = '{registered.name}'")
    there = {str(version.version) for version in versions}
    for version in versions:
        if version.run_id in over and FINGERPRINT_TAG not in version.tags:
            yield f"version {version.version} of {registered.name} lacks its tags"
    for alias, number in registered.aliases.items():
        if str(number) not in there:
            yield f"the alias {alias} of {registered.name} names version {number}, gone"
    if over >= {version.run_id for version in versions}:
        for entry in aliases.read_changes(store, registered.name):
            if entry.state != "done":
                yield f"the history of {registered.name} has an unfinished entry"


def _find_lost(done: list[str]) -> Iterator[str]:
    store = client()
    for run_id in done:
        run = store.get_run(run_id)
        if run.info.status != "FINISHED" or "test/accuracy" not in run.data.metrics:
            yield f"run {run_id} was done, and is {run.info.status} with fewer metrics now"
        versions = store.search_model_versions(f"run_id = '{run_id}'")
        if not versions:
            yield f"run {run_id} was done, and has no version any more"
        for version in versions:
            source = str(version.source).removeprefix("models:/")
            files = set(_files(store, source))
            if not files >= _ARTIFACTS:
                yield f"version {version.version} of run {run_id} lacks {_ARTIFACTS - files}"


def _files(store: MlflowClient, model_id: str, folder: str | None = None) -> Iterator[str]:
    for each in store.list_logged_model_artifacts(model_id, folder):
        if each.is_dir:
            yield from _files(store, model_id, each.path)
        else:
            yield Path(each.path).name


def _orphans(folder: Path) -> Iterator[str]:
    # Last, so that a process that has just been started does not count as an orphan.
    suspects = processes_in(folder)
    rightful = rightful_processes(folder)
    for process in suspects:
        with contextlib.suppress(psutil.Error):
            if process.pid not in rightful and process.is_running():
                words = " ".join(process.cmdline())[:160]
                yield f"process {process.pid} ({words}) is an orphan"


def _find_held_locks(folder: Path) -> Iterator[str]:
    records = live_runs.records(folder / WORKSPACE)
    if any(record.is_alive for record in records):
        return
    for file in (folder / WORKSPACE).rglob("*.lock"):
        if file.name in _PERMANENT or "services" in file.parts:
            continue
        if is_held(file, wait_seconds=2.0):
            yield f"{file.relative_to(folder)} is held while no run is active"


def _process_of(flow_run_id: str) -> bool:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("PREFECT__FLOW_RUN_ID") == flow_run_id:
                return process.pid != os.getpid()
    return False


_SETTINGS = """\
name: kills
preset: none
data: {path: photos, image_size: 32, workers: 2}
"""
_MODEL = "model: {name: vit, embed_dim: 32, depth: 2, num_heads: 2}\n"
_SETTINGS_OF = {
    "plain": f"{_SETTINGS}{_MODEL}training: {{epochs: 3}}\n",
    "teacher": f"{_SETTINGS}{_MODEL}training: {{epochs: 3, teacher: earlier/1}}\n",
    "last_blocks": (
        f"{_SETTINGS}model: {{init: earlier/1}}\n"
        "training: {epochs: 3, trainable: last_blocks, last_blocks: 1}\n"
    ),
    "processes": f"{_SETTINGS}{_MODEL}training: {{epochs: 3, processes: 2}}\n",
}
_NEED_EARLIER = {"teacher", "last_blocks"}
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

    def __init__(self, folder: Path, runs: str = "plain") -> None:
        self.folder, self.runs = folder, runs
        self.log = folder / "kills.jsonl"
        self.done: list[str] = []
        self._deployment: Any = None

    def prepare(self) -> None:
        """Write images and settings, start the servers and create the schedule."""
        if not (self.folder / "photos").exists():
            from tests.conftest import write_photos

            write_photos(self.folder / "photos")
            (self.folder / "run.yaml").write_text(_SETTINGS_OF[self.runs], encoding="utf-8")
            (self.folder / "earlier.yaml").write_text(_SETTINGS_OF["plain"], encoding="utf-8")
            if self.runs in _NEED_EARLIER:
                self._patchline("run", "--config", "earlier.yaml", "--name", "earlier")
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
        services = local_services.find_running(self.folder)
        if services is None:
            raise SystemExit("the servers are not running after `patchline up`")
        os.environ["PREFECT_API_URL"] = services.prefect_api_url
        os.environ["MLFLOW_TRACKING_URI"] = services.mlflow_url
        secret = local_services.ensure_secret(self.folder)
        os.environ.update(local_services.prefect_variables(secret))
        os.environ.update(local_services.mlflow_variables(secret))

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
        if not wait_for(self._quiet_with_new_run, _END_SECONDS):
            return ["the next run did not end"]
        self._note_done()
        return [] if len(self.done) > before else ["the next run did not finish"]

    def close(self) -> list[str]:
        """Stop the servers; return what is left."""
        self._patchline("down", "--now")
        left = processes_in(self.folder)
        return [f"process {each.pid} is left after `patchline down`" for each in left]

    def _killed(self, kill: Kill, seed: int, fraction: float) -> bool:
        """Start a run and kill a process of it; return whether the process existed by then."""
        for computed in (PREDICTIONS, FEATURES):
            shutil.rmtree(self.folder / WORKSPACE / computed, ignore_errors=True)
        began = time.monotonic()
        command = self._command(seed) if kill.kind == "command" else None
        if command is None:
            self._start(seed)

        def target() -> psutil.Process | None:
            return find_process(kill.kind, self.folder, command)

        def appeared_or_over() -> bool:
            late = time.monotonic() - began > _BEGIN_SECONDS
            return target() is not None or (late and self._quiet())

        wait_for(appeared_or_over, _APPEAR_SECONDS)
        time.sleep(fraction * latest_kill(kill.kind))
        process = target()
        if process is None or not process.is_running():
            self._wait_for_quiet(kill)
            return False
        kill.stage = stage_of_run(self.folder)
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
        from patchline.flows.schedules import deployments

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
        gone = wait_for(lambda: not processes_in(self.folder), _MINUTE)
        if not gone:
            left = processes_in(self.folder)
            kill.violations += [f"process {each.pid} outlived the supervisor" for each in left]
        self.up()

    def _settle(self) -> list[str]:
        """Wait until all conditions hold; return what does not hold after a minute."""
        deadline = time.monotonic() + _MINUTE
        while found := violations(self.folder, self.done):
            if time.monotonic() > deadline:
                return found
            time.sleep(1)
        return []

    def _wait_for_quiet(self, kill: Kill) -> None:
        if not wait_for(self._quiet, _END_SECONDS):
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
        runs = runs_of(client())
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

        runs = runs_of(client())
        with get_client(sync_client=True) as prefect:
            flow_runs = flow_runs_of(prefect)
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
    login = (local_services.PREFECT_VARIABLE, *local_services.MLFLOW_VARIABLES)
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
    parser.add_argument("--runs", choices=KINDS_OF, default="plain", help="what the runs do")
    parser.add_argument(
        "--only", choices=sorted({each for kinds in KINDS_OF.values() for each in kinds})
    )
    given = parser.parse_args()
    quiet_libraries.apply()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="patchline-kills-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    harness, kinds = Harness(folder, given.runs), KINDS_OF[given.runs]
    kills = _earlier(harness.log)
    print(f"{machine()}\nfolder {folder}, {len(kills)} kills before\n", flush=True)
    harness.prepare()
    for number in range(len(kills), given.kills):
        kind = given.only or kinds[number % len(kinds)]
        kill = harness.turn(number, kind)
        if kind == kinds[-1]:
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
