"""What Ray adds: to a training run's first step and its steps, and to prediction in parts.

    python -m benchmarks.launchers [ROUNDS] [--only training|prediction]

Two nodes in two network namespaces of this machine (root, iproute2 and Ray are needed). On them, in
turn, in the same run: the ranks of one training job, started by `torch.distributed.run` and by the
launcher ray; and 36,000 JPEG files, predicted by a plain worker process on each node, and in four
parts by the launcher ray. The first step counts from the start of the command, on a cluster that
runs; prediction counts from the connection with the cluster.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.batch_prediction import small_model, write_photos
from benchmarks.measured_runs import machine
from patchline.pipeline import config_files
from patchline.pipeline.config import PluginChoice
from patchline.pipeline.data import ingestion
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.batch_prediction import (
    PREDICTION,
    PredictionJob,
    predict_images,
)
from patchline.pipeline.packaging.prediction.image_files import find_images
from patchline.pipeline.plugin_system.plugin_settings import build_launcher
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.processes.machines import NODE_VARIABLE
from patchline.pipeline.training.processes.rank import RANKS_FOLDER
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workers.worker_parts import ROWS_FILE, write_lines
from tests.pipeline.training.processes.ray_nodes import Cluster, two_nodes, why_not

STEPS, SKIPPED, REPEATED = 60, 15, 12
TRAINING = {"processes": 2, "threads": 1, "precision": "float32", "batch_size": 16}


def main() -> None:
    """Print the figures of each round, and the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", default="3")
    parser.add_argument("--only", choices=["training", "prediction"])
    parser.add_argument("--predict", nargs=3, help="used by the benchmark itself")
    options = parser.parse_args()
    if options.predict:
        _predict_on_cluster(*options.predict)
        return
    if reason := why_not():
        sys.exit(f"This benchmark needs two network namespaces: {reason}.")
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with two_nodes(folder / "cluster") as cluster:
            if options.only != "prediction":
                _training(cluster, folder, int(options.rounds))
            if options.only != "training":
                _prediction(cluster, folder, int(options.rounds))


# -- training ----------------------------------------------------------------------------------


def _training(cluster: Cluster, folder: Path, rounds: int) -> None:
    first: dict[str, list[float]] = {"torchrun": [], "ray": []}
    step: dict[str, list[float]] = {"torchrun": [], "ray": []}
    made = _job(folder / "data")
    for number in range(rounds):
        for name, start in (("torchrun", _by_torchrun), ("ray", _by_ray)):
            job = made.model_copy(update={"folder": folder / f"{name}-{number}"})
            job.folder.mkdir()
            began = time.time()
            start(cluster, job)
            to_first, each = _times(job.folder, began)
            first[name].append(to_first)
            step[name].append(each)
            print(f"round {number}: {name} first step {to_first:.1f} s, step {1000 * each:.2f} ms")
    for what, times in (("first step", first), ("steady step", step)):
        one, other = (statistics.median(times[name]) for name in ("torchrun", "ray"))
        print(f"{what}, median of {rounds}: ray / torchrun {other / one:.2f}", flush=True)


def _job(workspace: Path) -> TrainingJob:
    training = {**TRAINING, "device": "cpu"}
    length = {"step_plan": [[0, 0.0, STEPS]]}
    config = config_files.validate_config(
        {"name": "digits", "preset": "none", "training": training, "record": length}
    )
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return job_of(config, data, prepared, workspace, "benchmark")


def _by_torchrun(cluster: Cluster, job: TrainingJob) -> None:
    ranks = job.folder / RANKS_FOLDER
    ranks.mkdir()
    (ranks / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    agents = []
    for index, node in enumerate(cluster.spaces):
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "benchmark"]
        command += ["--rdzv-endpoint", f"{cluster.hosts['a']}:29417", "--local-addr"]
        command += [cluster.hosts[node], "--rdzv-conf", f"is_host={1 - index}", "-m"]
        command += ["tests.pipeline.training.processes.bare_rank", str(job.folder)]
        own = {NODE_VARIABLE: str(index), "GLOO_SOCKET_IFNAME": "cable"}
        agents.append(
            subprocess.Popen(
                cluster.command(node, *command),
                env={**cluster.environment, **own},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
    if any(agent.wait() for agent in agents):
        sys.exit("torchrun failed")


def _by_ray(cluster: Cluster, job: TrainingJob) -> None:
    file = job.folder.parent / "job.json"
    file.write_text(job.model_dump_json(), encoding="utf-8")
    program = "tests.pipeline.training.processes.ray_training"
    command = [sys.executable, "-P", "-m", program, str(file), _settings(cluster)]
    done = subprocess.run(
        cluster.command("a", *command),
        env=cluster.environment,
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        sys.exit("training on Ray failed")


def _settings(cluster: Cluster) -> str:
    settings = {"name": "ray", "nodes": 2, "shared_folder": True, "address": cluster.address}
    return json.dumps(settings)


def _times(folder: Path, began: float) -> tuple[float, float]:
    """Return the seconds to the first step, and those of a step once it is steady."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    events = [each for each in map(json.loads, lines) if each["kind"] == "progress"]
    steady = [each for each in events if each["done"] >= SKIPPED and each["unit"] == "step"]
    steps = steady[-1]["done"] - steady[0]["done"]
    first = next(each for each in events if each["unit"] == "step")
    return first["time"] - began, (steady[-1]["time"] - steady[0]["time"]) / steps


# -- prediction --------------------------------------------------------------------------------


def _prediction(cluster: Cluster, folder: Path, rounds: int) -> None:
    photos = folder / "photos"
    write_photos(photos)
    small_model(folder, "micro")
    onnx_file, description_file = folder / "model.onnx", folder / "model.json"
    rates: dict[str, list[float]] = {"plain": [], "ray": []}
    for number in range(rounds):
        seconds = _by_two_processes(cluster, folder, onnx_file, description_file)
        rates["plain"].append(1 / seconds)
        print(f"round {number}: two plain processes {seconds:.1f} s", flush=True)
        seconds = _by_parts(cluster, folder)
        rates["ray"].append(1 / seconds)
        print(f"round {number}: parts on two nodes {seconds:.1f} s", flush=True)
    one, other = (statistics.median(rates[name]) for name in ("plain", "ray"))
    print(f"prediction, median of {rounds}: rate of ray / two plain processes {other / one:.2f}")


def _by_two_processes(cluster: Cluster, folder: Path, onnx: Path, description: Path) -> float:
    began = time.perf_counter()
    files = list(find_images([folder / "photos"] * REPEATED))
    half = len(files) // 2
    workers = []
    for node, part in (("a", files[:half]), ("b", files[half:])):
        own = folder / f"plain-{node}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir()
        job = PredictionJob(
            onnx_file=onnx,
            description_file=description,
            model_id="benchmark",
            top_k=3,
            whole=True,
        )
        write_lines(own / ROWS_FILE, part)
        (own / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
        workers.append(
            subprocess.Popen(
                cluster.command(node, sys.executable, "-P", "-m", PREDICTION.module, str(own)),
                env=cluster.environment,
                stdin=subprocess.PIPE,
            )
        )
    if any(worker.wait() for worker in workers):
        sys.exit("plain prediction failed")
    return time.perf_counter() - began


def _by_parts(cluster: Cluster, folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.launchers", "--predict"]
    done = subprocess.run(
        cluster.command("a", *command, str(folder), cluster.address, _settings(cluster)),
        env=cluster.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=folder,
    )
    return float(done.stdout.split()[-1])


def _predict_on_cluster(place: str, _address: str, settings: str) -> None:
    folder = Path(place)
    choice = PluginChoice.model_validate_json(settings)
    model = PackagedModel(folder / "model.onnx", folder / "model.json")
    with worker_start.use_launcher("ray", lambda: build_launcher(choice, folder)) as launcher:
        launcher.slots(Resources())
        began = time.perf_counter()
        out = folder / "out.parquet"
        predict_images(model, "benchmark", [folder / "photos"] * REPEATED, out, restart=True)
        seconds = time.perf_counter() - began
    print(seconds)


if __name__ == "__main__":
    main()
