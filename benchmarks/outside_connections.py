"""Which names do the commands look up, and which hosts do they reach outside of this machine?

    python -m benchmarks.outside_connections

Every command runs once in a new folder and with a new home, none of the variables set that ask
libraries to be quiet. A line for each: its look-ups and outside connections, which should be none.
Needs strace.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measured_runs import PATCHLINE, machine
from benchmarks.recorded_connections import (
    Recorded,
    Recording,
    as_a_stranger,
    missing_tracer,
    record,
)
from pipeline import local_services

_CLASSES, _IMAGES, _SIDE = ("across", "down", "rising"), 40, 32
_SETTINGS = "name: shapes\ndata: {path: photos, image_size: 32}\ntraining: {epochs: 2}\n"
_START_SECONDS = 240.0
_LINGER_SECONDS = 15
"""A library that reports does so some seconds after it was imported."""
BARE = """
import sys, time, mlflow.pyfunc, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
print(model.predict(pandas.DataFrame({"image": [sys.argv[2]]}))[0]["label"])
time.sleep(float(sys.argv[3]))
"""
"""What loads a package as anybody does who has MLflow and no Patchline."""


def commands_alone() -> list[list[str]]:
    """Return the commands that need no servers, in an order in which each finds what it needs."""
    return [
        ["run", "--config", "run.yaml", "--json"],
        ["run", "--config", "run.yaml", "--seed", "1", "--json"],
        ["run", "photos", "--dry-run"],
        ["predict", "shapes", "photos", "--out", "predictions.parquet"],
        ["evaluate", "shapes/1", "photos", "--json"],
        ["models"],
        ["promote", "shapes", "--version", "2", "--force", "--reason", "A trial"],
        ["rollback", "shapes"],
        ["plugins", "list"],
        ["plugins", "show", "conv", "--picture", "conv.png"],
        ["plugins", "check", "patch_embedding", "conv"],
        ["plugins", "check", "model", "simple_vit"],
        ["plugins", "check", "image_folder"],
        ["plugins", "check", "light"],
        ["plugins", "new", "model", "mine"],
    ]


def commands_with_servers() -> list[list[str]]:
    """Return the commands that need the servers of `patchline up`."""
    return [
        ["notify", "create", "here", "--webhook", "http://127.0.0.1:9/none"],
        ["notify", "list"],
        ["notify", "remove", "here"],
        ["schedule", "create", "nightly", "--cron", "0 3 * * *", "--config", "run.yaml"],
        ["schedule", "list"],
        ["schedule", "pause", "nightly"],
        ["schedule", "resume", "nightly"],
        ["schedule", "remove", "nightly"],
        ["run", "--config", "run.yaml", "--json"],
    ]


def measured(folder: Path) -> Iterator[tuple[str, Recorded]]:
    """Run every command in a folder, and yield each with what was recorded."""
    _write_photos(folder / "photos")
    (folder / "run.yaml").write_text(_SETTINGS, encoding="utf-8")
    env = as_a_stranger(folder / "home")
    (folder / "home").mkdir()
    for words in commands_alone():
        yield _shown(words), record([PATCHLINE, *words], folder, env)
    yield "mlflow.pyfunc.load_model of the package", _bare(folder, env)
    serving = Recording([PATCHLINE, "up", "--prefect-port", "14200", "--mlflow-port", "15000"],
                        folder, env)  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while local_services.running(folder) is None and time.monotonic() < deadline:
            time.sleep(1.0)
        for words in commands_with_servers():
            yield _shown(words), record([PATCHLINE, *words], folder, env)
    finally:
        down = record([PATCHLINE, "down", "--now"], folder, env)
    yield "patchline up, until down", serving.ended()
    yield "patchline down --now", down


def _bare(folder: Path, env: dict[str, str]) -> Recorded:
    """Load and use a package where MLflow was asked not to report, and nothing else was."""
    package = next(folder.glob("mlruns/*/models/*/artifacts"))
    image = next(folder.glob("photos/*/*.png"))
    command: list[str | Path] = [
        sys.executable,
        "-I",
        "-c",
        BARE,
        package,
        image,
        str(_LINGER_SECONDS),
    ]
    return record(command, folder, {**env, "MLFLOW_DISABLE_TELEMETRY": "true"})


def _shown(words: list[str]) -> str:
    return f"patchline {' '.join(words)}"


def _write_photos(root: Path) -> None:
    generator = np.random.default_rng(0)
    rows, columns = np.mgrid[0:_SIDE, 0:_SIDE]
    for name, axis in zip(_CLASSES, (rows, columns, rows + columns), strict=True):
        (root / name).mkdir(parents=True)
        for number in range(_IMAGES):
            stripes = 127 + 90 * np.sin(axis * np.pi / 4 + generator.uniform(0, 6))
            noisy = stripes[:, :, None] + generator.normal(0, 15, (_SIDE, _SIDE, 3))
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")


def main() -> int:
    """Print a line a command; the exit code is 1 if something reached out, or failed."""
    reason = missing_tracer()
    if reason:
        print(f"Error: {reason}", file=sys.stderr)
        return 2
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    print(machine())
    print("| command | look-ups | outside connections |\n| --- | --- | --- |", flush=True)
    bad = False
    with tempfile.TemporaryDirectory() as folder:
        for name, found in measured(Path(folder)):
            failed = f" (exit code {found.code})" if found.code else ""
            bad = bad or bool(found.code or found.look_ups or found.connections)
            cells = (", ".join(each) or "none" for each in (found.look_ups, found.connections))
            print(f"| `{name}`{failed} | {' | '.join(cells)} |", flush=True)
            if found.code:
                print(found.err[-1000:], file=sys.stderr)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
