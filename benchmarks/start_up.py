"""How long the commands take that only read: seconds, and seconds of processor time.

python -m benchmarks.start_up

The second says the same on a machine that is busy. `models` is asked in a folder without runs.
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """Print a line a command, and record them."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    print(machine())
    values: list[Value] = []
    with tempfile.TemporaryDirectory() as folder:
        for command in ("--help", "plugins list", "models"):
            values += _measure(command, command, folder)
        _install_many(Path(folder))
        many = f"plugins list, with {PLUGINS} more plugins"
        values += _measure(many, "plugins list", folder, PYTHONPATH=folder)
    for value in values:
        print(f"{value.name}: {value.value:.3f} {value.unit}")
    record("start_up", *values)


def _measure(name: str, command: str, folder: str, **variables: str) -> list[Value]:
    seconds, processor = [], []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.perf_counter()
        subprocess.run(
            [str(PATCHLINE), *command.split()],
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
