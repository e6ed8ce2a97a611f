"""A training run on two nodes of a Ray cluster: same weights, and nothing lost whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.worker_process import run_worker
from tests.patience import patient
from tests.pipeline.training.conftest import MakeJob
from tests.pipeline.training.processes import ray_nodes
from tests.pipeline.training.processes.ray_nodes import Cluster

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(ray_nodes.why_not()), reason=ray_nodes.why_not() or "-"),
]
SETTINGS = {"name": "ray", "nodes": 2, "shared_folder": True}
TRAINING = {"processes": 2, "epochs": 150, "threads": 1}
SLOW_IMPORT = """
import importlib.abc, sys, time
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "patchline.plugins.launchers.ray_host":
            time.sleep(45)
sys.meta_path.insert(0, Slow())
"""
GONE_SECONDS = 90
"""After which nothing of a run is left, whatever was killed."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes."""
    with ray_nodes.two_nodes(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(both: Cluster) -> Cluster:
    """Return the cluster with both nodes alive."""
    if not both.is_whole:
        both.restart()
    return both


@pytest.fixture(scope="module")
def expected(make_job: MakeJob, tmp_path_factory: pytest.TempPathFactory) -> TrainingJob:
    """Return the job that torch's agent has done in two processes of this machine."""
    folder = tmp_path_factory.mktemp("alone") / "job"
    job = make_job(folder, training={**TRAINING, "threads": 2})  # of which each process has one
    run_worker(MODULE, folder, job, TrainResult, lambda _: None)
    return job


Kill = Callable[[Cluster, "subprocess.Popen[str]"], None]


def _train(
    cluster: Cluster,
    job: TrainingJob,
    *,
    kill: Kill | None = None,
    after: int = 40,
    **settings: Any,
) -> tuple[int, list[dict[str, Any]]]:
    """Train on the cluster, and return the exit code and the events.

    Args:
        cluster: of two nodes.
        job: what to train.
        kill: called once, to kill something.
        after: steps after which it is called.
        settings: of the launcher.
    """
    file = job.folder.parent / "asked.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    chosen = json.dumps({**SETTINGS, "address": cluster.address, **settings})
    command = [sys.executable, "-P", "-m", ray_training_module(), str(file), chosen]
    process = subprocess.Popen(
        cluster.command("a", *command),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    events: list[dict[str, Any]] = []
    for line in process.stdout or ():
        events.append(json.loads(line))
        if kill and events[-1].get("kind") == "progress" and events[-1]["done"] >= after:
            kill(cluster, process)
            kill = None
    assert kill is None, f"nothing was killed: {events[-3:]}"
    return process.wait(patient(60)), events


def ray_training_module() -> str:
    """Return the module of the program that trains."""
    return f"{__package__}.ray_training"


def _assert_nothing_left(cluster: Cluster) -> None:
    until = time.monotonic() + patient(GONE_SECONDS)
    while (left := cluster.ours()) and time.monotonic() < until:
        time.sleep(0.2)
    assert left == []


def _assert_same_weights(one: TrainingJob, other: TrainingJob) -> None:
    first, second = (load_file(job.folder / "last.safetensors") for job in (one, other))
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def _assert_numbered(job: TrainingJob) -> None:
    lines = (job.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(lines)))


def test_two_nodes_give_the_weights_of_two_processes(
    cluster: Cluster, expected: TrainingJob, make_job: MakeJob, tmp_path: Path
) -> None:
    """Bit for bit; each node runs one rank, and each event arrives once."""
    job = make_job(tmp_path / "job", training=TRAINING)
    seen: list[int] = []

    def look(cluster: Cluster, _process: subprocess.Popen[str]) -> None:
        seen.extend(len(cluster.pids(node, "processes.rank")) for node in cluster.spaces)

    code, events = _train(cluster, job, kill=look)
    assert (code, events[-1]["kind"]) == (0, "result")
    assert events[-1]["threads"] == 1  # of a node, as they were asked for
    assert seen == [1, 1]
    numbered = [event["seq"] for event in events if "seq" in event]
    assert numbered == list(range(len(numbered)))
    _assert_same_weights(expected, job)
    _assert_nothing_left(cluster)


def test_a_killed_rank_of_another_node_resumes_by_itself(
    cluster: Cluster, expected: TrainingJob, make_job: MakeJob, tmp_path: Path
) -> None:
    """SIGKILL of a rank: all ranks start again from the last checkpoint."""
    job = make_job(tmp_path / "job", training=TRAINING)
    code, events = _train(cluster, job, kill=lambda made, _: made.kill("b", "processes.rank"))
    assert (code, events[-1]["kind"]) == (0, "result")
    assert any("ended unexpectedly" in str(each.get("message")) for each in events)
    _assert_same_weights(expected, job)
    _assert_nothing_left(cluster)


def _kill_driver(cluster: Cluster, _process: subprocess.Popen[str]) -> None:
    cluster.kill("a", "ray_driver")


def _kill_parent(_cluster: Cluster, process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)


LOSSES: dict[str, tuple[Kill, str]] = {
    "the raylet of the other node": (lambda made, _: made.kill("b", "raylet/raylet"), "was lost"),
    "the head": (lambda made, _: made.kill("a", "gcs_server"), "Start"),
    "the driver": (_kill_driver, "resume the run"),
    "the parent": (_kill_parent, ""),
    "the connection": (lambda made, _: made.cut_cable(), "resume the run"),
}


@pytest.mark.parametrize("what", LOSSES, ids=str)
def test_what_is_lost_is_said_and_the_run_resumes(
    what: str, cluster: Cluster, expected: TrainingJob, make_job: MakeJob, tmp_path: Path
) -> None:
    """An error says what to start, nothing is left, and the same command resumes exactly.

    Without the head, the nodes may also complete what they have begun.
    """
    kill, words = LOSSES[what]
    job = make_job(tmp_path / "job", training=TRAINING)
    code, events = _train(cluster, job, kill=kill)
    if what == "the head" and code == 0:  # the training may end before Ray gives the head up
        _assert_same_weights(expected, job)
        _assert_nothing_left(cluster)
        cluster.restart()
        return
    if words:
        assert code == 1
        assert words in events[-1]["message"]
    else:
        assert code == -signal.SIGKILL
    cluster.cut_cable(cut=False)
    _assert_nothing_left(cluster)
    cluster.restart()
    code, again = _train(cluster, job)
    assert (code, again[-1]["kind"]) == (0, "result")
    assert any(str(each.get("message", "")).startswith("resuming from step") for each in again)
    _assert_same_weights(expected, job)
    _assert_numbered(job)
    _assert_nothing_left(cluster)


def test_a_cluster_without_tokens_is_refused(
    cluster: Cluster, make_job: MakeJob, tmp_path: Path
) -> None:
    """Whoever reaches such a cluster runs code on it."""
    job = make_job(tmp_path / "job", training={**TRAINING, "epochs": 1})
    for node in cluster.spaces:
        cluster.kill(node)
    time.sleep(1)
    try:
        cluster.start("a", RAY_AUTH_MODE="disabled")
        code, events = _train(cluster, job, nodes=1)
        assert code == 2
        assert "without token authentication" in events[-1]["message"]
    finally:
        cluster.restart()


def test_a_cluster_whose_files_are_open_to_others_is_refused(
    cluster: Cluster, make_job: MakeJob, tmp_path: Path
) -> None:
    """Ray gives its folders mode 0777: on each node one above them has to be closed."""
    job = make_job(tmp_path / "job", training={**TRAINING, "processes": 2, "epochs": 1})
    cluster.private.chmod(0o750)
    try:
        code, events = _train(cluster, job)
        assert code == 2
        assert f"on this machine, {cluster.private / 'ray'}, is open" in events[-1]["message"]
    finally:
        cluster.private.chmod(0o700)
    with tempfile.TemporaryDirectory(prefix="plr") as other:
        Path(other).chmod(0o711)
        cluster.kill("b")
        time.sleep(1)
        try:
            cluster.start("b", Path(other) / "ray")
            code, events = _train(cluster, job)
            assert code == 2
            assert f"on the node 10.78.0.2, {other}/ray, is open" in events[-1]["message"]
        finally:
            cluster.restart()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shared_folder": False}, "is a folder of one machine"),
        ({"cpus": 64}, "A worker needs 64 CPU cores on each of 2 nodes"),
        ({"nodes": 3}, "which the Ray cluster does not have"),
        ({"address": "10.78.0.1:6400"}, "There is no Ray cluster at 10.78.0.1:6400"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_a_user_has_to_change_is_exit_code_2(
    settings: dict[str, Any], words: str, cluster: Cluster, make_job: MakeJob, tmp_path: Path
) -> None:
    """One sentence with the value, the rule and the remedy."""
    processes = settings.get("nodes", 2)
    job = make_job(tmp_path / "job", training={**TRAINING, "processes": processes, "epochs": 1})
    code, events = _train(cluster, job, **settings)
    assert (code, events[-1]["class"]) == (2, "ConfigError")
    assert words in events[-1]["message"]
    assert not (job.folder / "last.safetensors").exists()
    _assert_nothing_left(cluster)


def test_a_node_that_starts_late_is_waited_for(
    cluster: Cluster, make_job: MakeJob, tmp_path: Path
) -> None:
    """One imports for 45 s; a host that hears nothing of its driver ends after 30 s."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_IMPORT)
    path = os.pathsep.join((str(tmp_path), cluster.environment["PYTHONPATH"]))
    for node in cluster.spaces:
        cluster.kill(node)
    time.sleep(1)
    cluster.start("a")
    cluster.start("b", PYTHONPATH=path)
    try:
        began = time.monotonic()
        job = make_job(tmp_path / "job", training={**TRAINING, "epochs": 2})
        code, events = _train(cluster, job)
        assert (code, events[-1]["kind"]) == (0, "result"), events[-3:]
        assert time.monotonic() - began > 45
    finally:
        cluster.restart()
