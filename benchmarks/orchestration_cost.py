"""What `patchline up` costs and how soon it acts: start, a training run of a minute, new data.

    python -m benchmarks.orchestration_cost

Four measurements: the seconds until `patchline up` is ready, in a fresh and in a used folder;
the seconds that a training run of 60 s takes in addition to its 60 s, from the command to the
registered version, with the servers up; and the seconds from a new image in a watched folder to the
start of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from uuid import UUID

from PIL import Image
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.client.schemas.objects import FlowRun

from benchmarks.measured_runs import PATCHLINE, machine, measure_run
from patchline.flows.prefect_api.prefect_client import open_client
from patchline.flows.prefect_session import connect
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.conftest import draw_photo, write_photos

_TRAINING_SECONDS = 60
_CHANGES = 5
_PATIENCE_SECONDS = 300.0
_SETTINGS = """\
model: {name: vit, embed_dim: 32, depth: 2, num_heads: 2}
training: {epochs: 1}
"""


def main() -> None:
    """Print the measurements."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    os.chdir(tempfile.mkdtemp(prefix="patchline-orchestration-"))
    try:
        print(f"up, in a fresh folder: {_seconds('up'):.1f} s")
        print(f"down: {_seconds('down'):.1f} s")
        print(f"up, in a used folder: {_seconds('up'):.1f} s", flush=True)
        summary = measure_run(
            "--preset", "none", "--training.time-limit", f"{_TRAINING_SECONDS}s", folder=Path()
        )
        trained = summary["training"]["seconds"]
        version = client().get_model_version(summary["name"], summary["version"])
        registered = version.creation_timestamp / 1000 - summary["began"]
        print(
            f"{trained:.1f} s of training: registered {registered:.1f} s after the command was "
            f"given, {registered - trained:.1f} s more; the command ended after "
            f"{summary['wall_seconds']:.1f} s; by stage {summary['seconds']}"
        )
        with connect():
            waits = _new_data()
        shown = ", ".join(f"{wait:.1f}" for wait in waits)
        print(
            f"from a new image to the start of its run: {statistics.median(waits):.1f} s ({shown})"
        )
    finally:
        _patchline("down", "--now")


def _new_data() -> list[float]:
    """Return for each of some changes of a watched folder how long its run took to begin."""
    folder = write_photos(Path("photos"), images=8)
    Path("run.yaml").write_text(_SETTINGS, encoding="utf-8")
    watched = _patchline("data", "watch", str(folder), "--config", "run.yaml", "--json")
    deployment_id = UUID(json.loads(watched)["deployment_id"])
    _wait_for(partial(_all_ended, deployment_id, 1))
    waits = []
    for number in range(_CHANGES):
        Image.fromarray(draw_photo(0, 900 + number)).save(folder / "across" / f"new{number}.png")
        came = time.time()
        _wait_for(partial(_all_ended, deployment_id, number + 2))
        began = [each.start_time.timestamp() for each in _runs(deployment_id) if each.start_time]
        waits.append(max(began) - came)
    return waits


def _all_ended(deployment_id: UUID, runs: int) -> bool:
    return sum(each.end_time is not None for each in _runs(deployment_id)) == runs


def _runs(deployment_id: UUID) -> list[FlowRun]:
    wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]))
    with open_client() as client:
        return client.read_flow_runs(flow_run_filter=wanted)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("the run of the watch did not come or did not end")
        time.sleep(1)


def _seconds(command: str) -> float:
    began = time.monotonic()
    _patchline(command)
    return time.monotonic() - began


def _patchline(*arguments: str) -> str:
    return subprocess.run(
        [str(PATCHLINE), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    main()
