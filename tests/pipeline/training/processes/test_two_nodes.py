"""A training run on two nodes of a Ray cluster that share a folder: same weights, nothing lost.

What else can die is killed in `test_separate_folders.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MODULE
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import read_events
from patchline.pipeline.workers.worker_process import run_worker
from tests.patience import patient, until
from tests.pipeline.training.processes.conftest import ON_TWO_NODES
from tests.pipeline.training.processes.ray_nodes import Cluster
from tests.pipeline.training.trained_jobs import Make, same

pytestmark = [pytest.mark.slow, ON_TWO_NODES]
SETTINGS = {"name": "ray", "nodes": 2, "shared_folder": True}
TRAINING = {"processes": 2, "epochs": 150, "threads": 1}


def _train(
    cluster: Cluster,
    job: TrainingJob,
    kills: Sequence[tuple[int, Callable[[], object]]] = (),
    **settings: Any,
) -> tuple[int, list[dict[str, Any]]]:
    """Train on the cluster, and return the exit code and the events.

    Args:
        cluster: of two nodes.
        job: what to train.
        kills: each after how many steps, and what kills something then.
        settings: of the launcher.
    """
    file = job.folder.parent / "asked.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    chosen = json.dumps({**SETTINGS, "address": cluster.address, **settings})
    program = [sys.executable, "-P", "-m", f"{__package__}.ray_training", str(file), chosen]
    process = subprocess.Popen(
        cluster.command("a", *program),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    events: list[dict[str, Any]] = []
    to_come = list(kills)
    for line in process.stdout or ():
        events.append(json.loads(line))
        if to_come and events[-1].get("kind") == "progress" and events[-1]["done"] >= to_come[0][0]:
            to_come.pop(0)[1]()
    assert not to_come, f"nothing was killed: {events[-3:]}"
    return process.wait(patient(60)), events


def _assert_nothing_left(cluster: Cluster) -> None:
    until(lambda: not cluster.ours(), "processes are left", seconds=90)


def test_two_nodes_give_the_weights_of_two_processes_whatever_is_killed(
    cluster: Cluster, make: Make
) -> None:
    """Bit for bit, each node runs one rank; a rank that is killed is started again by itself.

    Without the driver, nothing is left, and the same command resumes. All events are numbered.
    """
    alone = make("alone", training={**TRAINING, "threads": 2})  # one each
    run_worker(MODULE, alone.folder, alone, TrainResult, lambda _: None)
    job = make("job", training=TRAINING)
    seen: list[int] = []

    def kill_rank() -> None:
        seen.extend(len(cluster.pids(node, "processes.rank")) for node in cluster.spaces)
        cluster.kill("b", "processes.rank")

    kills = [(40, kill_rank), (80, lambda: cluster.kill("a", "ray_driver"))]
    code, events = _train(cluster, job, kills=kills)
    assert seen == [1, 1]
    assert (code, "resume the run" in events[-1]["message"]) == (1, True)
    assert any("ended unexpectedly" in str(each.get("message")) for each in events)
    _assert_nothing_left(cluster)
    cluster.restart()
    code, again = _train(cluster, job)
    assert (code, again[-1]["kind"]) == (0, "result")
    assert again[-1]["threads"] == 1  # of a node, as they were asked for
    assert any(str(each.get("message", "")).startswith("resuming from step") for each in again)
    assert same(*(load_file(each.folder / "last.safetensors") for each in (alone, job)))
    numbered = read_events(job.folder / "events.jsonl")
    assert [event["seq"] for event in numbered] == list(range(len(numbered)))
    _assert_nothing_left(cluster)


def test_a_cluster_that_others_can_use_is_refused(cluster: Cluster, make: Make) -> None:
    """Whoever reaches one without tokens runs code on it.

    Ray gives its folders mode 0777: on each node one above them has to be closed.
    """
    job = make("job", training={**TRAINING, "epochs": 1})

    def assert_refused(words: str, **settings: Any) -> None:
        code, events = _train(cluster, job, **settings)
        assert code == 2
        assert words in events[-1]["message"]

    cluster.private.chmod(0o750)
    try:
        assert_refused(f"on this machine, {cluster.private / 'ray'}, is open")
    finally:
        cluster.private.chmod(0o700)
    with tempfile.TemporaryDirectory(prefix="plr") as other:
        Path(other).chmod(0o711)
        cluster.kill("b")
        time.sleep(1)
        try:
            cluster.start("b", Path(other) / "ray")
            assert_refused(f"on the node 10.78.0.2, {other}/ray, is open")
            for node in cluster.spaces:
                cluster.kill(node)
            time.sleep(1)
            cluster.start("a", RAY_AUTH_MODE="disabled")
            assert_refused("without token authentication", nodes=1)
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
    settings: dict[str, Any], words: str, cluster: Cluster, make: Make
) -> None:
    """One sentence with the value, the rule and the remedy."""
    processes = settings.get("nodes", 2)
    job = make("job", training={**TRAINING, "processes": processes, "epochs": 1})
    code, events = _train(cluster, job, **settings)
    assert (code, events[-1]["class"]) == (2, "ConfigError")
    assert words in events[-1]["message"]
    assert not (job.folder / "last.safetensors").exists()
    _assert_nothing_left(cluster)


OCCUPANT = """
import time, ray
from ray.util.placement_group import placement_group
ray.init(address={address!r}, log_to_driver=False)
ray.get(placement_group([{{"CPU": 2}}] * 2, strategy="STRICT_SPREAD").ready())
print("occupied", flush=True)
time.sleep(3600)
"""
FIRST_LOOK = """
import sys
from pathlib import Path
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.plugin_system.plugin_settings import built_launcher
from patchline.pipeline.workers.launcher import Resources
choice = PluginChoice.model_validate_json(sys.argv[1])
built_launcher(choice, Path(sys.argv[2])).introduction("patchline.pipeline.training", Resources())
"""


def test_a_cluster_without_room_is_said_in_time(cluster: Cluster, make: Make) -> None:
    """Where a run asks what the nodes are, and where it trains: what it needs, and the remedy."""
    occupant = subprocess.Popen(
        cluster.command("a", sys.executable, "-c", OCCUPANT.format(address=cluster.address)),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    sentence = "No node of the Ray cluster had 2 CPU cores on one node within 2 seconds."
    settings: dict[str, Any] = {"nodes": 1, "cpus": 2, "wait_seconds": 2}
    try:
        assert occupant.stdout is not None
        assert occupant.stdout.readline() == "occupied\n"
        job = make("job", training={**TRAINING, "epochs": 1})
        code, events = _train(cluster, job, **settings)
        assert (code, sentence in events[-1]["message"]) == (1, True)
        chosen = json.dumps({**SETTINGS, "address": cluster.address, **settings})
        program = [sys.executable, "-P", "-c", FIRST_LOOK, chosen, str(job.folder.parent)]
        done = subprocess.run(
            cluster.command("a", *program),
            env=cluster.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=patient(60),
        )
        assert sentence in done.stderr
    finally:
        occupant.kill()
        occupant.wait()
