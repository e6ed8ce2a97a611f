"""A team's stores: what PostgreSQL and S3 cost a run, many writers at once, workers of a pool.

    python -m benchmarks.team_stores fresh [ROUNDS [EPOCHS]]
    python -m benchmarks.team_stores writers [RUNS [STEPS]]
    python -m benchmarks.team_stores other-server [RUNS [STEPS]]
    python -m benchmarks.team_stores workers [RUNS [WORKERS]]

All start a PostgreSQL server and an S3 server (moto) of their own, on this machine. `fresh` runs
`patchline run --fresh` on the digits, in turn with a folder's SQLite files and with PostgreSQL and
S3, each behind its own `patchline up`, and prints both medians and their ratio.

`writers` logs five metrics a second in each of 32 runs at once while eight others list the runs. It
fails if a metric is missing or there twice, and prints how long a metric took from the moment that
it was logged until the store had it. `other-server` does the same without pauses against
`mlflow server` with its default pool, which is too small.

`workers` starts 60 runs of as many schedules on two workers, each a run of one epoch on the digits,
and fails unless each has ended once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mlflow.exceptions import MlflowException

from benchmarks.measured_runs import PATCHLINE, machine
from patchline.flows.prefect_api import postgres as database
from patchline.flows.prefect_api.prefect_client import flow_runs, open_client
from patchline.flows.prefect_session import connect
from patchline.pipeline.local_services import answers
from patchline.pipeline.workspace.tracking import busy_server
from patchline.pipeline.workspace.tracking.exactly_once_metrics import MetricSender
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.free_ports import free_port
from tests.object_server import ObjectServer, object_server
from tests.postgres_server import PASSWORD, USER, PostgresServer, postgres_server

_WATCHERS, _METRICS = 8, 5
_PATIENCE_SECONDS = 1800.0


@contextmanager
def _servers(name: str, postgres: PostgresServer, s3: ObjectServer) -> Iterator[Path]:
    """Run `patchline up` in a new folder; yield the folder. `local` is one with SQLite."""
    folder = Path(tempfile.mkdtemp(prefix=f"patchline-{name}-"))
    stores = []
    if name != "local":
        artifacts = f"s3://{s3.new_bucket()}/artifacts"
        stores = ["--database", _new_database(postgres, name), "--artifacts", artifacts]
    ports = ["--prefect-port", str(free_port()), "--mlflow-port", str(free_port())]
    given = {**os.environ, "PGPASSWORD": PASSWORD, **s3.environment}
    try:
        subprocess.run([str(PATCHLINE), "up", *ports, *stores], cwd=folder, env=given, check=True)
        yield folder
    finally:
        subprocess.run([str(PATCHLINE), "down", "--now"], cwd=folder, check=False)


def fresh(rounds: int, epochs: int) -> None:
    """Print the wall time of a run with both kinds of stores."""
    seconds: dict[str, list[float]] = {"local": [], "team": []}
    with _stores() as (postgres, s3), ExitStack() as stack:
        folders = {name: stack.enter_context(_servers(name, postgres, s3)) for name in seconds}
        for number in range(rounds):
            for name in sorted(seconds, reverse=bool(number % 2)):
                began = time.monotonic()
                command = [str(PATCHLINE), "run", "--fresh", "--preset", "none", "--json"]
                epoch_flag = ["--training.epochs", str(epochs), "--seed", str(number)]
                subprocess.run(
                    [*command, *epoch_flag],
                    cwd=folders[name],
                    check=True,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                seconds[name].append(time.monotonic() - began)
                print(f"round {number + 1}, {name}: {seconds[name][-1]:.1f} s", flush=True)
    local, team = (statistics.median(seconds[name]) for name in ("local", "team"))
    print(f"SQLite {local:.1f} s, PostgreSQL and S3 {team:.1f} s: {team / local:.2f} times")


def writers(runs: int, steps: int) -> None:
    """Let many runs log at once to the servers of `patchline up`."""
    with _stores() as (postgres, s3), _servers("writers", postgres, s3) as folder:
        os.chdir(folder)
        with connect():
            _write(runs, steps, pause=1.0)


def other_server(runs: int, steps: int) -> None:
    """Let many runs log at once to somebody else's server, whose pool is too small."""
    busy = Counter[str]()

    class Counting(logging.Handler):
        def emit(self, _: logging.LogRecord) -> None:
            busy["answers"] += 1

    busy_server.logger.setLevel(logging.INFO)
    busy_server.logger.addHandler(Counting())
    with _stores() as (postgres, _):
        os.environ["PGPASSWORD"] = PASSWORD
        named = database.database(_new_database(postgres, "other"))
        database.prepare(named)
        port = free_port()
        os.chdir(tempfile.mkdtemp(prefix="patchline-other-"))
        place = ["--backend-store-uri", named.for_mlflow(), "--port", str(port)]
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", *place]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as own:
            try:
                while not answers(f"http://127.0.0.1:{port}/health"):
                    time.sleep(0.5)
                os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{port}"
                _write(runs, steps, pause=0.0)
            finally:
                own.terminate()
    print(f"requests that were answered with 'QueuePool limit' and repeated: {busy['answers']}")


def _write(runs: int, steps: int, pause: float) -> None:
    store = client()
    experiment = store.create_experiment("writers")
    ids = [str(store.create_run(experiment).info.run_id) for _ in range(runs)]
    senders = [MetricSender(TrackedRun(run_id, experiment, Path())) for run_id in ids]
    ended = threading.Event()
    delays: list[float] = []

    def watch(_: int) -> tuple[int, int]:
        seen, failed = 0, 0
        while not ended.wait(1.0 if pause else 0.0):
            try:
                store.search_runs([experiment], max_results=50)
                seen += 1
            except MlflowException:  # a server that is asked too much may not answer in time
                failed += 1
        return seen, failed

    def write(number: int) -> None:
        sender = senders[number]
        time.sleep(pause * number / runs)
        for step in range(steps):
            began = time.monotonic()
            values = {f"metric{each}": step / 7 for each in range(_METRICS)}
            sender.add_metrics(values, step, time.time())
            while not sender.send():
                time.sleep(0.05)
            delays.append(time.monotonic() - began)
            time.sleep(max(0.0, pause - (time.monotonic() - began)))

    began = time.monotonic()
    with ThreadPoolExecutor(runs + _WATCHERS) as threads:
        watching = [threads.submit(watch, number) for number in range(_WATCHERS)]
        try:
            list(threads.map(write, range(runs)))
        finally:
            ended.set()
        listings, failed = map(sum, zip(*(each.result() for each in watching), strict=True))
    seconds = time.monotonic() - began
    wrong = 0
    for run_id in ids:
        for each in range(_METRICS):
            history = store.get_metric_history(run_id, f"metric{each}")
            wrong += sorted(metric.step for metric in history) != list(range(steps))
    delays.sort()
    shown = ", ".join(
        f"{name} {delays[min(len(delays) - 1, int(share * len(delays)))]:.3f} s"
        for name, share in (("median", 0.5), ("95th percentile", 0.95), ("longest", 1.0))
    )
    print(
        f"{runs} runs, {steps} steps of {_METRICS} metrics each, {listings} listings by {_WATCHERS}"
        f" watchers ({failed} failed) in {seconds:.1f} s: {wrong} metrics of a run incomplete or "
        f"there twice; a metric's delay: {shown}",
        flush=True,
    )
    if wrong:
        raise SystemExit("metrics are missing or there twice")


def workers(runs: int, count: int) -> None:
    """Let the workers of a pool execute many runs, and check that each has ended once."""
    with _stores() as (postgres, s3), _servers("workers", postgres, s3) as folder:
        os.chdir(folder)
        pool = ("--work-pool", "team")
        began_workers = [
            subprocess.Popen(
                [str(PATCHLINE), "worker", *pool],
                stdout=subprocess.DEVNULL,
                stderr=Path(f"worker{number}.log").open("wb"),  # noqa: SIM115 - the worker's
            )
            for number in range(count)
        ]
        try:
            began, started = time.monotonic(), []
            for number in range(runs):
                settings = f"name: many\nseed: {number}\npreset: none\ntraining: {{epochs: 1}}\n"
                Path("run.yaml").write_text(settings, encoding="utf-8")
                name, config = f"many{number}", ("--config", "run.yaml")
                _patchline("schedule", "create", name, "--interval", "30d", *config, *pool)
                answer = _patchline("schedule", "run-now", name, "--json")
                started.append(json.loads(answer)["flow_run_id"])
            with connect():
                _check(started, began)
        finally:
            for each in began_workers:
                each.send_signal(signal.SIGTERM)
            for each in began_workers:
                each.wait()
    logs = [Path(f"worker{number}.log").read_text(errors="replace") for number in range(count)]
    shares = [len(re.findall("submitting flow run", log)) for log in logs]
    print(f"by worker: {', '.join(map(str, shares))}")


def _check(started: list[str], began: float) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        with open_client() as prefect:
            found = flow_runs(prefect, {"id": {"any_": started}})
        states = Counter(str(each.state_name) for each in found)
        if all(each.state and each.state.is_final() for each in found):
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"not all runs have ended: {dict(states)}")
        time.sleep(5)
    seconds = time.monotonic() - began
    attempts = Counter(each.run_count for each in found)
    store = client()
    experiment = store.get_experiment_by_name("many")
    ids = [experiment.experiment_id] if experiment else []
    tracked = Counter(
        run.data.tags.get("prefect.flow_run_id", "") for run in store.search_runs(ids, "", 1)
    )
    statuses = Counter(run.info.status for run in store.search_runs(ids, "", 1))
    print(
        f"{len(found)} of {len(started)} runs in {seconds:.0f} s: {dict(states)}; MLflow runs of "
        f"each: {dict(Counter(tracked[each] for each in started))}, {dict(statuses)}; attempts "
        f"{dict(attempts)}"
    )
    if dict(states) != {"Completed": len(started)} or set(tracked.values()) != {1}:
        raise SystemExit("a run is lost, was executed twice or is stuck")


def _new_database(postgres: PostgresServer, name: str) -> str:
    postgres.sql(f"CREATE DATABASE {name} OWNER {USER}")
    return postgres.address(name)


@contextmanager
def _stores() -> Iterator[tuple[PostgresServer, ObjectServer]]:
    folder = Path(tempfile.mkdtemp(prefix="patchline-s3-"))
    with postgres_server() as postgres, object_server(folder) as s3:
        yield postgres, s3


def _patchline(*arguments: str) -> str:
    return subprocess.run(
        [str(PATCHLINE), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


_COMMANDS = {
    "fresh": (fresh, (5, 10)),
    "writers": (writers, (32, 30)),
    "other-server": (other_server, (32, 4)),
    "workers": (workers, (60, 2)),
}


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True)
    for name, (measure, (first, second)) in _COMMANDS.items():
        part = parts.add_parser(name)
        part.add_argument("first", nargs="?", type=int, default=first)
        part.add_argument("second", nargs="?", type=int, default=second)
        part.set_defaults(measure=measure)
    given = parser.parse_args()
    print(machine(), flush=True)
    given.measure(given.first, given.second)


if __name__ == "__main__":
    main()
