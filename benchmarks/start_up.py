"""How long the commands take that only read, and what a run takes besides its stages.

python -m benchmarks.start_up [PATCHLINE]

Seconds, and seconds of processor time, which say the same on a machine that is busy. The first
`models` is asked in a folder without runs. Then the built-in digits are trained on, and once more,
when all results are used again. PATCHLINE is the command of another environment.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measured_runs import PATCHLINE, machine
from benchmarks.results import Value, record
from patchline.pipeline.plugin_system.plugin_skeleton import write_package

RUNS = 11
PLUGINS = 200
DIGIT = ".patchline/sources/digits/0/0020.png"


def main() -> None:
    """Print a line a command, and record them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patchline", nargs="?", type=Path, default=PATCHLINE)
    patchline = parser.parse_args().patchline
    print(machine())
    values: list[Value] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in ("--help", "plugins list", "models"):
            values += _measure(command, [patchline, *command.split()], folder)
        values += _measure_run("run", patchline, folder)
        for command in ("models", f"predict digits@champion {DIGIT}"):
            name = f"{command.partition(' ')[0]}, of one version"
            values += _measure(name, [patchline, *command.split()], folder)
        values += _measure_run("run, all results used again", patchline, folder)
        _install_many(Path(folder))
        many = f"plugins list, with {PLUGINS} more plugins"
        values += _measure(many, [patchline, "plugins", "list"], folder, PYTHONPATH=folder)
    for value in values:
        print(f"{value.name}: {value.value:.3f} {value.unit}")
    record("start_up", *values)


def _measure_run(name: str, patchline: Path, folder: str) -> list[Value]:
    """Return when a run printed its first line and its first epoch, and what it took."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with subprocess.Popen(
        [patchline, "run", "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        said = [(line, time.perf_counter() - began) for line in run.stderr or ()]
        stages: dict[str, float] = json.load(run.stdout or io.StringIO("{}"))["seconds"]
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = {
        "first line": said[0][1],
        "first epoch": next((at for line, at in said if ": validation " in line), 0.0),
        "": seconds,
        "start-up and end": seconds - sum(stages.values()),
        "processor time": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    return [
        Value(
            name=", ".join(filter(None, (f"`patchline {name}`", what))), value=value, unit="s", n=1
        )
        for what, value in measured.items()
        if value
    ]


def _measure(name: str, command: list[str | Path], folder: str, **variables: str) -> list[Value]:
    seconds, processor = [], []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
            env={**os.environ, **variables},
        )
        seconds.append(time.perf_counter() - began)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [
        Value.median(f"`patchline {name}`", seconds, "s"),
        Value.median(f"`patchline {name}`, processor time", processor, "s"),
    ]


def _install_many(folder: Path) -> None:
    """Lay out installed packages, each with the plugin that `plugins new` writes."""
    for number in range(PLUGINS):
        name = f"many_{number:03d}"
        package = write_package("patch_embedding", name, folder).folder
        (package / f"patchline_{name}").rename(folder / f"patchline_{name}")
        metadata = folder / f"patchline_{name}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: patchline-{name}\nVersion: 0.1.0\n", encoding="utf-8"
        )
        (metadata / "entry_points.txt").write_text(
            f"[patchline.patch_embeddings]\n{name} = patchline_{name}.plugin:plugin\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
