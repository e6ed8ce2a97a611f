"""What is lost when parts of a Ray cluster are killed while it trains: nothing, if all is well.

    python -m benchmarks.launcher_kills [KILLS]

Two nodes in two network namespaces of this machine, and an object store in a third (root, iproute2,
Ray and moto are needed). A training run in two processes, one on each node, or of one process on
the node that does not see the folder of the run, is begun repeatedly; after some steps, one thing
is killed, by turns. Then no process of ours may be left on either node, the run has ended by
itself or with an error, and the same command resumes it. The weights have to be those of a run that
nobody has touched, bit for bit, and its events numbered without a gap.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.training import job as training_job
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.sealed_files import digest_of
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from tests.pipeline.training.processes.ray_nodes import Cluster, two_nodes, why_not

TRAINING = {"threads": 1, "precision": "float32", "batch_size": 64, "epochs": 20, "device": "cpu"}
MODEL = {"name": "vit", "depth": 2, "embed_dim": 32, "num_heads": 2}
GONE_SECONDS, ENDED_SECONDS = 120, 400
_PROGRAM = "tests.pipeline.training.processes.ray_training"
Process = subprocess.Popen[str]


class Kind(NamedTuple):
    """One thing that can be killed."""

    name: str
    kill: Callable[[Cluster, Process], None]
    processes: int = 2
    """Of the training run: two on two nodes, or one on the node without the folder."""


def _cut_cable(cluster: Cluster, *, cut: bool = True) -> None:
    """Take down the connection between the nodes, or bring it up again."""
    state = "down" if cut else "up"
    subprocess.run(cluster.command("b", "ip", "link", "set", "cable", state), check=True)


KINDS = (
    Kind("rank of node a", lambda made, _: made.kill("a", "processes.rank")),
    Kind("rank of node b", lambda made, _: made.kill("b", "processes.rank")),
    Kind("raylet of node b", lambda made, _: made.kill("b", "raylet/raylet")),
    Kind("head", lambda made, _: made.kill("a", "gcs_server")),
    Kind("driver", lambda made, _: made.kill("a", "ray_driver")),
    Kind("parent", lambda _, process: os.kill(_main(process), signal.SIGKILL)),
    Kind("connection", lambda made, _: _cut_cable(made)),
    Kind("raylet of node a", lambda made, _: made.kill("a", "raylet/raylet")),
    Kind("worker elsewhere", lambda made, _: made.kill("b", "pipeline.training"), 1),
    Kind("raylet of the worker elsewhere", lambda made, _: made.kill("b", "raylet/raylet"), 1),
    Kind("parent of the worker elsewhere", lambda _, p: os.kill(_main(p), signal.SIGKILL), 1),
    Kind("connection with the worker elsewhere", lambda made, _: _cut_cable(made), 1),
)


def main() -> None:
    """Print what happened after each kill, and count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kills", nargs="?", type=int, default=40)
    parser.add_argument("--first", type=int, default=1, help="number of the first kill")
    parser.add_argument("--make", help="used by the benchmark itself")
    options = parser.parse_args()
    if options.make:
        _make(int(options.make))
        return
    if reason := why_not():
        sys.exit(f"This benchmark needs two network namespaces: {reason}.")
    print(machine(), flush=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        two_nodes(Path(temporary) / "cluster") as cluster,
    ):
        sys.exit(_kill_all(cluster, range(options.first - 1, options.first - 1 + options.kills)))


def _kill_all(cluster: Cluster, kills: range) -> int:
    made = {processes: make_job(cluster, processes) for processes in (2, 1)}
    expected = {processes: train_undisturbed(cluster, job) for processes, job in made.items()}
    lost, done = Counter[str](), Counter[str]()
    for number in kills:
        kind = KINDS[number % len(KINDS)]
        began = time.monotonic()
        job = name_job(made[kind.processes], f"kill-{number}")
        try:
            said = kill_one(cluster, job, kind, random.Random(number).randint(30, 250))  # noqa: S311 - where to kill
            check_results(job, expected[kind.processes])
        except Lost as why:
            said = f"LOST: {why}"
            lost[kind.name] += 1
        done[kind.name] += 1
        seconds = time.monotonic() - began
        print(f"{number + 1} {kind.name} ({seconds:.0f} s): {said}", flush=True)
        if not cluster.is_whole or "raylet" in kind.name or kind.name.startswith("connection"):
            cluster.restart()
    for name, count in done.items():
        print(f"{name}: {count} killed, {lost[name]} lost")
    print(f"{sum(done.values())} kills, {sum(lost.values())} lost")
    return int(bool(sum(lost.values())))


class Lost(Exception):  # noqa: N818 - what is lost is said
    """Something was lost."""


def kill_one(cluster: Cluster, job: TrainingJob, kind: Kind, after: int) -> str:
    """Kill one thing after some steps, resume if the run has ended, and return what was said.

    Raises:
        Lost: if a process was left, no reason was said, or the run did not resume.
    """
    code, events = _train(cluster, job, kind, after)
    _cut_cable(cluster, cut=False)
    _check_left(cluster)
    if code == 0:
        return "completed"
    last = events[-1] if events else {}
    said = str(last.get("message", "ended without a word"))
    if last.get("kind") != "error" and not kind.name.startswith("parent"):
        raise Lost(f"{said}, code {code}")
    if not cluster.is_whole or "raylet" in kind.name or kind.name.startswith("connection"):
        cluster.restart()
    code, again = _train(cluster, job, kind, None)
    words = [str(each.get("message", "")) for each in again]
    if code != 0:
        raise Lost(f"{said}; resumed: {words[-1:]}")
    _check_left(cluster)
    resumed = [each for each in words if each.startswith("resuming")]
    return f"{said} | {resumed[0] if resumed else 'from the beginning'}"


def check_results(job: TrainingJob, expected: str) -> None:
    """Compare the weights, and the numbers of the events.

    Raises:
        Lost: if they differ.
    """
    if _weights(job) != expected:
        raise Lost("other weights")
    lines = (job.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    if [json.loads(line)["seq"] for line in lines] != list(range(len(lines))):
        raise Lost("events are missing or double")


def _train(
    cluster: Cluster, job: TrainingJob, kind: Kind, after: int | None
) -> tuple[int, list[dict[str, Any]]]:
    """Train on the cluster; after some steps, kill. Return the exit code and the events."""
    file = cluster.work / f"{job.run_id}.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    settings: dict[str, Any] = {"name": "ray", "address": cluster.address}
    settings |= {"nodes": 2, "cpus": 1} if kind.processes == 2 else {"nodes": 1, "cpus": 2}  # noqa: PLR2004
    process = subprocess.Popen(
        cluster.command("a", sys.executable, "-P", "-m", _PROGRAM, str(file), json.dumps(settings)),
        env={**cluster.environment, chosen.VARIABLE: cluster.workspace},
        stdout=subprocess.PIPE,
        text=True,
        cwd=cluster.work,
    )
    events = []
    for line in process.stdout or ():
        events.append(json.loads(line))
        step = events[-1].get("done", 0) if events[-1].get("unit") == "step" else 0
        if after is not None and step >= after:
            kind.kill(cluster, process)
            after = None
    return process.wait(ENDED_SECONDS), events


def _main(process: Process) -> int:
    """Return the id of the process of the run: `ip netns exec` has become it."""
    return process.pid


def _check_left(cluster: Cluster) -> None:
    until = time.monotonic() + GONE_SECONDS
    while (left := cluster.ours()) and time.monotonic() < until:
        time.sleep(0.5)
    if left:
        raise Lost(f"processes are left: {left}")


def _weights(job: TrainingJob) -> str:
    return digest_of(job.folder / "best" / "model.safetensors").sha256


def make_job(cluster: Cluster, processes: int) -> TrainingJob:
    """Return a job in the workspace of node a."""
    environment = {**cluster.environment, chosen.VARIABLE: cluster.workspace}
    command = [sys.executable, "-m", "benchmarks.launcher_kills", "--make", str(processes)]
    made = subprocess.run(
        cluster.command("a", *command),
        env=environment,
        cwd=cluster.work,
        stdout=subprocess.PIPE,
        check=True,
    )
    return TrainingJob.model_validate_json(made.stdout.splitlines()[-1])


def name_job(job: TrainingJob, name: str) -> TrainingJob:
    """Return the job as one of a run of its own."""
    folder = job.folder.parents[1] / name / "training"
    return job.model_copy(update={"folder": folder, "run_id": name})


def _make(processes: int) -> None:
    """Print a job of a run, whose data are in the shared workspace."""
    chosen.find_shared_files()
    training = {**TRAINING, "processes": processes}
    model = {"preset": "none", "training": training, "model": MODEL}
    config = config_files.validate_config({"name": "digits", **model})
    workspace = WORKSPACE.resolve()
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    job = job_of(config, data, prepared, workspace / "runs/made/training", "made")
    print(job.model_dump_json())


def train_undisturbed(cluster: Cluster, made: TrainingJob) -> str:
    """Return the digest of the weights that nobody has disturbed, on this machine alone."""
    processes = made.config.training.processes
    folder = cluster.folder / f"alone-{processes}"
    threads = made.config.training.model_copy(update={"threads": processes})
    config = made.config.model_copy(update={"training": threads})
    job = made.model_copy(update={"folder": folder, "config": config})
    training_job.TRAINING.run(folder, job)
    return _weights(job)


if __name__ == "__main__":
    main()
